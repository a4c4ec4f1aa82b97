"""The summary as a person sees it at the end of a run, in the terminal.

Owned here: the tables of `lastmile run` and of `lastmile report`. On a terminal they have boxes and
colours; in a pipe or a log file plain columns; where the encoding has no more, plain ASCII.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline_runtime.report import view
from pipeline_runtime.report.formats import (
    NO_BREAK_SPACE,
    format_bytes,
    format_count,
    format_duration,
)
from pipeline_runtime.report.summary import StepFlow, Summary

_BAR_CELLS = 24

_Justify = Literal["left", "right"]

_OUTCOME_STYLES = {"Complete": "bold green", "Failed": "bold red", "Interrupted": "bold yellow"}

_COLUMNS: Mapping[str, _Justify] = {
    "step": "left",
    "rows in": "right",
    "rows out": "right",
    "kept": "right",
    "bytes out": "right",
    "time": "right",
}
# On a narrow terminal fewer columns are better than folded numbers.
_NARROW_COLUMNS = ("step", "rows out", "kept")
_WIDE_CELLS = 80

# What the formats use beyond ASCII, and what stands for it.
_ASCII = str.maketrans({NO_BREAK_SPACE: " ", "–": "-", "−": "-", "∞": "inf", "…": "..."})


def print_summary(console: Console, summary: Summary) -> None:
    """Print outcome, headline numbers, rows through each step and where the time went."""
    painter = _Painter(console)
    painter.print_outcome(summary)
    painter.print_headline(summary)
    painter.print_funnel("Rows, training", summary.steps)
    painter.print_funnel("Rows, evaluation", summary.evaluation_steps)
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


class _Painter:
    """One console, and what it can show."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_plain = not console.is_terminal
        self._is_ascii = console.options.ascii_only

    def print_outcome(self, summary: Summary) -> None:
        run = summary.run
        self.print_line(f"{run.outcome}: ", _OUTCOME_STYLES[run.outcome], summary.experiment.name)
        if run.error:
            self._console.print(self._text(run.error, "red"), soft_wrap=True)

    def print_headline(self, summary: Summary) -> None:
        table = self._table("Summary", ("", "left"), ("", "left"), shows_header=False)
        for tile in view.build_tiles(summary):
            value = f"{tile.value} ({tile.exact})" if tile.exact else tile.value
            table.add_row(self._text(tile.title), self._text(value, "bold"))
        if summary.checkpoints.last:
            table.add_row(self._text("Last checkpoint"), self._text(summary.checkpoints.last))
        self._console.print(table)

    def print_funnel(self, title: str, steps: Sequence[StepFlow]) -> None:
        if not steps:
            return
        rows = [_list_cells(row) for row in view.build_funnel(steps)]
        columns = _COLUMNS if self._console.width >= _WIDE_CELLS else _NARROW_COLUMNS
        table = self._table(title, *((name, _COLUMNS[name]) for name in columns))
        for row in rows:
            table.add_row(*(self._text(row[name]) for name in columns))
        self._console.print(table)

    def print_shares(self, summary: Summary) -> None:
        shares = view.build_stage_shares(summary.time_shares)
        if not shares:
            return
        table = self._table("Trainer's time", ("stage", "left"), ("share", "right"), ("", "left"))
        for part in shares:
            bar = ("#" if self._is_ascii or self._is_plain else "█") * round(
                _BAR_CELLS * part.share
            )
            table.add_row(self._text(part.title), self._text(part.text), self._text(bar, "blue"))
        self._console.print(table)

    def print_line(self, prefix: str, style: str, message: str) -> None:
        line = Text.assemble(self._text(prefix, style), self._text(message))
        self._console.print(line, soft_wrap=True)

    def _table(
        self, title: str, *columns: tuple[str, _Justify], shows_header: bool = True
    ) -> Table:
        table = Table(
            title=self._text(title, "bold"),
            title_justify="left",
            box=None if self._is_plain else box.ASCII if self._is_ascii else box.ROUNDED,
            show_header=shows_header,
            pad_edge=not self._is_plain,
        )
        for name, justify in columns:
            is_number = justify == "right"
            table.add_column(name, justify=justify, overflow="fold", no_wrap=is_number)
        return table

    def _text(self, text: str, style: str = "") -> Text:
        """Text that is no markup, moves no cursor, and that the console can encode."""
        shown = "".join(map(_to_printable, text))
        if self._is_plain:
            shown = shown.replace(NO_BREAK_SPACE, " ")
        if self._is_ascii:
            shown = shown.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        return Text(shown, style=style)


def _to_printable(char: str) -> str:
    """A name from a manifest or a file could carry escape sequences; a terminal obeys those."""
    return "?" if unicodedata.category(char) == "Cc" and char not in "\n\t" else char
