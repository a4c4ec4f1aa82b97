"""Tables, ages and numbers as kubectl prints them."""

from __future__ import annotations

import codecs
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from dataset_operator.documents import parse_time
from pipeline_runtime.config import UsageStatus, clean
from pipeline_runtime.formatting import format_age_seconds, plain_spaces

# Rich cuts a table to the width of its console, but a file or pipe has none.
_UNBOUNDED_COLUMNS = 10_000
_MAX_LINE_CHARS = 1 << 16  # a longer line of a log is printed in parts


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns without lines; None leaves its cell empty."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED_COLUMNS
    table = Table(*header, box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for row in rows:
        table.add_row(*("" if cell is None else clean(plain_spaces(str(cell))) for cell in row))
    console.print(table, markup=False)


def print_log(chunks: Iterable[bytes]) -> None:
    """Print a log line by line as it arrives, without characters that control a terminal."""
    sys.stdout.flush()
    rest = ""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        text = rest + decoder.decode(chunk).replace("\r\n", "\n").replace("\r", "\n")
        whole, end, rest = text.rpartition("\n")
        if len(rest) > _MAX_LINE_CHARS:
            whole, end, rest = text, "", ""
        sys.stdout.buffer.write(clean(whole + end).encode())
    sys.stdout.buffer.write(clean(rest).encode())
    sys.stdout.buffer.flush()


def get_columns() -> int:
    """Return the terminal's width; without a terminal, lines are not wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNBOUNDED_COLUMNS


def format_cost(usage: UsageStatus | None) -> str | None:
    """Format the cost of a run so far, such as `12.30 USD`; None without prices."""
    if usage is None or usage.cost is None:
        return None
    return f"{usage.cost} {usage.currency or ''}".rstrip()


def format_age(time: str | None, now: datetime | None = None) -> str:
    """Format the time since a timestamp of Kubernetes; `unknown` without one."""
    if not time:
        return "unknown"
    return format_age_seconds(((now or datetime.now(UTC)) - parse_time(time)).total_seconds())
