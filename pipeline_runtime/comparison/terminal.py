"""A comparison in the terminal: the verdicts, then the tables. `view` runs before this."""

from __future__ import annotations

from rich.console import Console

from pipeline_runtime.comparison.model import Comparison
from pipeline_runtime.comparison.view import TextTable, build_tables
from pipeline_runtime.report.drawing.painter import Justify, Painter


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a comparison."""
    painter = Painter(console)
    for verdict in comparison.verdicts:
        _print_sentence(painter, verdict, "bold")
    for table in build_tables(comparison):
        console.print()
        _print_table(painter, table)
    for warning in comparison.warnings:
        _print_sentence(painter, f"warning: {warning}", "yellow")


def _print_sentence(painter: Painter, sentence: str, style: str) -> None:
    """Print a sentence, folded between words on a terminal, and as a line of a pipe."""
    painter.console.print(painter.text(sentence, style), soft_wrap=painter.is_plain)


def _print_table(painter: Painter, table: TextTable) -> None:
    columns: list[tuple[str, Justify]] = [
        (name, "left" if index < table.num_texts else "right")
        for index, name in enumerate(table.header)
    ]
    shown = painter.table(table.title, *columns)
    for row in table.rows:
        shown.add_row(*(painter.text(cell) for cell in row))
    painter.print_table(shown)
