"""A summary as text: headline numbers, the row funnel, and the shares of time.

Owned here: the choice of what is shown and in which order. Pure: takes a summary, returns values;
`html` and `terminal` both show them. What the history says is in `charts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline_runtime.formatting import (
    NOTHING,
    format_bytes,
    format_count,
    format_duration,
    format_metric,
    format_percent,
    format_rate,
    format_short,
)
from pipeline_runtime.report.files.summary import (
    Evaluation,
    Phase,
    StepFlow,
    Summary,
    TimeShares,
    Written,
)

# In the order in which they are stacked, the useful one at the bottom; the page's CSS gives stage
# i the colour --stage-i.
STAGES: tuple[tuple[str, str, str], ...] = (
    ("compute", "Compute", "the model itself: forward, backward, optimiser step"),
    ("production", "Production", "waited: no batch had been produced yet"),
    ("transfer", "Transfer", "waited: a batch was on its way to the trainer"),
    ("batching", "Batching", "forming mini-batches"),
    ("collate", "Collate", "turning Arrow into tensors on the device"),
    ("paused", "Paused", "evaluation, checkpoints, set-up"),
)

# Headline metrics: quality first. A page top with more numbers than about eight is not read.
MAX_HEADLINE_METRICS = 2
# Phases of a run after its first batch.
_LATE_PHASES = ("training", "report")
_HEADLINE_WORDS = ("auc", "accuracy", "ndcg", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One big number of the headline; `exact` is the number in full, shown small."""

    title: str
    value: str
    exact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelRow:
    """One step of the funnel; `width_percent` is of the widest step."""

    flow: StepFlow
    width_percent: float
    kept: str
    kept_of_all: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """One part of the trainer's time."""

    index: int
    title: str
    meaning: str
    share: float
    text: str


def build_tiles(summary: Summary) -> list[Tile]:
    """The numbers that a person looks for first."""
    if summary.output is not None:
        return _build_output_tiles(summary, summary.output)
    first_batch, phases = summary.throughput.seconds_to_first_batch, summary.run.phases
    return [
        *_build_throughput_tiles(summary),
        *_build_metric_tiles(summary.training.metrics),
        _build_wait_tile(summary.time_shares),
        Tile(
            title="First batch after",
            value=NOTHING if first_batch is None else format_duration(first_batch),
            exact=""
            if first_batch is None
            else describe_phases(phase for phase in phases if phase.name not in _LATE_PHASES),
        ),
        Tile(
            title="Duration",
            value=format_duration(summary.run.seconds),
            exact=describe_phases(phase for phase in phases if phase.name in _LATE_PHASES),
        ),
    ]


def describe_phases(phases: Iterable[Phase]) -> str:
    """Return phases with their durations."""
    return ", ".join(f"{phase.name} {format_duration(phase.seconds)}" for phase in phases)


def _build_output_tiles(summary: Summary, output: Written) -> list[Tile]:
    short, exact = format_short(output.rows), format_count(output.rows)
    speed = summary.throughput.rows_per_second
    return [
        Tile(title="Rows written", value=short, exact=exact if exact != short else ""),
        Tile(title="Files", value=format_count(output.files)),
        Tile(title="Size", value=format_bytes(output.bytes)),
        Tile(title="Speed", value=format_rate(speed) if speed else NOTHING, exact="rows read"),
        Tile(title="Duration", value=format_duration(summary.run.seconds)),
    ]


def _build_throughput_tiles(summary: Summary) -> list[Tile]:
    samples, speed = summary.training.samples, summary.throughput
    if not samples:
        return [Tile(title="Samples trained", value="0"), Tile(title="Speed", value=NOTHING)]
    short, exact = format_short(samples), format_count(samples)
    return [
        Tile(title="Samples trained", value=short, exact=exact if exact != short else ""),
        Tile(
            title="Speed",
            value=format_rate(speed.samples_per_second),
            exact=f"samples; {format_rate(speed.rows_per_second)} rows read",
        ),
    ]


def _build_wait_tile(shares: TimeShares) -> Tile:
    if shares == TimeShares():
        return Tile(title="Trainer waited", value=NOTHING)
    return Tile(
        title="Trainer waited", value=format_percent(shares.waited), exact="of its time, for data"
    )


def _build_metric_tiles(metrics: dict[str, float]) -> list[Tile]:
    names = sorted(metrics, key=rank_metric)[:MAX_HEADLINE_METRICS]
    return [Tile(title=f"Final {name}", value=format_metric(metrics[name])) for name in names]


def rank_metric(name: str) -> int:
    """Place of a metric in the headline: quality before loss before everything else."""
    matches = (i for i, word in enumerate(_HEADLINE_WORDS) if word in name.lower())
    return next(matches, len(_HEADLINE_WORDS))


def build_funnel(steps: Sequence[StepFlow]) -> list[FunnelRow]:
    """Each step with what it kept of its input, and of what was read at the start."""
    widest = max((flow.rows_out for flow in steps), default=0)
    first = steps[0].rows_out if steps else 0
    return [
        FunnelRow(
            flow=flow,
            width_percent=100 * flow.rows_out / widest if widest else 0,
            kept=_format_kept(flow.rows_out, flow.rows_in),
            kept_of_all=_format_kept(flow.rows_out, first),
        )
        for flow in steps
    ]


def _format_kept(rows_out: int, rows_in: int) -> str:
    return format_percent(rows_out / rows_in) if rows_in else NOTHING


def build_stage_shares(shares: TimeShares) -> list[StageShare]:
    """The trainer's time by stage, in stacking order; empty when it never started."""
    if shares == TimeShares():
        return []
    values = [getattr(shares, name) for name, _, _ in STAGES]
    return [
        StageShare(
            index=index, title=title, meaning=meaning, share=share, text=format_percent(share)
        )
        for index, ((_, title, meaning), share) in enumerate(zip(STAGES, values, strict=True))
    ]


def list_evaluation_metrics(evaluations: Sequence[Evaluation]) -> list[str]:
    """Names of all metrics that any evaluation has, in order of first appearance."""
    return list(dict.fromkeys(name for entry in evaluations for name in entry.metrics))
