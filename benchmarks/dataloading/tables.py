"""The tables of a benchmark: the same sample rows in all measured layouts, made once."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.dataloading.workloads import ONCE, REQUEST_KEY, sample_options
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.convert import ConversionOptions, convert_table
from pipeline_runtime.sample_data import write_sample_data
from pipeline_runtime.sources import open_location
from pipeline_runtime.sources.parquet import open_parquet

# `make run` makes as many rows, in a folder of its own.
SAMPLE_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of sample data: the folder of each layout in which it exists."""

    roots: Mapping[str, str]
    rows: int


def make_table(data: Path, rows: int, layouts: Collection[str] = ("flat",)) -> Table:
    """Make sample data with the given number of rows below a folder, and keep it for later runs."""
    flat = data / "data" if rows == SAMPLE_ROWS else data / f"benchmark-{rows}"
    write_sample_data(flat, sample_options(rows))
    roots = {"flat": str(flat)}
    if "nested" in layouts:
        nested = data / f"benchmark-{rows}-nested"
        convert_to_nested(flat, nested)
        roots["nested"] = str(nested)
    return Table(roots=roots, rows=rows)


def convert_to_nested(flat: Path, nested: Path) -> None:
    """Write the same rows nested by request, as `lastmile convert` does, and copy side tables."""
    if nested.exists():  # it gets this name when it is complete
        return
    made = nested.with_name(f".{nested.name}")
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(flat / "spam_users", made / "spam_users")
    options = ConversionOptions(
        request_key=REQUEST_KEY,
        request_columns=tuple(sorted(ONCE - {REQUEST_KEY})),
        has_row_key=True,
    )
    table = open_parquet(ParquetSource(uri=str(flat / "impressions")), "")
    convert_table(table, open_location(str(made / "impressions"), ""), options)
    made.rename(nested)
