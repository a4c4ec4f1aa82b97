"""Writes the progress of the run to the status, rounded and at most every 30 seconds.

Every client that watches experiments receives every write. So a running attempt is written at most
that often, and only if a displayed value has changed.
"""

from __future__ import annotations

import json
import math
from typing import Any

from dataset_operator.documents import parse_time
from dataset_operator.observed import CatalogTables, Job, Progress, WrittenTable
from dataset_operator.plan.draft import Draft
from pipeline_runtime.config import MaterializationStatus, SnapshotStatus

UPDATE_SECONDS = 30.0
# While the job runs: the last evaluation and checkpoint follow after the last row.
_MOST_PERCENT = 99
# Enough for a person; with more digits, the value would change in every pass.
_RATE_DIGITS = 3
_METRIC_DIGITS = 6
# Of a status, which is bounded; enough for 16 snapshots of tables with usual names.
MAX_SNAPSHOTS_BYTES = 2 << 10
# Below this, a number that `g` formats with an exponent is written without one.
_MAX_PLAIN = 1e15


def take_progress(draft: Draft, job: Job) -> None:
    """Record the progress that the driver reports; a job that succeeded is at 100 %."""
    before = dict(draft.status)
    trainer, output = draft.status.get("trainer", {}), draft.status.get("output", {})
    progress = draft.observed.progress
    if job.status == "SUCCEEDED":
        known: dict[str, Any] = {"progressPercent": 100, "estimatedRemainingSeconds": 0}
        table, tables = job.table, job.tables
    elif progress is not None and _is_time(draft, trainer):
        known, table, tables = build_trainer(progress), progress.table, progress.tables
    else:
        return
    draft.status |= build_tables(tables)
    shown = trainer | known
    if draft.is_writing:
        shown.pop("productionWaitPercent", None)  # its driver always waits for rows
        if table is not None and table.phase != "Spooling":
            shown.pop("samplesPerSecond", None)  # of the spool
        if written := output | build_output(table):
            draft.status["output"] = written
    if shown != trainer or draft.status != before:
        draft.status["trainer"] = shown | {"lastUpdateTime": draft.stamp()}


def _is_time(draft: Draft, before: dict[str, Any]) -> bool:
    """Return whether the next write is due; if not, schedule a pass for when it is."""
    told = before.get("lastUpdateTime")
    left = draft.until(parse_time(told), UPDATE_SECONDS) if told else 0.0
    if left > 0:
        draft.look_again(left)
    return left <= 0


def build_trainer(progress: Progress) -> dict[str, Any]:
    """Build `status.trainer` from the known values: integers, and decimals as strings."""
    ratio, seconds, rate = progress.ratio, progress.remaining_seconds, progress.samples_per_second
    fields = {
        "progressPercent": None if ratio is None else min(_MOST_PERCENT, int(100 * ratio)),
        "estimatedRemainingSeconds": None if seconds is None else math.ceil(seconds),
        "samplesPerSecond": None if rate is None else format_decimal(rate, _RATE_DIGITS),
        "productionWaitPercent": _percent(progress.production_wait_ratio),
        "gpuUtilizationPercent": _percent(progress.gpu_utilization_ratio),
    }
    trainer: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if progress.metrics:
        trainer["metrics"] = [
            {"name": name, "value": format_decimal(value, _METRIC_DIGITS)}
            for name, value in sorted(progress.metrics.items())
        ]
    return trainer


def build_output(table: WrittenTable | None) -> dict[str, Any]:
    """Build `status.output` from the known values."""
    if table is None:
        return {}
    fields = {
        "rows": table.rows,
        "files": table.files,
        "bytes": table.num_bytes,
        "partitions": table.partitions,
        "completePartitions": table.complete_partitions,
        "snapshotId": table.snapshot_id,
    }
    return {name: value for name, value in fields.items() if value is not None}


def build_tables(tables: CatalogTables) -> dict[str, Any]:
    """Build `status.snapshots` and `status.materialization`, those of them that are known."""
    found: dict[str, Any] = {}
    kept, room = [], MAX_SNAPSHOTS_BYTES
    for snapshot in map(_dump, tables.snapshots):
        room -= len(json.dumps(snapshot, ensure_ascii=False).encode())
        kept += [snapshot] if room >= 0 else []
    if kept:
        found["snapshots"] = kept
    if tables.materialization is not None:
        found["materialization"] = _dump(tables.materialization)
    return found


def _dump(model: SnapshotStatus | MaterializationStatus) -> dict[str, Any]:
    return model.model_dump(by_alias=True, exclude_none=True)


def _percent(ratio: float | None) -> int | None:
    return None if ratio is None else round(100 * ratio)


def format_decimal(value: float, digits: int) -> str:
    """Format a finite number as a decimal string with the given number of significant digits."""
    text = f"{value:.{digits}g}"
    is_plain = "e+" in text and abs(value) < _MAX_PLAIN
    return f"{float(text):.0f}" if is_plain else text
