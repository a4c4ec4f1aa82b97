"""The models of the last-mile steps, one for each kind, and of the planner's options.

A step of a pipeline is a mapping with exactly one key, the step's kind. `pipeline_runtime.steps`
holds one module for each kind, which turns such a model into work on Arrow tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, JsonValue, StringConstraints, Tag

from pipeline_runtime.config.base import (
    MAX_COLUMNS,
    MAX_SAFE_INTEGER,
    Column,
    Columns,
    Expression,
    ImportPath,
    Label,
    PositiveInt,
    Seed,
    SpecModel,
    check_options,
    check_unique_names,
)
from pipeline_runtime.config.dataset import SourceChoice
from pipeline_runtime.config.decimals import Constant, KeepPercent, Number

# Memory that a side table may take on each data worker unless the step sets `maxBytes`: 1 GiB.
DEFAULT_SIDE_TABLE_BYTES = 1 << 30

TypeName = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class FilterStep(SpecModel):
    """Keep the rows for which `where` is true (false and null are dropped)."""

    where: Expression
    """A boolean expression."""


class DerivedColumn(SpecModel):
    """A column and the expression that gives its values."""

    name: Column
    """Name of the column, which is added or replaced."""
    expression: Expression
    """Expression over the step's input columns."""


class DeriveStep(SpecModel):
    """Add or replace columns, each from an expression over the step's input columns."""

    columns: Annotated[
        tuple[DerivedColumn, ...],
        Field(min_length=1, max_length=MAX_COLUMNS),
        AfterValidator(check_unique_names),
    ]
    """Columns to add or replace, by name."""


class KeyPair(SpecModel):
    """A column of the key that has different names on the two sides."""

    left: Column
    """Name of the column in the rows."""
    right: Column
    """Name of the column in the side table."""


def _find_key_form(key: object) -> str:
    return "pair" if isinstance(key, dict | KeyPair) else "name"


# Only one member of the union is tried, so that its errors alone are reported.
JoinKey = Annotated[
    Annotated[Column, Tag("name")] | Annotated[KeyPair, Tag("pair")],
    Discriminator(_find_key_form),
]
JoinKeys = Annotated[tuple[JoinKey, ...], Field(min_length=1, max_length=MAX_COLUMNS)]


class SideTableStep(SourceChoice):
    """The fields that joins share: a small table, the keys, and a bound on its memory."""

    keys: JoinKeys
    """The key: columns by name or, if the two sides name them differently, as `left` and
    `right`."""
    where: Expression | None = None
    """Condition for the rows of the side table that are used."""
    max_bytes: Annotated[int, Field(ge=1, le=1 << 40)] = DEFAULT_SIDE_TABLE_BYTES
    """Largest size of the side table in the memory of each worker."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from super().rules()
        lefts: set[str] = set()
        rights: set[str] = set()
        for index, (left, right) in enumerate(zip(self.left_keys, self.right_keys, strict=True)):
            if left in lefts or right in rights:
                name, side = (left, "left") if left in lefts else (right, "right")
                column = "column" if left == right else f"{side} column"
                message = f"must not repeat a {column}, got {name!r} twice; remove one"
                yield f"keys[{index}]", message
            lefts.add(left)
            rights.add(right)

    @property
    def left_keys(self) -> tuple[str, ...]:
        """The key's columns in the rows."""
        return tuple(key.left if isinstance(key, KeyPair) else key for key in self.keys)

    @property
    def right_keys(self) -> tuple[str, ...]:
        """The key's columns in the side table."""
        return tuple(key.right if isinstance(key, KeyPair) else key for key in self.keys)


class AntiJoinStep(SideTableStep):
    """Drop the rows whose key is in the side table (SQL's NOT EXISTS: a null key is kept)."""


class JoinStep(SideTableStep):
    """Add columns of the side table to the rows whose key is in it (a null key never matches)."""

    how: Literal["Inner", "Left"] = "Left"
    """`Left` keeps rows without a match."""
    columns: Columns | None = None
    """Columns of the side table; all but the key if absent."""


class DownsampleStep(SpecModel):
    """Keep a share of the rows, or of those in `where`, by a hash of the seed and row identity."""

    keep_percent: KeepPercent
    """Percentage of the rows that is kept, 0 to 100: an integer, or a decimal number as a text,
    such as `"0.5"`."""
    where: Expression | None = None
    """Condition for the rows that are thinned; all others are kept."""
    seed: Seed = 0
    """The same seed keeps the same rows."""
    weight_column: Column | None = None
    """Column that is multiplied by 100 / keepPercent in thinned rows; created as 1.0 if absent."""


