"""Measures the metrics of variants on the evaluation rows that they share, and gives the verdict.

A verdict needs three paired seeds and an interval that leaves out 0. The first metric decides it:
`auc` where labels are classes, else `loss`; the others are shown with their intervals, of which one
in twenty misses. If several variants are compared with the first, each interval is wider, so that
all of them hold together in 95 % of the cases (Bonferroni). `comparing` calls this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from pipeline_runtime.comparison.bootstrap import (
    LOSS,
    RISES,
    Floats,
    ScoredRows,
    draw_metric,
    measure,
)
from pipeline_runtime.comparison.gathering import Variant
from pipeline_runtime.comparison.intervals import (
    CONFIDENCE,
    MIN_SEEDS,
    Interval,
    RowNoise,
    build_interval,
)
from pipeline_runtime.comparison.model import ComparedMetric, Difference, SharedRows, Verdict
from pipeline_runtime.comparison.rows import SharedScores, pair_rows
from pipeline_runtime.formatting import format_count, format_metric

# With fewer groups, a mean over them may be far from normal.
_FEW_GROUPS = 30
_MINUS = "\u2212"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Metrics and verdicts of variants."""

    verdicts: tuple[str, ...]
    metrics: tuple[ComparedMetric, ...]
    shared_rows: SharedRows | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A variant as statistics see it: the seeds of its runs, in the order of their scores."""

    label: str
    seeds: tuple[int | None, ...]


def judge(variants: Sequence[Variant]) -> Judgement:
    """Return the metrics of variants, the first of which is the baseline, and the verdicts."""
    reported = tuple(_list_reported(variants))
    found = [[run.evaluation for run in variant.runs] for variant in variants]
    tables = [rows.table for of_variant in found for rows in of_variant if rows is not None]
    lacking = [v.label for v in variants if any(run.evaluation is None for run in v.runs)]
    if lacking:
        reason = (
            f"runs of {', '.join(lacking)} kept no evaluation rows (evaluation.parquet). Set "
            "training.evaluation, and run again"
        )
        return _give_up(variants, reported, reason)
    scores = pair_rows(tables)
    if fault := _find_fault(scores):
        return _give_up(variants, reported, fault)
    arms = [Arm(label=v.label, seeds=tuple(run.seed for run in v.runs)) for v in variants]
    metrics = tuple(judge_rows(arms, scores.rows))
    return Judgement(
        verdicts=tuple(word_verdict(metrics[0], each) for each in metrics[0].differences),
        metrics=(*metrics, *reported),
        shared_rows=SharedRows(rows=scores.rows.num_rows, groups=scores.rows.num_groups),
        warnings=tuple(_list_warnings(variants, scores)),
    )


def judge_rows(arms: Sequence[Arm], rows: ScoredRows) -> Iterator[ComparedMetric]:
    """Yield each metric of the rows, compared between the arms; the deciding one first.

    Args:
        rows: with the scores of all runs of the first arm, then of the second, and so on.
    """
    ends = np.cumsum([len(arm.seeds) for arm in arms]).tolist()
    places = [
        dict(zip(arm.seeds, range(end - len(arm.seeds), end), strict=True))
        for arm, end in zip(arms, ends, strict=True)
    ]
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(arms) - 1)
    for name in rows.metrics:
        value_M, drawn_RM = measure(rows, name), draw_metric(rows, name)
        groups = [value_M[list(place.values())].tolist() for place in places]
        differences = []
        for arm, place in zip(arms[1:], places[1:], strict=True):
            pairs_P2 = np.array(_pair_seeds(places[0], place))
            degrees = min(len(drawn_RM), rows.num_groups) - 1
            interval = _measure_interval(value_M, drawn_RM, pairs_P2, degrees, confidence)
            verdict = _decide(name, rows, pairs_P2, interval)
            differences.append(_build_difference(arm.label, interval, confidence, verdict))
        yield ComparedMetric(
            name=name,
            on_shared_rows=True,
            rises=RISES[name],
            means=tuple(map(mean, groups)),
            deviations=tuple(map(_find_deviation, groups)),
            differences=tuple(differences),
        )


def _pair_seeds(
    first: Mapping[int | None, int], second: Mapping[int | None, int]
) -> list[tuple[int, int]]:
    """Return the places of runs with the same seed.

    If no seed is in both, runs are paired in order, since noise of independent seeds is the same in
    any pairs.
    """
    shared = [(first[seed], second[seed]) for seed in first if seed in second]
    return shared or list(zip(first.values(), second.values(), strict=False))


def _measure_interval(
    value_M: Floats, drawn_RM: Floats, pairs_P2: Floats, degrees: int, confidence: float
) -> Interval:
    first_P, second_P = pairs_P2.T
    drawn_R = (drawn_RM[:, second_P] - drawn_RM[:, first_P]).mean(axis=1)
    noise = RowNoise(variance=float(drawn_R.var(ddof=1)), degrees=degrees)
    return build_interval((value_M[second_P] - value_M[first_P]).tolist(), noise, confidence)


def _decide(metric: str, rows: ScoredRows, pairs_P2: Floats, interval: Interval) -> Verdict:
    first_P, second_P = pairs_P2.T
    # Models that predict differently may agree in a metric, such as those that rank alike in AUC.
    scores_MN = [rows.prediction_MN, *([rows.loss_MN] if metric == LOSS else [])]
    if all(np.array_equal(each_MN[first_P], each_MN[second_P]) for each_MN in scores_MN):
        return "Equal"
    if interval.is_conclusive:
        return "Better" if (interval.difference > 0) == RISES[metric] else "Worse"
    return "Inconclusive"


def _build_difference(
    label: str, interval: Interval, confidence: float, verdict: Verdict
) -> Difference:
    has_interval = math.isfinite(interval.half_width)
    return Difference(
        label=label,
        value=interval.difference,
        low=interval.low if has_interval else None,
        high=interval.high if has_interval else None,
        confidence=confidence,
        seeds=interval.num_seeds,
        detectable=interval.detectable,
        verdict=verdict,
    )


def format_difference(value: float) -> str:
    """Format a difference with its sign: +0.0123."""
    sign = "+" if value > 0 else _MINUS if value < 0 else "±"
    return f"{sign}{format_metric(abs(value))}"


def word_verdict(metric: ComparedMetric, difference: Difference) -> str:
    """Return the verdict about a variant as a sentence."""
    label, seeds = difference.label, difference.seeds
    change = f"{metric.name} {format_difference(difference.value)}"
    runs = f"{seeds} paired seeds" if seeds > 1 else "one seed"
    if difference.verdict == "Equal":
        return f"{label} predicts the same as A for all shared rows ({runs})"
    start = f"{label} against A: inconclusive, {change}"
    needed = f"a verdict needs {MIN_SEEDS} paired seeds"
    detectable = format_metric(difference.detectable)
    if difference.low is None or difference.high is None:
        bound = (
            f"; even without it, a difference below {detectable} would not show"
            if difference.detectable
            else ""
        )
        return (
            f"{start}. With one seed, the noise of training is unknown{bound}. Repeat each with "
            f"--seeds {MIN_SEEDS}"
        )
    if difference.low == difference.high == 0:  # in each seed and each draw
        few = f"; {needed}" if seeds < MIN_SEEDS else ""
        return f"{start}, though predictions differ ({runs}){few}"
    interval = (
        f"{100 * difference.confidence:.3g} % interval {format_difference(difference.low)} to "
        f"{format_difference(difference.high)}, {runs}"
    )
    if difference.verdict != "Inconclusive":
        return f"{label} is {difference.verdict.lower()} than A: {change} ({interval})"
    more = "more seeds or more evaluation rows would narrow the interval"
    more = needed if seeds < MIN_SEEDS else more
    return (
        f"{start} ({interval}). A difference of {detectable} would have shown in four of five "
        f"cases; {more}"
    )


def _give_up(
    variants: Sequence[Variant], reported: tuple[ComparedMetric, ...], reason: str
) -> Judgement:
    return Judgement(
        verdicts=tuple(f"{v.label} against A: inconclusive, since {reason}" for v in variants[1:]),
        metrics=reported,
    )


def _find_fault(scores: SharedScores) -> str | None:
    """Return why the rows allow no comparison."""
    rows = scores.rows
    if not rows.num_rows:
        return "the runs share no evaluation row. Evaluate them on the same rows"
    if scores.num_changed_labels:
        count = format_count(scores.num_changed_labels)
        return f"{count} of the shared evaluation rows have another label in another run"
    if rows.num_groups < 2:
        return "all evaluation rows belong to one group (dataset.requestKey)"
    if not (np.isfinite(rows.weight_N).all() and (rows.weight_N >= 0).all()):
        return "the evaluation rows have weights that are negative, infinite or no numbers"
    if not np.isfinite(rows.prediction_MN).all():
        return "a run predicts infinite values, or values that are no numbers"
    if not rows.metrics:
        return "the evaluation rows have neither labels of two classes nor losses"
    return None


def _list_warnings(variants: Sequence[Variant], scores: SharedScores) -> Iterator[str]:
    rows = scores.rows
    counts = {
        variant.label: {
            run.evaluation.table.num_rows for run in variant.runs if run.evaluation is not None
        }
        for variant in variants
    }
    shared = rows.num_rows + scores.num_repeated
    if any(each != {shared} for each in counts.values()):
        parts = (
            f"{label} has {' to '.join(format_count(n) for n in sorted({min(each), max(each)}))}"
            for label, each in counts.items()
        )
        yield (
            f"The evaluation rows differ: {', '.join(parts)}, of which all runs share "
            f"{format_count(rows.num_rows)}. Only these are compared"
        )
    if scores.num_repeated:
        count = format_count(scores.num_repeated)
        yield f"{count} evaluation rows share their identity with others, and are left out"
    if scores.has_changed_weights:
        yield "The weights of evaluation rows differ between runs; those of A count"
    if rows.num_groups < _FEW_GROUPS:
        yield (
            f"The shared evaluation rows have only {rows.num_groups} groups (dataset.requestKey), "
            "too few for a sure interval"
        )


def _list_reported(variants: Sequence[Variant]) -> Iterator[ComparedMetric]:
    """Yield the metrics that the runs reported, each on its own rows."""
    metrics = [[run.summary.training.metrics for run in variant.runs] for variant in variants]
    names = dict.fromkeys(name for runs in metrics for each in runs for name in each)
    for name in names:
        groups = [[each[name] for each in runs if name in each] for runs in metrics]
        yield ComparedMetric(
            name=name,
            on_shared_rows=False,
            rises=None,
            means=tuple(mean(each) if each else None for each in groups),
            deviations=tuple(map(_find_deviation, groups)),
        )


def _find_deviation(values: Sequence[float]) -> float | None:
    is_known = len(values) > 1 and all(map(math.isfinite, values))
    return stdev(values) if is_known else None
