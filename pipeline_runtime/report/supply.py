"""The section that shows how well data workers kept up with the trainers over time.

This module owns the section's chart «Over time», its text, and the table of the autoscaler's
decisions. It reads `files.metrics_history` and `files.autoscaler_decisions`; `html` calls it.
Without an autoscaler, as on a laptop, the section shows the waits and the readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline_runtime.formatting import NOTHING, format_count, format_duration, format_percent
from pipeline_runtime.report.drawing.series import Floats, Series, select_series
from pipeline_runtime.report.drawing.supply_figure import (
    BUSY,
    DECIDED,
    GPUS,
    WAITS,
    WORKERS,
    Marker,
    SupplyPlot,
    draw_supply,
)
from pipeline_runtime.report.files.autoscaler_decisions import ScalingDecision

# Names of the history, as `run.supply` writes them.
CLOCK = "unix_seconds"
SUPPLY_NAMES = frozenset({CLOCK, "wait_share", "busy_share", "readers", "data_workers"})
# Nobody reads a longer table; the files have all decisions.
MAX_ROWS = 50
_MAX_SAID = 5
_NAME = "supply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An entry of the legend."""

    color: str  # a variable of the page's CSS
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """One row of the table; `after` is the time since the training began."""

    after: str
    change: str
    gpus: str
    waits: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The section. `svg` is safe; the page escapes all other texts."""

    said: str
    svg: str
    keys: tuple[Key, ...]
    rows: tuple[DecisionRow, ...]
    num_hidden: int


def build_supply(
    history: pa.Table, decisions: Sequence[ScalingDecision], waited: float
) -> Supply | None:
    """Build the section; return None if the history has no waits.

    Args:
        waited: share of their time that trainers waited for data (`TimeShares.waited`).
    """
    waits = select_series(history, "wait_share")
    if len(waits.values_N) < 2:
        return None
    clock = select_series(history, CLOCK)
    markers = _place(decisions, clock)
    busy = select_series(history, "busy_share")
    workers, what = _choose_workers(history, decisions)
    plot = SupplyPlot(
        name=_NAME,
        label=_describe(waits, busy, workers, what, markers),
        waits=waits,
        busy=busy,
        workers=workers,
        what=what,
        markers=markers,
    )
    shown = markers[-MAX_ROWS:]
    return Supply(
        said=_say(waited, workers, what, len(markers)),
        svg=draw_supply(plot),
        keys=tuple(_list_keys(plot)),
        rows=tuple(map(_build_row, shown)),
        num_hidden=len(markers) - len(shown),
    )


def _choose_workers(history: pa.Table, decisions: Sequence[ScalingDecision]) -> tuple[Series, str]:
    """Choose data workers if there can be several; else the readers of the one machine."""
    workers = select_series(history, "data_workers")
    if decisions or (len(workers.values_N) and workers.values_N.max() > 1):
        return workers, "data workers"
    return select_series(history, "readers"), "readers"


def _place(decisions: Sequence[ScalingDecision], clock: Series) -> tuple[Marker, ...]:
    """Place decisions on the history's axis, which leaves out pauses between attempts."""
    if not len(clock.values_N):
        return ()
    # Interpolation needs rising values, even if the clock was set back.
    known: Floats = np.maximum.accumulate(clock.values_N)
    return tuple(
        Marker(
            seconds=float(np.interp(decision.time.timestamp(), known, clock.seconds_N)),
            decision=decision,
        )
        for decision in decisions
    )


def _build_row(marker: Marker) -> DecisionRow:
    decision = marker.decision
    return DecisionRow(
        after=format_duration(marker.seconds),
        change=_change(decision),
        gpus=_share(decision, "gpuUtilization"),
        waits=_share(decision, "productionShare"),
        reason=decision.reason,
        message=decision.message,
    )


def _change(decision: ScalingDecision) -> str:
    return f"{decision.before} → {decision.after}"


def _share(decision: ScalingDecision, name: str) -> str:
    return format_percent(decision.inputs[name]) if name in decision.inputs else NOTHING


def _say(waited: float, workers: Series, what: str, num_decisions: int) -> str:
    """Return the section in a sentence or two."""
    text = f"Trainers waited for data {format_percent(waited)} of their time."
    values = workers.values_N
    if len(values):
        least, most = int(values.min()), int(values.max())
        number = f"{least}" if least == most else f"{least} to {most}"
        text += f" {number} {what} served them."
    if num_decisions:
        times = "once" if num_decisions == 1 else f"{format_count(num_decisions)} times"
        text += f" The autoscaler changed the number {times}."
    return text


def _describe(
    waits: Series, busy: Series, workers: Series, what: str, markers: Sequence[Marker]
) -> str:
    """Describe the chart for screen readers."""
    parts = [f"trainers waited for data {_range_of(waits)} of their time"]
    if len(busy.values_N):
        parts.append(f"were busy {_range_of(busy)}")
    if len(workers.values_N):
        first, last = int(workers.values_N[0]), int(workers.values_N[-1])
        parts.append(f"{what} from {first} to {last}")
    said = [f"{_change(m.decision)} after {format_duration(m.seconds)}" for m in markers]
    if said:
        more = f" and {len(said) - _MAX_SAID} more" if len(said) > _MAX_SAID else ""
        parts.append(f"decisions: {', '.join(said[:_MAX_SAID])}{more}")
    return f"GPUs, waits and {what} over time: {'; '.join(parts)}"


def _range_of(series: Series) -> str:
    lowest, highest = float(series.values_N.min()), float(series.values_N.max())
    return f"{format_percent(lowest)} to {format_percent(highest)}"


def _list_keys(plot: SupplyPlot) -> Iterator[Key]:
    if len(plot.busy.values_N):
        yield Key(color=BUSY, text="trainers busy")
    yield Key(color=WAITS, text="trainers waiting for data")
    if plot.gpu_points:
        yield Key(color=GPUS, text="GPU utilisation, as decided on")
    if len(plot.workers.values_N):
        yield Key(color=WORKERS, text=plot.what)
    if plot.markers:
        yield Key(color=DECIDED, text="asked for")
