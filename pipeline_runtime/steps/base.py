"""A step that is bound to its input: a transform of Arrow tables with known columns.

`bind_pipeline` in `pipeline_runtime.steps` makes transforms from the models of `config.steps`. The
planner reads their `inputs`, `output_schema` and `changes_rows`. The feed calls them on workers,
one table after another. A transform does not depend on Ray and keeps no state between calls, except
the indices that `steps.side_tables` keeps in a process.

Columns whose name starts with `_lastmile_` belong to Lastmile (the row's identity hash, say). They
are in no schema here, may be in any table, and every transform passes them through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.config.dataset import SourceChoice
from pipeline_runtime.config.step_model import MapResources
from pipeline_runtime.expressions import Expression
from pipeline_runtime.sources import Bucketing, Unit

if TYPE_CHECKING:
    from pipeline_runtime.steps.embed.model import EmbedStep
    from pipeline_runtime.steps.engines import OpenedEngine
    from pipeline_runtime.steps.generate.model import GenerateStep
    from pipeline_runtime.steps.predict.model import PredictModel

INTERNAL_PREFIX = "_lastmile_"
# uint64: the hash of a row's identity, the same whatever block, worker or order it comes in.
ROW_HASH_COLUMN = "_lastmile_row_hash"
# uint64: the hash of `dataset.requestKey`, of rows that evaluate a model.
GROUP_HASH_COLUMN = "_lastmile_group_hash"
# dictionary<int32, struct>: the values that a request's rows share, once, and each row's index.
REQUEST_COLUMN = "_lastmile_request"
# int32 and int64: the place of a row in a part of a side table.
UNIT_COLUMN = "_lastmile_unit"
ROW_COLUMN = "_lastmile_row"


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
        """Names and types of the output, without Lastmile's own columns."""
        ...

    @property
    def needs_row_hash(self) -> bool:
        """True if tables must have `ROW_HASH_COLUMN`."""
        ...

    @property
    def changes_rows(self) -> bool:
        """True if rows may be dropped, repeated or added; otherwise, row i comes out as row i."""
        ...

    @property
    def is_elementwise(self) -> bool:
        """True if the output of a row depends on that row alone."""
        ...

    @property
    def is_columnwise(self) -> bool:
        """True if each column of `inputs` alone becomes the output of its name."""
        ...

    @property
    def runs_alone(self) -> bool:
        """True if the step needs workers of its own, so that it is not fused with others."""
        ...

    @property
    def resources(self) -> MapResources | None:
        """Resources of one call, if the step runs alone."""
        ...

    @property
    def concurrency(self) -> int | None:
        """Largest number of concurrent calls, if the step runs alone."""
        ...

    @property
    def calls_user_code(self) -> bool:
        """True if the step calls Python code of the user, which may do anything."""
        ...

    @property
    def observes(self) -> bool:
        """True if `observe` is called in place of the step."""
        ...

    @property
    def observes_all(self) -> bool:
        """True if the observations must be of all rows at the step's place.

        So none is spared, such as one that a later filter drops, or that a table has already.
        """
        ...

    @property
    def keeps_places(self) -> bool:
        """True if the output has rows of the input, each at most once and in their order.

        The other columns of these rows may then be read after the step.
        """
        ...

    @property
    def predicate(self) -> Expression | None:
        """The expression that is true for exactly the rows that the step keeps, if there is one."""
        ...

    @property
    def is_filter(self) -> bool:
        """True if the step only drops rows: those that `mask` is false for."""
        ...

    @property
    def picks_rows(self) -> bool:
        """True if `of_rows` spares a copy of the step's input."""
        ...

    @property
    def side_table(self) -> SideTable | None:
        """The side table of a join."""
        ...

    @property
    def residues(self) -> int | None:
        """Number of residues of a join by bucket; None for any other step.

        Rows of buckets with equal remainders of a division by this number need the same parts of
        the side table. A shuffled epoch has their rows close together.
        """
        ...

    @property
    def draws_by(self) -> tuple[object, ...] | None:
        """The seed and the key of a step that samples. Two equal steps draw one after another."""
        ...

    @property
    def digests(self) -> tuple[str, ...]:
        """SHA-256 of each file, beside tables, that decides the output, such as a model."""
        ...

    @property
    def way(self) -> str:
        """The implementation that the step chose and why, for people; empty if there is one."""
        ...

    @property
    def served(self) -> Mapping[str, ServedModel]:
        """The models that inference workers score, by their path in the step."""
        ...

    def connect(self, clients: Mapping[str, ModelClient]) -> Self:
        """Return the step with these clients of its served models, by their paths."""
        ...

    def find_output(self, column: str) -> str | None:
        """Return the name that a column of the input has after the step; None if it is changed."""
        ...

    def for_evaluation(self) -> Transform | None:
        """Return the step for the rows that evaluate a model; None if it is the same."""
        ...

    def numbered(self, draw: int) -> Self:
        """Return the step with the number of earlier steps that have the same `draws_by`."""
        ...

    def mask(self, table: pa.Table) -> pa.Array | pa.ChunkedArray:
        """Return true for each row that a filter keeps, without nulls."""
        ...

    def of_rows(self, table: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table | None:
        """Return the step's output for the rows at `places`; None if they must be picked first."""
        ...

    def match(self, table: pa.Table) -> Matches | None:
        """Return the matches of a join, for columns that are copied later; None of another step.

        Args:
            table: the columns of `inputs` at least.
        """
        ...

    def observe(self, table: pa.Table) -> tuple[pa.Table, bytes]:
        """Return the step's output, and its observations of these rows; see `steps.observing`.

        It is called once with all rows of a chunk, in their order. The bytes go with the chunk.

        Args:
            table: the columns of `inputs` at least.
        """
        ...

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the table with at least the columns of `output_schema` that the planner needs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundStep:
    """The base of all transforms of this package: a step without any of the capabilities.

    A subclass adds its options, `__call__` and the capabilities that it has.
    """

    kind: ClassVar[str] = ""
    is_columnwise: ClassVar[bool] = False
    picks_rows: ClassVar[bool] = False

    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    output_schema: pa.Schema
    changes_rows: bool = False
    side_table: SideTable | None = None
    resources: MapResources | None = None
    concurrency: int | None = None

    @property
    def needs_row_hash(self) -> bool:
        return False

    @property
    def is_elementwise(self) -> bool:
        return True

    @property
    def runs_alone(self) -> bool:
        return False

    @property
    def calls_user_code(self) -> bool:
        return False

    @property
    def observes(self) -> bool:
        return False

    @property
    def observes_all(self) -> bool:
        return False

    @property
    def predicate(self) -> Expression | None:
        return None

    @property
    def is_filter(self) -> bool:
        return False

    @property
    def keeps_places(self) -> bool:
        return self.is_filter or not self.changes_rows

    @property
    def residues(self) -> int | None:
        parts = self.side_table.parts if self.side_table is not None else None
        return math.gcd(parts.num_parts, parts.num_row_buckets) if parts is not None else None

    @property
    def draws_by(self) -> tuple[object, ...] | None:
        return None

    @property
    def digests(self) -> tuple[str, ...]:
        return ()

    @property
    def way(self) -> str:
        return ""

    @property
    def served(self) -> Mapping[str, ServedModel]:
        return {}

    def connect(self, clients: Mapping[str, ModelClient]) -> Self:
        return self

    def find_output(self, column: str) -> str | None:
        is_kept = column in self.output_schema.names and column not in self.outputs
        return column if is_kept else None

    def for_evaluation(self) -> Transform | None:
        return None

    def numbered(self, draw: int) -> Self:
        return self

    def mask(self, table: pa.Table) -> pa.Array | pa.ChunkedArray:
        raise NotImplementedError(f"{self.kind} is no filter")

    def of_rows(self, table: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table | None:
        return None

    def match(self, table: pa.Table) -> Matches | None:
        return None

    def observe(self, table: pa.Table) -> tuple[pa.Table, bytes]:
        raise NotImplementedError(f"{self.kind} observes nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """The rows that a join leaves, before a column is copied.

    Attributes:
        rows: numbers of the rows that were joined, repeated for each match; None: all, once.
        columns: of the join's outputs, in their order in its schema and in rows of their own, as
            `sources.gather.to_takeable` makes them.
        places: the row of `columns` for each row that is left; −1 stands for nulls.
    """

    rows: npt.NDArray[np.int64] | None
    columns: Sequence[pa.ChunkedArray]
    places: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTable:
    """The table of a join whose rows are looked up, as the planner opened it.

    `load` returns the rows, with only the needed columns and with predicates applied. It is called
    once in each worker process, through `side_tables.index_of`, not once per batch. A table that
    has `parts` is never loaded as a whole.
    """

    digest: str  # changes whenever the rows may have changed: files' versions, columns, predicate
    description: str  # for people, such as the URI
    schema: pa.Schema
    num_rows: int
    num_bytes: int
    load: Callable[[], pa.Table]
    # Stays when the files are rewritten, so that a new index replaces the old one of this place.
    place: str = ""
    parts: SideParts | None = None
    notes: tuple[str, ...] = ()  # for people: the strategy of the join, and the reason


class SideParts(Protocol):
    """A side table in parts: part r has the rows whose key's bucket of `num_parts` is r.

    Rows without a key are in no part. Picklable, like all that a step holds.
    """

    @property
    def key(self) -> int:
        """The number of the key column, among the keys of the join, that the buckets are of."""
        ...

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        ...

    @property
    def num_row_buckets(self) -> int:
        """Number of buckets of the rows that are joined, by the same key."""
        ...

    @property
    def max_bytes(self) -> int:
        """Largest size of the parts in the memory of a process."""
        ...

    def describe(self, row_units: Sequence[Unit]) -> Sequence[str]:
        """Return lines for people: the work and the memory for rows in these units."""
        ...

    def estimate_bytes(self, part: int) -> int:
        """Return the size of a part in memory, as far as it is known before it is read."""
        ...

    def load(self, part: int) -> pa.Table | None:
        """Return the rows of a part, in the table's order; None if they exceed `max_bytes`."""
        ...

    def load_keys(self, part: int) -> pa.Table:
        """Return the key columns of a part, and `UNIT_COLUMN` and `ROW_COLUMN` for `gather`.

        Raises:
            SourceError: they exceed `max_bytes`; the message has both numbers.
        """
        ...

    def gather(self, part: int, places: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Return columns of the rows of a part at these places, in their order.

        Args:
            places: `UNIT_COLUMN` and `ROW_COLUMN` of rows that `load_keys` returned.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BindContext:
    """The needs of binding a step, beyond its input schema."""

    # The side table of a join: (source model, columns, where text, byte bound) -> SideTable.
    open_side_table: Callable[[SideTableRequest], SideTable]
    # Buckets of the table that the rows come from, while its column is unchanged.
    bucketing: Bucketing | None = None
    kernels: bool = True  # pipelineOptions.debug.kernels
    open_model: Callable[[ModelRequest], OpenedModel] | None = None
    open_generator: Callable[[GenerateStep], OpenedEngine] | None = None
    open_embedder: Callable[[EmbedStep], OpenedEngine] | None = None


def wants_kernels(context: BindContext | None) -> bool:
    """Return whether a step that is bound in this context may use compiled kernels."""
    return context is None or context.kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTableRequest:
    """A join's request for a side table, to the planner."""

    source: SourceChoice
    columns: Sequence[str] | None  # keys included; None for all
    where: str | None
    max_bytes: int
    left_keys: tuple[str, ...] = ()
    right_keys: tuple[str, ...] = ()
    strategy: str = "Auto"
    bucketing: Bucketing | None = None  # of the rows that are joined
    kernels: bool = True  # pipelineOptions.debug.kernels


class Scorer(Protocol):
    """A model in the memory of a process."""

    def __call__(self, table: pa.Table) -> Mapping[str, npt.NDArray[Any] | pa.Array]:
        """Return the outputs for the rows of a table with the model's inputs, by name."""
        ...


class OpenedModel(Protocol):
    """A model that was found and checked; picklable, and loaded where it is used."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the model reads."""
        ...

    @property
    def steps(self) -> tuple[Transform, ...]:
        """The preprocessing that makes these columns of the step's input."""
        ...

    @property
    def calls_user_code(self) -> bool:
        """True if Python code of the user runs for each batch."""
        ...

    @property
    def sha256(self) -> str:
        """The digest of the model's file; empty for a model of the user's code."""
        ...

    @property
    def note(self) -> str:
        """The model's origin, for people."""
        ...

    def find_invalid(self, rows: pa.Table) -> Mapping[str, npt.NDArray[np.bool_]]:
        """Return, by input, which rows have a null that the model cannot take."""
        ...

    def load(self) -> Scorer:
        """Return the model, which stays in the memory of the process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as an inference worker needs it; picklable.

    Attributes:
        types: type of each output, by name.
        group: name of the group of inference workers.
        needs_cuda: True if it may run on a GPU alone.
    """

    opened: OpenedModel
    types: Mapping[str, pa.DataType]
    batch_size: int | Literal["Auto"]
    group: str
    needs_cuda: bool


class ModelClient(Protocol):
    """A model in other processes; picklable."""

    def begin(self, rows: pa.Table) -> Callable[[], pa.Table]:
        """Send rows with the model's inputs, and return a function that waits for the outputs.

        The function returns a table with the outputs of these rows, in their order. Both raise
        StepError, as the model does in a data worker.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A step's request for a model, to the planner.

    Attributes:
        model: the model in the manifest.
        input_schema: the columns of the step's input.
        types: type of each output.
        context: for the preprocessing of a run.
    """

    model: PredictModel
    input_schema: pa.Schema
    types: Mapping[str, pa.DataType]
    device: Literal["Auto", "CPU", "CUDA"]
    context: BindContext


def is_internal(name: str) -> bool:
    """Return whether the column is Lastmile's own."""
    return name.startswith(INTERNAL_PREFIX)


def public_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema without Lastmile's own columns and without metadata."""
    return pa.schema([field for field in schema if not is_internal(field.name)])
