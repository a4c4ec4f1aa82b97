"""Reads the progress of the run from the metrics that the driver serves on the head.

The pod runs a user's code, so unexpected names are skipped, impossible numbers count as unknown,
and the number of the user's own metrics is bounded.
"""

from __future__ import annotations

import sys
from itertools import chain, islice
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dataset_operator.api import RUNTIME_METRICS_PORT
from dataset_operator.errors import RayUnreachable
from dataset_operator.observed import OUTPUT_PHASES, Progress, WrittenTable
from dataset_operator.ray.inference_reports import INFERENCE_NAMES, parse_inference
from dataset_operator.ray.scaling_signals import parse_scaling
from dataset_operator.ray.table_reports import MAX_COUNT, TABLE_NAMES, parse_tables
from dataset_operator.ray.transport import Endpoint, Request
from pipeline_runtime.config import (
    MAX_INFERENCE_GROUPS,
    MAX_SAFE_INTEGER,
    MAX_STATUS_SNAPSHOTS,
)

# Shorter than for other requests, since a pass can do without these metrics.
SCRAPE_SECONDS = 3.0
# `status.trainer.metrics` in the CRD.
MAX_METRICS = 16
MAX_METRIC_NAME_CHARS = 64
# No real rate or remaining time is larger; the CRD's integers end at 2⁶³.
_MAX_AMOUNT = 1e12
_MAX_METRIC = sys.float_info.max  # neither infinite nor not a number
_TRAINING_METRIC = "lastmile_training_metric"
_RATIOS = {
    "lastmile_progress_ratio": "ratio",
    "lastmile_read_ratio": "read_ratio",
    "lastmile_production_wait_ratio": "production_wait_ratio",
    "lastmile_gpu_utilization_ratio": "gpu_utilization_ratio",
    "lastmile_trainer_busy_ratio": "busy_ratio",
}
_AMOUNTS = {
    "lastmile_estimated_remaining_seconds": "remaining_seconds",
    "lastmile_samples_per_second": "samples_per_second",
    "lastmile_output_rows_per_second": "samples_per_second",
}
_TABLE = {
    "lastmile_output_rows": "rows",
    "lastmile_output_files": "files",
    "lastmile_output_bytes": "num_bytes",
    "lastmile_output_partitions": "partitions",
    "lastmile_output_complete_partitions": "complete_partitions",
}
# 32-bit integers in the CRD.
_MAX_OF = dict.fromkeys(
    ("lastmile_output_partitions", "lastmile_output_complete_partitions"), MAX_COUNT
)
_OUTPUT_PHASE = "lastmile_output_phase"
_CPU_RANKS = "lastmile_cpu_ranks"
_DAMAGED_CHECKPOINTS = "lastmile_damaged_checkpoints"
_MAX_DAMAGED = 1000  # training.checkpoint.keep, in the CRD
_MAX_RANKS = 1024 * 16  # trainers and GPUs of each, in the CRD
# The names read here; `scaling_signals` reads the counters for scaling.
NAMES = (
    *(*_RATIOS, *_AMOUNTS, *_TABLE),
    *(_OUTPUT_PHASE, _CPU_RANKS, _DAMAGED_CHECKPOINTS, _TRAINING_METRIC, *TABLE_NAMES),
    *INFERENCE_NAMES,
)
_MAX_GROUP_LINES = MAX_INFERENCE_GROUPS * len(INFERENCE_NAMES)
# An honest page has one line for each; allow twice as many.
_MAX_LINES = 2 * (
    len(NAMES) + len(OUTPUT_PHASES) + MAX_METRICS + MAX_STATUS_SNAPSHOTS + _MAX_GROUP_LINES
)
_MAX_LINE_CHARS = 1024  # the name of a table has at most 512


async def read_progress(endpoint: Endpoint) -> Progress | None:
    """Fetch the driver's metrics; None if they show no progress.

    Raises:
        RayUnreachable: the driver does not answer, as before and after the run.
    """
    request = Request(
        method="GET", port=RUNTIME_METRICS_PORT, path="/metrics", seconds=SCRAPE_SECONDS
    )
    answer = await endpoint.send(request)
    if answer.status != 200:
        raise RayUnreachable(f"{request}: HTTP {answer.status}: {answer.text}")
    return parse_progress(answer.content.decode(errors="replace"))


def parse_progress(text: str) -> Progress | None:
    """Parse a page in Prometheus' text format; None if it contains no progress."""
    ours = (line for line in text.splitlines() if line.startswith(NAMES))
    lines = (line for line in ours if len(line) <= _MAX_LINE_CHARS)
    known: dict[str, float] = {}
    counts: dict[str, int] = {}
    metrics: dict[str, float] = {}
    table: dict[str, Any] = {}
    reports: list[Sample] = []
    groups: list[Sample] = []
    for sample in chain.from_iterable(map(_parse, islice(lines, _MAX_LINES))):
        name, value = sample.name, sample.value
        if name in _RATIOS and 0.0 <= value <= 1.0:
            known[_RATIOS[name]] = float(value)
        elif name in _AMOUNTS and 0.0 <= value <= _MAX_AMOUNT:
            known[_AMOUNTS[name]] = float(value)
        elif name == _CPU_RANKS and 0.0 <= value <= _MAX_RANKS:
            counts["cpu_ranks"] = int(value)
        elif name == _DAMAGED_CHECKPOINTS and 0.0 <= value <= _MAX_DAMAGED:
            counts["damaged_checkpoints"] = int(value)
        elif name in _TABLE and 0.0 <= value <= _MAX_OF.get(name, MAX_SAFE_INTEGER):
            table[_TABLE[name]] = int(value)
        elif name == _OUTPUT_PHASE and value == 1.0:
            table |= _name_phase(sample.labels.get("phase", ""))
        elif name == _TRAINING_METRIC and abs(value) <= _MAX_METRIC and len(metrics) < MAX_METRICS:
            metrics |= _name_metric(sample.labels.get("name", ""), value)
        elif name in TABLE_NAMES:
            reports.append(sample)
        elif name in INFERENCE_NAMES:
            groups.append(sample)
    counters = parse_scaling(text)
    progress = Progress(
        **known,
        cpu_ranks=counts.get("cpu_ranks"),
        damaged_checkpoints=counts.get("damaged_checkpoints", 0),
        metrics=metrics,
        table=WrittenTable(**table) if table else None,
        tables=parse_tables(reports),
        counters=counters,
        inference=parse_inference(groups),
    )
    return None if progress == Progress() else progress


def _parse(line: str) -> list[Sample]:
    """Return the samples of a line; none if it cannot be parsed."""
    try:
        return [s for family in text_string_to_metric_families(line) for s in family.samples]
    except (ValueError, KeyError, IndexError):  # the parser does not document its errors
        return []


def _name_phase(phase: str) -> dict[str, str]:
    return {"phase": phase} if phase in OUTPUT_PHASES else {}


def _name_metric(name: str, value: float) -> dict[str, float]:
    return {name: float(value)} if 0 < len(name) <= MAX_METRIC_NAME_CHARS else {}
