"""The report page of a run, `report.html`: a single file that needs no network.

This module reads the run's directory and renders the template. It runs last, after the summary and
the history are written; `lastmile report DIR` runs it again at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from jinja2 import Environment
from markupsafe import Markup

from pipeline_runtime import formatting
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.files import read_regular, write_atomically
from pipeline_runtime.report import charts, measure_curves, measures, supply, view
from pipeline_runtime.report.files.autoscaler_decisions import ScalingDecision, load_decisions
from pipeline_runtime.report.files.measures_file import MeasureResult, load_measures
from pipeline_runtime.report.files.metrics_history import HISTORY_SCHEMA, read_history
from pipeline_runtime.report.files.plan_file import PlanFile, load_plan
from pipeline_runtime.report.files.summary import Summary, load_summary
from pipeline_runtime.report.templating import build_environment

REPORT_FILE = "report.html"
MANIFEST_FILE = "manifest.yaml"

_TEMPLATE = "report.html.j2"

_T = TypeVar("_T")


def build_report(directory: Path) -> Path:
    """Write `report.html` from the files in `directory`, and return its path.

    `summary.json` must exist. The page says if `metrics.parquet`, `plan.json` or `manifest.yaml`
    is missing; `decisions/` and `measures.json` are optional. A broken file becomes a warning on
    the page, since a report matters most after a failed run.

    Raises:
        LastmileError: the summary is missing or broken.
    """
    directory = Path(directory)
    summary = load_summary(directory)
    problems: list[str] = []
    inputs = _Inputs(
        summary=summary,
        history=_load_or(HISTORY_SCHEMA.empty_table(), read_history, directory, problems),
        plan=_load_or(None, load_plan, directory, problems),
        decisions=_load_or([], load_decisions, directory, problems),
        measures=_load_or((), _load_measures, directory, problems),
        manifest=_read_manifest(directory),
        warnings=(*summary.warnings, *problems),
    )
    page = _build_environment().get_template(_TEMPLATE).render(_build_context(inputs))
    path = directory / REPORT_FILE
    write_atomically(path, page)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """The parsed files of the directory."""

    summary: Summary
    history: pa.Table
    plan: PlanFile | None
    decisions: Sequence[ScalingDecision]
    measures: Sequence[MeasureResult]
    manifest: str
    warnings: tuple[str, ...]


def _load_or(default: _T, load: Callable[[Path], _T], directory: Path, problems: list[str]) -> _T:
    """Return the result of `load`; if the file is broken, the default, and record the problem."""
    try:
        return load(directory)
    except LastmileError as error:
        problems.append(str(error))
        return default


def _load_measures(directory: Path) -> Sequence[MeasureResult]:
    return load_measures(directory).measures


def _build_context(inputs: _Inputs) -> dict[str, object]:
    summary, history = inputs.summary, inputs.history
    figures = charts.build_metric_charts(history)
    return {
        "summary": summary,
        "plan": inputs.plan,
        "warnings": inputs.warnings,
        "manifest": inputs.manifest,
        "tiles": view.build_tiles(summary),
        "stages": view.build_stage_shares(summary.time_shares),
        "stack": charts.build_stack_chart(history),
        "metric_charts": figures[: charts.MAX_CHARTS],
        "num_hidden_charts": max(0, len(figures) - charts.MAX_CHARTS),
        "time_charts": charts.build_time_charts(history),
        "supply": supply.build_supply(history, inputs.decisions, summary.time_shares.waited),
        "metric_rows": charts.build_metric_rows(history),
        "measures": measures.build_measure_rows(summary.measures),
        "measure_tables": measures.build_measure_tables(inputs.measures),
        "measure_curves": measure_curves.build_measure_curves(inputs.measures),
        "evaluation_metrics": view.list_evaluation_metrics(summary.training.evaluations),
        "funnels": [
            ("Output" if summary.output else "Training", view.build_funnel(summary.steps)),
            ("Evaluation", view.build_funnel(summary.evaluation_steps)),
        ],
    }


def _read_manifest(directory: Path) -> str:
    path = directory / MANIFEST_FILE
    # A stray byte in a file that the page only shows must not prevent the report.
    return read_regular(path).decode(errors="replace") if path.exists() else ""


def _build_environment() -> Environment:
    environment = build_environment()
    environment.filters |= {
        "count": formatting.format_count,
        "short": formatting.format_short,
        "rate": formatting.format_rate,
        "size": formatting.format_bytes,
        "percent": formatting.format_percent,
        "duration": formatting.format_duration,
        "metric": formatting.format_metric,
        # Only for SVG from `curves`, which escapes the one text in it that comes from the user.
        "drawn": Markup,
    }
    return environment
