"""Comparisons of variants by the product's own statistics, each on a log of its own.

In an A/A comparison both variants are the same and have seeds of their own, so any verdict is a
false positive. For the power, the other variant trains on a part of the rows. Two naive ways are
applied to the same trainings: unpaired means, as a tracker's table of runs suggests, and a
bootstrap of the rows for one training of each variant, which leaves out the noise of training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from benchmarks.calibration.trainings import LABEL, Log, Scores, make_log, train
from pipeline_runtime.comparison.bootstrap import ScoredRows, draw_metric, measure
from pipeline_runtime.comparison.intervals import CONFIDENCE, MIN_SEEDS, find_t
from pipeline_runtime.comparison.judging import Arm, judge_rows
from pipeline_runtime.comparison.model import ComparedMetric

# Shares of the training rows that the other variant trains on, for the power curve.
KEPT_SHARES = (0.6, 0.54, 0.48, 0.42, 0.36)
POWER_SEEDS = (3, 5)
# Logs of power comparisons are others than those of A/A comparisons.
_POWER_LOGS = 1_000_000
# Seeds of the other variant; a variant that differs at all has noise of its own.
_OTHER_SEEDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of a comparison in one metric.

    Attributes:
        kept_share: share of the rows that the other variant trained on; 1 in A/A comparisons.
        unpaired: whether the interval of unpaired means leaves out 0, and its half width.
        rows_alone: whether the bootstrap interval of the first seed's difference leaves out 0.
    """

    kept_share: float
    seeds: int
    metric: str
    difference: float
    half_width: float
    detectable: float
    verdict: str
    unpaired: bool
    unpaired_half_width: float
    rows_alone: bool

    def to_row(self) -> dict[str, object]:
        """Return the fields as JSON values, floats to six digits."""
        return {
            name: float(f"{value:.6g}") if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One log, and the comparisons on it."""

    index: int
    num_rows: int
    is_power: bool


def run_job(job: Job) -> list[Result]:
    """Train the models of a job, and compare them."""
    torch.set_num_threads(1)
    return list(_measure_power(job) if job.is_power else _compare_equal(job))


def _compare_equal(job: Job) -> Iterator[Result]:
    log = make_log(job.index, job.num_rows)
    first = [train(log, seed) for seed in range(MIN_SEEDS)]
    second = [train(log, _OTHER_SEEDS + seed) for seed in range(MIN_SEEDS)]
    yield from _compare(log, first, second, kept_share=1.0)


def _measure_power(job: Job) -> Iterator[Result]:
    log = make_log(_POWER_LOGS + job.index, job.num_rows)
    most = max(POWER_SEEDS)
    first = [train(log, seed) for seed in range(most)]
    for share in KEPT_SHARES:
        seeds = range(_OTHER_SEEDS, _OTHER_SEEDS + most)
        second = [train(log, seed, kept_share=share) for seed in seeds]
        for number in POWER_SEEDS:
            yield from _compare(log, first[:number], second[:number], kept_share=share)


def _compare(
    log: Log, first: Sequence[Scores], second: Sequence[Scores], *, kept_share: float
) -> Iterator[Result]:
    models = [*first, *second]
    rows = ScoredRows(
        group_N=log.user_N,
        label_N=log.evaluation[LABEL].to_numpy().astype(np.float64),
        weight_N=np.ones(log.evaluation.num_rows),
        prediction_MN=np.stack([scores.prediction_N for scores in models]),
        loss_MN=np.stack([scores.loss_N for scores in models]),
    )
    seeds = tuple(range(len(first)))
    arms = [Arm(label="A", seeds=seeds), Arm(label="B", seeds=seeds)]
    for metric in judge_rows(arms, rows):
        yield _describe(metric, rows, kept_share)


def _describe(metric: ComparedMetric, rows: ScoredRows, kept_share: float) -> Result:
    [difference] = metric.differences
    assert difference.high is not None, "there are at least three seeds"
    number = difference.seeds
    value_M, drawn_RM = measure(rows, metric.name), draw_metric(rows, metric.name)
    normal = find_t(CONFIDENCE, len(drawn_RM) - 1)
    parts = [slice(number), slice(number, None)]
    # Each mean has the noise of its seeds, and that of the rows, as if the rows were others.
    unpaired = normal * math.sqrt(
        sum(
            value_M[part].var(ddof=1) / number + drawn_RM[:, part].mean(axis=1).var(ddof=1)
            for part in parts
        )
    )
    alone = normal * float((drawn_RM[:, number] - drawn_RM[:, 0]).std(ddof=1))
    return Result(
        kept_share=kept_share,
        seeds=number,
        metric=metric.name,
        difference=difference.value,
        half_width=difference.high - difference.value,
        detectable=difference.detectable,
        verdict=difference.verdict,
        unpaired=bool(abs(difference.value) > unpaired),
        unpaired_half_width=unpaired,
        rows_alone=bool(abs(value_M[number] - value_M[0]) > alone),
    )
