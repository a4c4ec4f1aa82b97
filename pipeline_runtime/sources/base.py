"""What a raw table is to the planner and the feed, whatever format it is stored in.

The planner asks for the schema and the units of work (pruned by predicates); workers read one unit
at a time. A new kind of source is one more module that gives a `RawTable`; `sources.open_table`
picks it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.sources.nested import NestedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The smallest piece that is read as a whole: one row group of one file."""

    file: int  # index into RawTable.files
    row_group: int
    num_rows: int
    num_bytes: int  # uncompressed, of all columns as flat rows have them


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What predicates left out before anything was read."""

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
        """Its URI or name, for people."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Names and types of all its columns, partition columns among them."""
        ...

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of its files relative to the table: part of a foreign row's identity."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of its files on their file system."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether its files are read as files of this machine; a store's have to be waited for."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about how it is stored; often nothing."""
        ...

    @property
    def request_columns(self) -> frozenset[str]:
        """Columns that every file holds once a request."""
        ...

    def describe_decoding(self, columns: Collection[str]) -> str:
        """How the numbers and lists among these columns are decoded, for people; empty if none."""
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
        """The units that may hold a row for which all predicates (dataset expressions) are true."""
        ...

    def column_bytes(self, units: Sequence[Unit], columns: Collection[str]) -> int:
        """Uncompressed bytes of some columns of these units, as flat rows have them."""
        ...

    def stored_bytes(self, units: Sequence[Unit], columns: Collection[str]) -> int:
        """Bytes that some columns of these units take on the storage, compressed as they lie."""
        ...

    def read(self, unit: Unit, columns: Sequence[str], max_rows: int) -> Iterator[pa.Table]:
        """The unit's rows in order, at most `max_rows` a table, columns in the order asked for."""
        ...

    def read_nested(
        self,
        unit: Unit,
        columns: Sequence[str],
        max_rows: int,
        folded: Collection[str] = (),
    ) -> Iterator[pa.Table | NestedRows]:
        """The same, a request's columns once where they are stored so; columns in any order.

        Args:
            folded: columns of lists that may come as places in a dictionary, whose values are the
                lists without most of those that are equal to the one before.
        """
        ...

    def read_rows(
        self,
        unit: Unit,
        columns: Sequence[str],
        rows: npt.NDArray[np.int64],
        *,
        kernels: bool = True,
    ) -> pa.Table | NestedRows:
        """Of a unit the rows at these places, which ascend, as `read_nested` has them.

        It may be spared to decode others; `kernels` as in `take_rows`.
        """
        ...
