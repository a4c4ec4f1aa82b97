"""What a step is once it is bound to its input: a transform of Arrow tables with known columns.

`bind_pipeline` in `pipeline_runtime.steps` makes these from the models of `config.steps`; the
planner reads `inputs`, `output_schema` and `changes_rows`; the feed calls them, one table after
another, on whatever worker they were sent to. A transform knows nothing of Ray and keeps no state
between calls but what `SideTables` caches in a process.

Columns whose name starts with `_lastmile_` belong to Lastmile (the row's identity hash, say). They
are in no schema here, may be in any table, and every transform passes them through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import pyarrow as pa

INTERNAL_PREFIX = "_lastmile_"
# uint64: the hash of a row's identity, the same whatever block, worker or order it comes in.
ROW_HASH_COLUMN = "_lastmile_row_hash"
# dictionary<int32, struct>: what the rows of a request share, once, and which of it is each row's.
REQUEST_COLUMN = "_lastmile_request"


@runtime_checkable
class Transform(Protocol):
    """One step bound to its input schema; picklable, and called with tables of that schema."""

    @property
    def kind(self) -> str:
        """The step's kind as a manifest writes it, such as `antiJoin`."""
        ...

    @property
    def inputs(self) -> frozenset[str]:
        """Columns of the input that the step reads, not those it only passes through."""
        ...

    @property
    def outputs(self) -> frozenset[str]:
        """Columns that the step adds or changes."""
        ...

    @property
    def output_schema(self) -> pa.Schema:
        """Names and types of what comes out, Lastmile's own columns left out."""
        ...

    @property
    def needs_row_hash(self) -> bool:
        """Whether tables must carry `ROW_HASH_COLUMN`."""
        ...

    @property
    def changes_rows(self) -> bool:
        """Whether rows may be dropped, repeated or added; otherwise row i comes out as row i."""
        ...

    @property
    def is_elementwise(self) -> bool:
        """Whether what comes out of a row depends on that row alone, whichever rows are beside."""
        ...

    @property
    def is_columnwise(self) -> bool:
        """Whether each column of `inputs` becomes the output of its name, alone if need be."""
        ...

    @property
    def runs_alone(self) -> bool:
        """Whether the step asks for workers of its own, so that it is not fused with others."""
        ...

    def __call__(self, table: pa.Table) -> pa.Table:
        """The transformed table; at least the columns of `output_schema` the planner asked for."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundStep:
    """What every transform of this package holds; a subclass adds its options and `__call__`."""

    kind: ClassVar[str] = ""
    is_columnwise: ClassVar[bool] = False

    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    output_schema: pa.Schema
    changes_rows: bool = False

    @property
    def needs_row_hash(self) -> bool:
        return False

    @property
    def is_elementwise(self) -> bool:
        return True

    @property
    def runs_alone(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTable:
    """A small table of a join as the planner found it: where it is and how to get its rows.

    `load` returns the rows (only the columns needed, predicates applied); it is called once in each
    worker process, through `side_tables.index_of`, never once a batch.
    """

    digest: str  # changes whenever the rows may have changed: files' versions, columns, predicate
    description: str  # for people, such as the URI
    schema: pa.Schema
    num_rows: int
    num_bytes: int
    load: Callable[[], pa.Table]
    # Stays when the files are rewritten: an index of the same place replaces the older one.
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindContext:
    """What binding a step may need beyond its input schema."""

    # The side table of a join: (source model, columns, where text, byte bound) -> SideTable.
    open_side_table: Callable[[SideTableRequest], SideTable]
    kernels: bool = True  # pipelineOptions.kernels


def wants_kernels(context: BindContext | None) -> bool:
    """Whether a step that is bound in this context may use compiled kernels."""
    return context is None or context.kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTableRequest:
    """What a join asks of the planner."""

    source: object  # config.dataset.SourceChoice
    columns: Sequence[str] | None  # keys included; None for all
    where: str | None
    max_bytes: int


def is_internal(name: str) -> bool:
    """Whether the column is Lastmile's own."""
    return name.startswith(INTERNAL_PREFIX)


def public_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without Lastmile's own columns and without metadata."""
    return pa.schema([field for field in schema if not is_internal(field.name)])
