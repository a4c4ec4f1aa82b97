"""Parses the counters that the autoscaler reads from the metrics page of the driver.

The page comes from a pod that runs a user's code, so it may contain anything. Unexpected lines are
skipped, an impossible value makes its counter unknown, and so does a missing one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dataset_operator.autoscaling.signals import (
    Counters,
    StepTotals,
    TrainerCounters,
    WorkerCounters,
)

# The prefix of all names that are read here.
PREFIX = "lastmile_run_"
_STAGES = {
    "production": "production",
    "transfer": "transfer",
    "batching": "batching",
    "collate": "collate",
}
_STATES = ("read", "compute", "blocked_output", "idle")
# More lines than the names have; a page has one line for each, and three about it.
_MAX_LINES = 64
_MAX_LINE_CHARS = 256
# No counter reaches this value.
_MAX_VALUE = 1e18


def parse_scaling(text: str) -> Counters:
    """Return the counters of a page in Prometheus' text format; raise no error, whatever it is."""
    values: dict[tuple[str, str], float] = {}
    for sample in _read(text):
        key = (sample.name.removeprefix(PREFIX), "".join(sample.labels.values()))
        is_sound = math.isfinite(sample.value) and 0.0 <= sample.value <= _MAX_VALUE
        if key in values or not is_sound:
            values[key] = math.nan  # reported twice, or nonsense
        else:
            values[key] = float(sample.value)
    known = {key: value for key, value in values.items() if not math.isnan(value)}
    return Counters(
        trainer=_build_trainer(known),
        workers=_build_workers(known),
        data_workers=known.get(("data_workers", "")),
        readers=known.get(("readers", "")),
    )


def _read(text: str) -> Iterator[Sample]:
    ours = (line for line in text.splitlines() if line.startswith(PREFIX))
    short = (line for line in ours if len(line) <= _MAX_LINE_CHARS)
    for line in islice(short, _MAX_LINES):
        try:
            for family in text_string_to_metric_families(line):
                yield from family.samples
        except (ValueError, KeyError, IndexError):  # the parser does not document its errors
            continue


def _build_trainer(known: dict[tuple[str, str], float]) -> TrainerCounters | None:
    waits = {stage: known.get(("wait_seconds_total", name)) for name, stage in _STAGES.items()}
    rows, steps = known.get(("rows_total", "")), known.get(("steps_total", ""))
    loop, production = known.get(("loop_seconds_total", "")), waits.pop("production")
    if rows is None or steps is None or loop is None or production is None:
        return None
    return TrainerCounters(
        rows=rows,
        steps=steps,
        loop_seconds=loop,
        production_seconds=production,
        waits={stage: seconds for stage, seconds in waits.items() if seconds is not None},
        clock=_build_clock(known),
    )


def _build_clock(known: dict[tuple[str, str], float]) -> StepTotals | None:
    steps = known.get(("finished_steps_total", ""))
    rows = known.get(("finished_rows_total", ""))
    seconds = known.get(("finished_seconds_total", ""))
    if steps is None or rows is None or seconds is None:
        return None  # a driver of an earlier version, or a job with `output`
    return StepTotals(steps=steps, rows=rows, seconds=seconds)


def _build_workers(known: dict[tuple[str, str], float]) -> WorkerCounters | None:
    seconds = [known.get(("worker_seconds_total", state)) for state in _STATES]
    rows = known.get(("worker_rows_total", ""))
    read, compute, blocked, idle = seconds
    if rows is None or read is None or compute is None or blocked is None or idle is None:
        return None
    return WorkerCounters(
        rows=rows,
        read_seconds=read,
        compute_seconds=compute,
        blocked_seconds=blocked,
        idle_seconds=idle,
        # A driver of an earlier version counts these waits as compute.
        inference_seconds=known.get(("worker_seconds_total", "inference"), 0.0),
    )
