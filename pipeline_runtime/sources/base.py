"""The raw table as the planner and the feed use it, whatever format it is stored in.

The planner asks for the schema and the units of work (pruned by predicates); workers read one unit
at a time. To add a kind of source, write a module that returns a `RawTable`, and have
`sources.open_table` choose it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.sources.rows import SourceRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The smallest part of a table that a worker reads as a whole: one row group of one file."""

    file: int  # index into RawTable.files
    row_group: int
    num_rows: int
    num_bytes: int  # uncompressed size of all columns, as flat rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """Counts of files, row groups and rows before and after pruning by predicates."""

    files_total: int
    files_read: int
    row_groups_total: int
    row_groups_read: int
    rows_total: int
    rows_read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The units that a run reads, in the table's own order."""

    units: tuple[Unit, ...]
    pruning: Pruning
    predicates: tuple[str, ...] = field(default=())


class RawTable(Protocol):
    """A table on storage; picklable, and cheap to send to a worker."""

    @property
    def description(self) -> str:
        """The table's URI or name, as reports show it."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Names and types of all columns, including partition columns."""
        ...

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files relative to the table: part of a foreign row's identity."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files on their file system."""
        ...

    @property
    def is_local(self) -> bool:
        """True if the files are on this machine; reads from a store have to be waited for."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user about how the table is stored; often none."""
        ...

    @property
    def request_columns(self) -> frozenset[str]:
        """Columns that every file stores once per request."""
        ...

    def describe_decoding(self, columns: Collection[str]) -> str:
        """Describe how the numbers and lists among these columns are decoded; empty if none."""
        ...

    def footer_digests(self, files: Sequence[int]) -> list[str]:
        """Return digests of the files' footers, which are the same for a copied file.

        A resumed run compares them with those of its checkpoint.
        """
        ...

    def content_versions(self, files: Sequence[int]) -> list[str]:
        """Return values that change whenever the content of these files changes.

        Caches use them as keys. A copy of a file has another version.
        """
        ...

    def scan(self, predicates: Sequence[Any]) -> Scan:
        """Return the units that may hold a row for which all predicates are true.

        Predicates are dataset expressions.
        """
        ...

    def column_bytes(self, units: Sequence[Unit], columns: Collection[str]) -> int:
        """Return the uncompressed size of some columns of these units, as flat rows."""
        ...

    def stored_bytes(self, units: Sequence[Unit], columns: Collection[str]) -> int:
        """Return the size of some columns of these units on the storage, compressed."""
        ...

    def read(self, unit: Unit, columns: Sequence[str], max_rows: int) -> Iterator[pa.Table]:
        """Yield the unit's rows in order, with at most `max_rows` per table.

        The columns have the requested order.
        """
        ...

    def read_nested(
        self,
        unit: Unit,
        columns: Sequence[str],
        max_rows: int,
        folded: Collection[str] = (),
    ) -> Iterator[SourceRows]:
        """Yield the unit's rows like `read`, but keep nested files nested.

        Columns that a file stores once per request are returned once per request. The columns may
        have any order.

        Args:
            folded: list columns that may be returned as dictionary columns. The dictionary
                leaves out most lists that equal the list before them.
        """
        ...

    def read_rows(
        self,
        unit: Unit,
        columns: Sequence[str],
        rows: npt.NDArray[np.int64],
        *,
        kernels: bool = True,
    ) -> SourceRows:
        """Return the rows of a unit at the given positions, in the form that `read_nested` returns.

        The implementation may skip decoding other rows.

        Args:
            rows: positions in ascending order.
            kernels: as in `take_rows`.
        """
        ...
