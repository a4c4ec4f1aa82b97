"""Parquet tables whose neighbouring rows are alike, and Parquet read as a source that knows it.

Lastmile's own source for Parquet leaves the order of such tables as it always was. Here it marks
its scans as clustered, with the bucket that the name of a file has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime.sources import Predicate, Scan
from pipeline_runtime.sources.parquet.table import ParquetTable

_SEED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Rows of users over days, and the way in which a table holds them.

    Attributes:
        has_days: a day is a partition.
        buckets: a file for each, in each partition.
        sort: columns by which the rows of a file are sorted.
        group_rows: rows of a row group.
    """

    rows: int = 57_600
    days: int = 12
    has_days: bool = True
    buckets: int = 8
    sort: tuple[str, ...] = ("user",)
    group_rows: int = 1 << 20


def make_rows(layout: Layout) -> pa.Table:
    """Return rows with the columns `x`, `user`, `day` and `label`.

    Users and days differ in their share of positive labels, and days in their number of rows.
    """
    generator = np.random.default_rng(_SEED)
    num_users = layout.rows // 40
    user = generator.integers(num_users, size=layout.rows)
    share = 1 + np.arange(layout.days) / layout.days
    day = generator.choice(layout.days, size=layout.rows, p=share / share.sum())
    likes = generator.beta(1, 4, size=num_users)[user]
    label = generator.random(layout.rows) < likes * (0.5 + day / layout.days)
    columns = {"x": np.arange(layout.rows), "user": user, "day": day}
    return pa.table(columns | {"label": label.astype(np.float32)})


def write_clustered_files(folder: Path, layout: Layout) -> Path:
    """Write the rows of `make_rows`, and return the folder."""
    table = make_rows(layout)
    user, day = table["user"].to_numpy(), table["day"].to_numpy()
    bucket = (user * 2_654_435_761 >> 7) % layout.buckets
    for place in np.unique(day) if layout.has_days else [None]:
        here = np.ones(layout.rows, np.bool_) if place is None else day == place
        below = folder if place is None else folder / f"day={place}"
        below.mkdir(parents=True)
        for number in range(layout.buckets):
            rows = table.filter(here & (bucket == number))
            rows = rows.sort_by([(name, "ascending") for name in layout.sort])
            kept = rows if place is None else rows.drop_columns(["day"])
            path = below / f"bucket-{number:02}.parquet"
            pq.write_table(kept, path, row_group_size=layout.group_rows)
    return folder


def mark_as_clustered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Parquet source say that its tables are clustered."""
    scan_files = ParquetTable.scan

    def scan(
        self: ParquetTable, predicates: Sequence[Predicate], columns: Collection[str] = ()
    ) -> Scan:
        found = scan_files(self, predicates, columns)
        units = tuple(replace(unit, bucket=int(unit.place[-10:-8])) for unit in found.units)
        return replace(found, is_clustered=True, units=units)

    monkeypatch.setattr(ParquetTable, "scan", scan)


def refuse_rows(table: pa.Table) -> pa.Table:
    """Fail on any row, as a function of a user may."""
    if table.num_rows:
        raise ValueError(f"{table.num_rows} rows")
    return table
