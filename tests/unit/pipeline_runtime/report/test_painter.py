"""Tables on a terminal that is too narrow for them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pipeline_runtime.report.drawing.painter import Painter

CELLS = ("clicks/20260101T000200Z-0123456789abcdef", "Complete", "auc 0.7812")
NEEDED = sum(map(len, CELLS)) + 2 * (len(CELLS) - 1)


@pytest.mark.parametrize(
    ("width", "is_rigid", "has_lines", "is_whole"),
    [
        pytest.param(200, False, True, True, id="wide"),
        pytest.param(NEEDED, False, False, True, id="wide-enough-without-lines"),
        pytest.param(NEEDED - 1, False, False, False, id="folded"),
        pytest.param(NEEDED - 1, True, False, True, id="longer-than-the-console"),
    ],
)
def test_narrow_table_drops_its_lines_first(
    width: int, is_rigid: bool, has_lines: bool, is_whole: bool
) -> None:
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=True, color_system=None)
    painter = Painter(console)
    table = painter.table("Runs", *((name, "left") for name in "abc"))
    table.add_row(*map(painter.text, CELLS))
    for column in table.columns:
        column.no_wrap = is_rigid
    painter.print_table(table)
    lines = written.getvalue().splitlines()
    assert any("│" in line for line in lines) is has_lines
    assert any(all(cell in line for cell in CELLS) for line in lines) is is_whole
    assert console.width == width
