"""The parts of a run's report: summary, metrics history, HTML report, terminal table."""

from __future__ import annotations

from pathlib import Path

from pipeline_runtime.report.files.inference_groups import InferenceGroup
from pipeline_runtime.report.files.metrics_history import HISTORY_NAMES, HistoryWriter, read_history
from pipeline_runtime.report.files.summary import (
    Checkpoints,
    Checksum,
    DatasetRead,
    Evaluation,
    ExperimentName,
    Machine,
    Materialized,
    Order,
    Phase,
    ResumedFrom,
    Run,
    Seeds,
    StepFlow,
    Summary,
    Throughput,
    TimeShares,
    Training,
    Versions,
    Written,
    load_summary,
    write_summary,
)
from pipeline_runtime.report.terminal import print_summary

__all__ = [
    "HISTORY_NAMES",
    "Checkpoints",
    "Checksum",
    "DatasetRead",
    "Evaluation",
    "ExperimentName",
    "HistoryWriter",
    "InferenceGroup",
    "Machine",
    "Materialized",
    "Order",
    "Phase",
    "ResumedFrom",
    "Run",
    "Seeds",
    "StepFlow",
    "Summary",
    "Throughput",
    "TimeShares",
    "Training",
    "Versions",
    "Written",
    "build_report",
    "load_summary",
    "print_summary",
    "read_history",
    "write_summary",
]


def build_report(directory: Path) -> Path:
    """Write `report.html` into `directory` from what lies there; see `html.build_report`."""
    # Matplotlib takes half a second to import, which those who only append metrics should not pay.
    from pipeline_runtime.report import html

    return html.build_report(directory)
