"""Options and results of the sample data, with their bounds.

Owns the options, their validation and the summary. The command line runs before it and parses
text into it; `file_layout` runs after it and takes every size from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_ROWS: Final = 100_000_000  # about 11 GB of files: fits a laptop's disk
MIN_COMMAND_ROWS: Final = 10_000  # the command line's floor: fewer rows train no model worth seeing
MAX_DAYS: Final = 366  # a year; every day is a folder
MAX_ROWS_PER_GROUP: Final = 1_048_576  # pyarrow's own default; a group, 1.7 KB a row, is in memory
MAX_ROWS_PER_FILE: Final = MAX_ROWS
MAX_SEED: Final = 2**63 - 1  # a seed is stored as a signed JSON integer
COMPRESSIONS: Final = ("gzip", "lz4", "none", "snappy", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDataOptions:
    """Options of the sample data; equal options give equal bytes (same pyarrow and numpy).

    Args:
        rows: impressions over all days, 1 to `MAX_ROWS`.
        seed: of everything random, 0 to `MAX_SEED`.
        rows_per_file: at most so many rows a Parquet file.
        rows_per_group: at most so many rows a row group; short files get smaller groups, so that
            every file has several.
        days: number of `day=` folders, from 2026-01-01 on; the rows are spread evenly.
        compression: a Parquet codec, one of `COMPRESSIONS`.

    Raises:
        ValueError: an option is out of its bounds.
    """

    rows: int = 1_000_000
    seed: int = 17
    rows_per_file: int = 131_072
    rows_per_group: int = 16_384
    days: int = 8
    compression: str = "zstd"

    def __post_init__(self) -> None:
        _check_range("rows", self.rows, 1, MAX_ROWS)
        _check_range("seed", self.seed, 0, MAX_SEED)
        _check_range("rows_per_file", self.rows_per_file, 1, MAX_ROWS_PER_FILE)
        _check_range("rows_per_group", self.rows_per_group, 1, MAX_ROWS_PER_GROUP)
        _check_range("days", self.days, 1, MAX_DAYS)
        if self.compression not in COMPRESSIONS:
            known = ", ".join(COMPRESSIONS)
            raise ValueError(f"compression: must be one of {known}, got {self.compression!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDataSummary:
    """Contents of the directory after a call.

    `files` and `file_bytes` count the Parquet files, the spam table included. `elapsed_seconds`
    is this call's. `was_current` is true where nothing had to be written.
    """

    rows: int
    files: int
    file_bytes: int
    elapsed_seconds: float
    was_current: bool


def _check_range(name: str, value: object, low: int, high: int) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not low <= value <= high:  # type: ignore[operator]
        raise ValueError(f"{name}: must be an integer from {low} to {high}, got {value!r}")
