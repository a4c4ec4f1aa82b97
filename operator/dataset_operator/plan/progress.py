"""Writes the progress of the run to the status, rounded and at most every 30 seconds.

Every client that watches experiments receives every write. So a running attempt is written at most
that often, and only if a displayed value has changed.
"""

from __future__ import annotations

import json
import math
from typing import TypeVar

from dataset_operator.observed import CatalogTables, Job, Progress, WrittenTable
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import NOTHING, Verdict, change, look_again
from pipeline_runtime.config import (
    MetricStatus,
    ModelStatus,
    OutputStatus,
    SnapshotStatus,
    StatusModel,
    TrainerStatus,
)
from pipeline_runtime.formatting import format_age_seconds

M = TypeVar("M", bound=StatusModel)
UPDATE_SECONDS = 30.0
# While the job runs: the last evaluation and checkpoint follow after the last row.
_MOST_PERCENT = 99
# Enough for a person; with more digits, the value would change in every pass.
_RATE_DIGITS = 3
_METRIC_DIGITS = 6
# Of a status, which is bounded; enough for 8 snapshots and 4 models with usual names.
MAX_SOURCES_BYTES = 2 << 10
# Below this, a number that `g` formats with an exponent is written without one.
_MAX_PLAIN = 1e15


def record_progress(situation: Situation, job: Job) -> Verdict:
    """Record the progress that the driver reports; a job that succeeded is at 100 %."""
    progress, status = situation.observed.progress, situation.status
    before = status.trainer or TrainerStatus()
    if job.status == "SUCCEEDED":
        known = TrainerStatus(progress_percent=100).change(**_remain(0))
        table, tables = job.table, job.tables
    elif progress is None:
        return NOTHING
    elif (left := _find_pause(situation, before)) > 0:
        return look_again(left)
    else:
        known, table, tables = build_trainer(progress), progress.table, progress.tables
    trainer, output = _update(before, known), status.output
    if situation.is_writing:
        trainer = trainer.change(production_wait_percent=None)  # its driver always waits for rows
        if table is not None and table.phase != "Spooling":
            trainer = trainer.change(samples_per_second=None)  # of the spool
        if table is not None:
            output = _update(output or OutputStatus(), build_output(table))
    recorded = change(output=output) + _record_tables(tables)
    if trainer == before and situation.after(recorded).status == status:
        return recorded
    return recorded + change(trainer=trainer.change(last_update_time=situation.stamp))


def _find_pause(situation: Situation, before: TrainerStatus) -> float:
    """Return the seconds until the next write is due; not positive if it is."""
    written = before.last_update_time
    return situation.until(written, UPDATE_SECONDS) if written else 0.0


def _update(before: M, known: M) -> M:
    """Return a part of the status with the values that are known now."""
    values = {name: getattr(known, name) for name in known.model_fields_set}
    return before.change(**{name: value for name, value in values.items() if value is not None})


def build_trainer(progress: Progress) -> TrainerStatus:
    """Build `status.trainer` from the known values: integers, and decimals as strings."""
    ratio, seconds, rate = progress.ratio, progress.remaining_seconds, progress.samples_per_second
    metrics = tuple(
        MetricStatus(name=name, value=format_decimal(value, _METRIC_DIGITS))
        for name, value in sorted(progress.metrics.items())
    )
    trainer = TrainerStatus(
        progress_percent=None if ratio is None else min(_MOST_PERCENT, int(100 * ratio)),
        samples_per_second=None if rate is None else format_decimal(rate, _RATE_DIGITS),
        production_wait_percent=_percent(progress.production_wait_ratio),
        gpu_utilization_percent=_percent(progress.gpu_utilization_ratio),
    )
    left = {} if seconds is None else _remain(math.ceil(seconds))
    return trainer.change(metrics=metrics or None, **left)


def _remain(seconds: int) -> dict[str, int | str]:
    """Return the fields with the time until the end."""
    text = format_age_seconds(seconds)
    return {"estimated_remaining_seconds": seconds, "estimated_remaining": text}


def build_output(table: WrittenTable) -> OutputStatus:
    """Build `status.output` from the known values."""
    return OutputStatus().change(
        rows=table.rows,
        files=table.files,
        bytes=table.num_bytes,
        partitions=table.partitions,
        complete_partitions=table.complete_partitions,
        snapshot_id=table.snapshot_id,
    )


def _record_tables(tables: CatalogTables) -> Verdict:
    """Record the Iceberg tables and models, those of them that are known."""
    kept: list[SnapshotStatus | ModelStatus] = []
    room = MAX_SOURCES_BYTES
    sources: tuple[SnapshotStatus | ModelStatus, ...] = (*tables.snapshots, *tables.models)
    for source in sources:
        room -= len(json.dumps(source.to_document(), ensure_ascii=False).encode())
        kept += [source] if room >= 0 else []
    verdict = NOTHING
    if snapshots := tuple(each for each in kept if isinstance(each, SnapshotStatus)):
        verdict += change(snapshots=snapshots)
    if models := tuple(each for each in kept if isinstance(each, ModelStatus)):
        verdict += change(models=models)
    if tables.materialization is not None:
        verdict += change(materialization=tables.materialization)
    return verdict


def _percent(ratio: float | None) -> int | None:
    return None if ratio is None else round(100 * ratio)


def format_decimal(value: float, digits: int) -> str:
    """Format a finite number as a decimal string with the given number of significant digits."""
    text = f"{value:.{digits}g}"
    is_plain = "e+" in text and abs(value) < _MAX_PLAIN
    return f"{float(text):.0f}" if is_plain else text
