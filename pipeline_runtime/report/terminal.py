"""The summary as a person sees it at the end of a run, in the terminal.

Owned here: the tables of `lastmile run` and of `lastmile report`. On a terminal they have boxes and
colours; in a pipe or a log file plain columns; where the encoding has no more, plain ASCII.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from pipeline_runtime.formatting import (
    format_bytes,
    format_count,
    format_duration,
)
from pipeline_runtime.report import view
from pipeline_runtime.report.drawing.painter import Justify, Painter
from pipeline_runtime.report.files.summary import StepFlow, Summary
from pipeline_runtime.report.measures import build_measure_rows

_OUTCOME_STYLES = {"Complete": "bold green", "Failed": "bold red", "Interrupted": "bold yellow"}

_COLUMNS: Mapping[str, Justify] = {
    "step": "left",
    "rows in": "right",
    "rows out": "right",
    "kept": "right",
    "bytes out": "right",
    "time": "right",
}
# On a narrow terminal fewer columns are better than folded numbers.
_NARROW_COLUMNS = ("step", "rows out", "kept")
_MAX_NAMES = 4  # of partitions
_MAX_MEASURES = 20
_WIDE_CELLS = 80


def print_summary(console: Console, summary: Summary) -> None:
    """Print outcome, headline numbers, rows through each step and where the time went."""
    painter = _SummaryPainter(console)
    painter.print_outcome(summary)
    painter.print_headline(summary)
    painter.print_funnel("Rows" if summary.output else "Rows, training", summary.steps)
    painter.print_funnel("Rows, evaluation", summary.evaluation_steps)
    painter.print_measures(summary)
    painter.print_shares(summary)
    for warning in summary.warnings:
        painter.print_line("warning: ", "yellow", warning)


def _list_cells(row: view.FunnelRow) -> dict[str, str]:
    flow = row.flow
    return {
        "step": f"{flow.index}. {flow.kind}",
        "rows in": format_count(flow.rows_in),
        "rows out": format_count(flow.rows_out),
        "kept": row.kept,
        "bytes out": format_bytes(flow.bytes_out),
        "time": format_duration(flow.seconds),
    }


def _list_names(names: Sequence[str]) -> str:
    """Return a few of the names, and the number of all."""
    more = ", …" if len(names) > _MAX_NAMES else ""
    shown = f": {', '.join(names[:_MAX_NAMES])}{more}" if names else ""
    return f"{len(names):,}{shown}"


class _SummaryPainter(Painter):
    """A summary, part by part."""

    def print_outcome(self, summary: Summary) -> None:
        run = summary.run
        self.print_line(f"{run.outcome}: ", _OUTCOME_STYLES[run.outcome], summary.experiment.name)
        if run.error:
            self.console.print(self.text(run.error, "red"), soft_wrap=True)

    def print_headline(self, summary: Summary) -> None:
        table = self.table("Summary", ("", "left"), ("", "left"), shows_header=False)
        for tile in view.build_tiles(summary):
            value = f"{tile.value} ({tile.exact})" if tile.exact else tile.value
            table.add_row(self.text(tile.title), self.text(value, "bold"))
        if summary.output:
            table.add_row(self.text("Table"), self.text(summary.output.uri))
            if summary.output.replaced:
                table.add_row(self.text("Replaced"), self.text(summary.output.replaced))
            for title, names in (
                ("Partitions written", summary.output.written_partitions),
                ("Complete before", summary.output.complete_partitions),
            ):
                if names is not None:
                    table.add_row(self.text(title), self.text(_list_names(names)))
        for pin in summary.snapshots:
            table.add_row(self.text("Read"), self.text(pin.describe()))
        for model in summary.models:
            table.add_row(self.text("Model"), self.text(model.describe()))
        if summary.materialization:
            table.add_row(self.text("Kept rows"), self.text(summary.materialization.describe()))
        for group in summary.inference:
            table.add_row(self.text("Inference workers"), self.text(group.describe()))
        if summary.checkpoints.last:
            table.add_row(self.text("Last checkpoint"), self.text(summary.checkpoints.last))
        self.console.print(table)

    def print_funnel(self, title: str, steps: Sequence[StepFlow]) -> None:
        if not steps:
            return
        rows = [_list_cells(row) for row in view.build_funnel(steps)]
        columns = _COLUMNS if self.console.width >= _WIDE_CELLS else _NARROW_COLUMNS
        table = self.table(title, *((name, _COLUMNS[name]) for name in columns))
        for row in rows:
            table.add_row(*(self.text(row[name]) for name in columns))
        self.console.print(table)

    def print_measures(self, summary: Summary) -> None:
        rows = build_measure_rows(summary.measures)
        if not rows:
            return
        table = self.table(
            "Measures", ("metric", "left"), ("kind", "left"), ("value", "right"), ("rows", "right")
        )
        for row in rows[:_MAX_MEASURES]:
            table.add_row(*map(self.text, (row.name, row.kind, row.value, row.rows)))
        self.console.print(table)
        if len(rows) > _MAX_MEASURES:
            self.print_line("", "", f"and {len(rows) - _MAX_MEASURES} more in measures.json")

    def print_shares(self, summary: Summary) -> None:
        shares = view.build_stage_shares(summary.time_shares)
        if not shares:
            return
        table = self.table("Trainer's time", ("stage", "left"), ("share", "right"), ("", "left"))
        for part in shares:
            bar = self.bar(part.share)
            table.add_row(self.text(part.title), self.text(part.text), bar)
        self.console.print(table)
