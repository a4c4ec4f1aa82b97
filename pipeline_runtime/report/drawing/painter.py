"""Drawing for a console: boxes and colours on a terminal, plain columns in a pipe, else ASCII.

Owned here: tables, texts and bars that no text of the user's breaks. `terminal` and the tables of
other commands are built on it.
"""

from __future__ import annotations

import unicodedata
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline_runtime.formatting import NO_BREAK_SPACE

Justify = Literal["left", "right"]

_BAR_CELLS = 24
_UNBOUNDED_CELLS = 100_000

# What the formats use beyond ASCII, and what stands for it.
_ASCII = str.maketrans({NO_BREAK_SPACE: " ", "–": "-", "−": "-", "∞": "inf", "…": "..."})


class Painter:
    """One console, and what it can show."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.is_plain = not console.is_terminal
        self.is_ascii = console.options.ascii_only

    def print_line(self, prefix: str, style: str, message: str) -> None:
        """A line of its own, not folded."""
        line = Text.assemble(self.text(prefix, style), self.text(message))
        self.console.print(line, soft_wrap=True)

    def table(self, title: str, *columns: tuple[str, Justify], shows_header: bool = True) -> Table:
        """A table with these columns; numbers, on the right, are never broken."""
        table = Table(
            title=self.text(title, "bold"),
            title_justify="left",
            box=None if self.is_plain else box.ASCII if self.is_ascii else box.ROUNDED,
            show_header=shows_header,
            pad_edge=not self.is_plain,
        )
        for name, justify in columns:
            is_number = justify == "right"
            table.add_column(name, justify=justify, overflow="fold", no_wrap=is_number)
        return table

    def print_table(self, table: Table) -> None:
        """Print a table; without lines if it is too wide for the console with them.

        If none of its columns may be folded, its rows can be longer than those of the console.
        """
        width = self.console.width
        unbounded = self.console.options.update(width=_UNBOUNDED_CELLS)
        if self.console.measure(table, options=unbounded).maximum > width:
            table.box, table.pad_edge = None, False
        if all(column.no_wrap for column in table.columns):
            needed = self.console.measure(table, options=unbounded).maximum
            self.console.width = max(width, needed)  # which bounds what it prints
        title, table.title = table.title, None
        self.console.print(title)  # not folded to the width of the table
        self.console.print(table)
        self.console.width = width

    def text(self, text: str, style: str = "") -> Text:
        """Text that is no markup, moves no cursor, and that the console can encode."""
        shown = "".join(map(_to_printable, text))
        if self.is_plain:
            shown = shown.replace(NO_BREAK_SPACE, " ")
        if self.is_ascii:
            shown = shown.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        return Text(shown, style=style)

    def bar(self, share: float) -> Text:
        """A share of 1 as a bar."""
        return self.text(
            ("#" if self.is_ascii or self.is_plain else "█") * round(_BAR_CELLS * share), "blue"
        )


def _to_printable(char: str) -> str:
    """A name from a manifest or a file could carry escape sequences; a terminal obeys those."""
    return "?" if unicodedata.category(char) == "Cc" and char not in "\n\t" else char
