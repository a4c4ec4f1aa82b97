"""The line about a table at the end of a driver's log, in which a user may print anything."""

import pytest

from dataset_operator.observed import WrittenTable
from dataset_operator.ray.jobs import parse_table

LINE = b"output: rows=1000 files=3 bytes=4096"


@pytest.mark.parametrize(
    ("log", "rows"),
    [
        (LINE, 1000),
        (b'{"logs": "spooling\\noutput: rows=7 files=1 bytes=9\\nbye\\n"}', 7),
        (b"output: rows=1 files=1 bytes=1\n" + LINE, 1000),  # the last one counts
        (b"output: rows=9999999999999999 files=0 bytes=0", 2**53 - 1),
        (b"output: rows=12345678901234567 files=0 bytes=0", None),
        (b"output: rows=-1 files=0 bytes=0", None),
        (b"output: rows=1.5 files=0 bytes=0", None),
        ("output: rows=٣ files=0 bytes=0".encode(), None),
        (LINE[:-4], None),
        (b"\x00\xff" * 1000, None),
        (b"", None),
    ],
)
def test_only_a_whole_line_is_a_table(log: bytes, rows: int | None) -> None:
    found = parse_table(log)
    assert (found and found.rows) == rows


def test_all_numbers_are_read() -> None:
    assert parse_table(LINE) == WrittenTable(rows=1000, files=3, num_bytes=4096)