class SampleStep(SpecModel):
    """Keep a share of the rows or, with `by`, of a key's values with all their rows."""

    keep_percent: KeepPercent
    """Percentage of the rows, or of the key's values, that is kept, 0 to 100: an integer, or a
    decimal number as a text, such as `"0.5"`."""
    by: Columns | None = None
    """The key whose rows stay together."""
    seed: Seed = 0
    """The same seed keeps the same rows."""


class WeightStep(SpecModel):
    """Multiply a weight column, created as 1.0 if absent, by an expression (null counts as 0)."""

    column: Column
    """The weight column; created as 1.0 if absent."""
    by: Expression
    """A numeric expression."""


class RenamedColumn(SpecModel):
    """A column and its new name."""

    name: Column
    """Present name of the column."""
    new_name: Column
    """New name of the column."""


class RenameStep(SpecModel):
    """Rename columns, all at once."""

    columns: Annotated[
        tuple[RenamedColumn, ...],
        Field(min_length=1, max_length=MAX_COLUMNS),
        AfterValidator(check_unique_names),
    ]
    """Columns to rename, by their present names; no two new names may be equal."""

    def rules(self) -> Iterator[tuple[str, str]]:
        counts = Counter(column.new_name for column in self.columns)
        for name in sorted(name for name, count in counts.items() if count > 1):
            yield "columns", f"must not give two columns one name, got {name!r} twice; rename one"


class SelectStep(SpecModel):
    """Keep these columns, in this order."""

    columns: Columns
    """The columns to keep, in this order."""


class DropStep(SpecModel):
    """Drop these columns."""

    columns: Columns
    """The columns to drop."""


class TypedColumn(SpecModel):
    """A column and its type."""

    name: Column
    """Name of the column."""
    type: TypeName
    """Type, as Arrow names it (`int64`, `float32`, `list<int64>`)."""


class CastStep(SpecModel):
    """Convert columns to a type, named as Arrow names it (int64, float32, list<int64>, …)."""

    columns: Annotated[
        tuple[TypedColumn, ...],
        Field(min_length=1, max_length=MAX_COLUMNS),
        AfterValidator(check_unique_names),
    ]
    """Columns to convert, by name."""


class FilledColumn(SpecModel):
    """A column and the constant that replaces its nulls."""

    name: Column
    """Name of the column."""
    value: Constant
    """Constant that replaces nulls: a boolean, an integer or a text. A number with a point is
    written as a text, such as `"0.5"`."""


class FillNullStep(SpecModel):
    """Replace nulls of columns by a constant."""

    columns: Annotated[
        tuple[FilledColumn, ...],
        Field(min_length=1, max_length=MAX_COLUMNS),
        AfterValidator(check_unique_names),
    ]
    """Columns whose nulls are replaced, by name."""


class PadSequenceStep(SpecModel):
    """Make every list of the columns exactly `length` long: cut its end, or pad it with `value`."""

    columns: Columns
    """List columns."""
    length: Annotated[int, Field(ge=1, le=1_000_000)]
    """Length of every list: longer ones lose their end, shorter ones are padded."""
    value: Number = 0
    """Value that pads the lists: an integer, or a number as a text, such as `"0.5"`."""


class TruncateStep(SpecModel):
    """Cut lists of the columns to at most `length` items, from their head or their tail."""

    columns: Columns
    """List columns."""
    length: Annotated[int, Field(ge=0, le=1_000_000)]
    """Largest number of items to keep."""
    keep: Literal["Head", "Tail"] = "Head"
    """The end to keep."""


class HashBucketStep(SpecModel):
    """Replace ids (integers, strings, lists of them) by a hash in [0, buckets); null stays null."""

    columns: Columns
    """Integer or string columns, or lists of them."""
    buckets: PositiveInt
    """Number of buckets; ids become 0 to `buckets` - 1."""
    seed: Seed = 0
    """Different seeds give different hashes."""


class MapResources(SpecModel):
    """Ray's logical resources that one call of a `map` function needs."""

    cpu: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Cores that one call needs."""
    gpu: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs that one call needs."""
    memory_bytes: Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)] | None = None
    """Memory that one call needs."""


