"""The Iceberg tables of the benchmark: the sample, laid out in files as data lakes have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from pathlib import Path
from typing import Final

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from pipeline_runtime.sample_data import SampleDataOptions
from pipeline_runtime.sample_data.lake import CATALOG, CATALOG_FILE, NAMESPACE, write_lake
from pipeline_runtime.sample_data.lake_tables import (
    DAY,
    IMPRESSIONS,
    KEY,
    USER_ACTIONS,
    SampleTable,
)

# Columns without nulls, which every program can bring to plain arrays.
MAIN_COLUMNS: Final = (
    *("request_id", "position", KEY, "item_id"),
    *(f"dense_{index:02d}" for index in (6, 7, 8, 10, 11, 13)),
    *(f"cat_{index:02d}" for index in range(1, 6)),
    "clicked",
)
# All columns that convert to tensors without work on their nulls.
ALL_COLUMNS: Final = (
    *MAIN_COLUMNS,
    *(f"dense_{index:02d}" for index in (9, 12, 14, 15, 16, 17, 18, 19)),
    *(f"cat_{index:02d}" for index in (7, 8, 9, 10, 12, 13, 15)),
    *("timestamp", "conversion_delay_hours", "dwell_seconds"),
)
SIDE_COLUMNS: Final = ("recent_items", "recent_actions")
KEYS: Final = (KEY, DAY)


@dataclass(frozen=True)
class Lake:
    """Sample tables in a folder.

    Attributes:
        rows: impressions.
    """

    folder: Path
    rows: int

    @property
    def uri(self) -> str:
        """The address of the catalog."""
        return f"sqlite:///{self.folder / CATALOG_FILE}"

    def load(self, layout: SampleTable = IMPRESSIONS) -> Table:
        """Load a table by PyIceberg."""
        with closing(SqlCatalog(CATALOG, uri=self.uri)) as catalog:
            return catalog.load_table((NAMESPACE, layout.name))

    def files(self, layout: SampleTable) -> Sequence[str]:
        """Return the paths of a table's data files."""
        return [path for paths in self._by_bucket(layout).values() for path in paths]

    @cached_property
    def residues(self) -> Sequence[tuple[Sequence[str], Sequence[str]]]:
        """The files of impressions and of actions whose buckets can match each other.

        With g the greatest common divisor of both numbers of buckets, these are the buckets with
        the same remainder modulo g, for each remainder.
        """
        divisor = gcd(IMPRESSIONS.num_buckets, USER_ACTIONS.num_buckets)
        main, side = (
            [
                [path for bucket, paths in found.items() if bucket % divisor == r for path in paths]
                for r in range(divisor)
            ]
            for found in map(self._by_bucket, (IMPRESSIONS, USER_ACTIONS))
        )
        return list(zip(main, side, strict=True))

    def _by_bucket(self, layout: SampleTable) -> Mapping[int, list[str]]:
        found: defaultdict[int, list[str]] = defaultdict(list)
        for task in self.load(layout).scan().plan_files():
            path = task.file.file_path.removeprefix("file://")
            found[task.file.partition[-1]].append(path)
        return {bucket: sorted(found[bucket]) for bucket in sorted(found)}


def make_lake(data: Path, rows: int, **options: int) -> Lake:
    """Write the sample's tables below a folder, and keep them for later runs.

    Args:
        options: more of `SampleDataOptions`.
    """
    chosen = replace(SampleDataOptions(rows=rows), **options)  # type: ignore[arg-type]
    folder = data.absolute() / "-".join(["benchmark-lake", *map(str, [rows, *options.values()])])
    write_lake(folder, chosen)
    return Lake(folder, rows)