class MapStep(SpecModel):
    """Call the user's function on each table; a step with resources runs as tasks of its own."""

    function: ImportPath
    """`package.module:function`."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments, checked against the function's signature; no credentials."""
    format: Literal["Arrow", "Numpy", "Torch"] = "Arrow"
    """Format of the function's input and output."""
    input_columns: Columns | None = None
    """Columns that the function reads; all if absent."""
    output_columns: (
        Annotated[
            tuple[TypedColumn, ...],
            Field(max_length=MAX_COLUMNS),
            AfterValidator(check_unique_names),
        ]
        | None
    ) = None
    """Columns that the function adds or changes, by name; if absent, found before the run by one
    call on an empty table."""
    changes_rows: bool = False
    """True if the function may drop or add rows."""
    resources: MapResources | None = None
    concurrency: PositiveInt | None = None
    """Largest number of concurrent calls."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from check_options("options", self.options)


class Step(SpecModel):
    """One step: exactly one kind, and perhaps a name."""

    name: Label | None = None
    """Name of the step, unique in the pipeline, for people and for `--set`; another name makes no
    other run."""
    filter: FilterStep | None = None
    derive: DeriveStep | None = None
    anti_join: AntiJoinStep | None = None
    join: JoinStep | None = None
    downsample: DownsampleStep | None = None
    sample: SampleStep | None = None
    weight: WeightStep | None = None
    rename: RenameStep | None = None
    select: SelectStep | None = None
    drop: DropStep | None = None
    cast: CastStep | None = None
    fill_null: FillNullStep | None = None
    pad_sequence: PadSequenceStep | None = None
    truncate: TruncateStep | None = None
    hash_bucket: HashBucketStep | None = None
    map: MapStep | None = None

    def rules(self) -> Iterator[tuple[str, str]]:
        given = self._given()
        if len(given) > 1:
            got = " and ".join(given)
            yield "", f"must have exactly one step kind, got {got}; write each step as a list item"
        elif not given:
            kinds = ", ".join(list_kinds())
            yield "", f"must have exactly one step kind, got none; write one of {kinds}"

    def _given(self) -> list[str]:
        kinds = _KINDS.items()
        return [alias for name, alias in kinds if getattr(self, name, None) is not None]

    @property
    def kind(self) -> str:
        """The step's kind as the manifest writes it, such as `antiJoin`."""
        return self._given()[0]

    @property
    def config(self) -> SpecModel:
        """The model of the step's kind."""
        values: list[Any] = [getattr(self, name) for name in _KINDS]
        return next(value for value in values if isinstance(value, SpecModel))


# Field of `Step` to kind of step, as a manifest writes it.
_KINDS = {name: f.alias or name for name, f in Step.model_fields.items() if name != "name"}


def list_kinds() -> list[str]:
    """Return the kinds of steps, as a manifest writes them."""
    return list(_KINDS.values())


class DebugOptions(SpecModel):
    """Switches that turn single optimisations off, to compare or to find a fault. None of them
    changes the rows."""

    pushdown: bool = True
    """Predicates prune partitions and row groups."""
    projection: bool = True
    """Only columns that are used are read."""
    late_materialization: bool = True
    """If filters empty many row groups or pages, the other columns are read after filtering."""
    fusion: bool = True
    """Adjacent steps run in the task that reads."""
    broadcast: bool = True
    """Side tables are read once and shared."""
    kernels: bool = True
    """Compiled kernels pad, hash and copy lists of numbers; false turns `pageDecoding` off too."""
    page_decoding: bool = True
    """Compiled kernels, rather than pyarrow, decode numbers and lists of numbers."""
    deduplication: bool = True
    """Columns that a request's rows share are read and processed once per request."""
    prefetch: bool = True
    """The next batch is made while the trainer computes."""
    ready_batches: bool = True
    """Data workers cut and collate the batches; else, or with `preserveOrder`, the trainer does."""
    sparse: bool = True
    """Lists that are mostly padding are sent without it, and padded on the device."""
    batched_calls: bool = True
    """One call asks a data worker for several short chunks."""
    shared_memory: bool = True
    """Data workers that are processes share memory with a trainer on the same machine."""
    read_ahead: bool = True
    """A data worker reads the next rows from a store while it processes the previous ones."""


class PipelineOptions(SpecModel):
    """Options of the planner and the feed; none of them changes the rows."""

    feed: Literal["Auto", "Threads", "Readers", "RayData"] = "Auto"
    """The engine of the training feed; `explain` shows the choice of `Auto` and the reason."""
    preserve_order: bool = False
    """The seed fixes the order of batches, and a resumed run repeats it exactly."""
    rows_per_block: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Largest number of rows in a chunk; derived from the files' row width if absent."""
    compression: Literal["Auto", "None", "lz4", "zstd"] = "Auto"
    """Codec of batches between processes; `Auto` measures codecs once a trainer waits."""
    debug: DebugOptions = Field(default_factory=DebugOptions)
