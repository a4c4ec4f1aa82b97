"""The last-mile steps as a manifest writes them, one model each, and the options of the planner.

A step of a pipeline is a mapping with exactly one key, the step's kind. `pipeline_runtime.steps`
holds one module a kind, which turns such a model into work on Arrow tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, StringConstraints

from pipeline_runtime.config.base import (
    MAX_COLUMNS,
    Column,
    Columns,
    Expression,
    ImportPath,
    PositiveInt,
    Seed,
    SpecModel,
    check_options,
)
from pipeline_runtime.config.dataset import SourceChoice

# What a side table may hold in memory on each data worker unless the step says otherwise: 1 GiB.
DEFAULT_SIDE_TABLE_BYTES = 1 << 30

KeepPercent = Annotated[int, Field(ge=0, le=100)]
TypeName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Scalar = bool | int | float | str


class FilterStep(SpecModel):
    """Keep the rows for which `where` is true (false and null are dropped)."""

    where: Expression


class DeriveStep(SpecModel):
    """Add or replace columns, each from an expression over the step's input columns."""

    columns: Annotated[dict[Column, Expression], Field(min_length=1, max_length=MAX_COLUMNS)]


class SideTableStep(SourceChoice):
    """What joins share: a small table, the keys, and the memory that it may take."""

    on: Columns | None = None  # the key's name on both sides
    left_on: Columns | None = None
    right_on: Columns | None = None
    where: Expression | None = None  # rows of the side table that count
    max_bytes: Annotated[int, Field(ge=1, le=1 << 40)] = DEFAULT_SIDE_TABLE_BYTES

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from super().rules()
        if self.on:
            if self.left_on or self.right_on:
                yield "on", "must not come with leftOn or rightOn, got both; keep one way"
        elif not (self.left_on and self.right_on):
            yield "on", "must name the key: on, or leftOn with rightOn, got neither"
        elif len(self.left_on) != len(self.right_on):
            expected, got = len(self.left_on), len(self.right_on)
            yield "rightOn", f"must have as many columns as leftOn ({expected}), got {got}"

    @property
    def left_keys(self) -> tuple[str, ...]:
        return self.on or self.left_on or ()

    @property
    def right_keys(self) -> tuple[str, ...]:
        return self.on or self.right_on or ()


class AntiJoinStep(SideTableStep):
    """Drop the rows whose key is in the side table (SQL's NOT EXISTS: a null key is kept)."""


class JoinStep(SideTableStep):
    """Add columns of the side table to the rows whose key is in it (a null key never matches)."""

    how: Literal["inner", "left"] = "left"
    columns: Columns | None = None  # of the side table; all but the keys when absent


class DownsampleStep(SpecModel):
    """Keep a share of the rows (of those that `where` selects), by a hash of seed and identity."""

    keep_percent: KeepPercent
    where: Expression | None = None
    seed: Seed = 0
    weight_column: Column | None = None  # multiplied by 100 / keepPercent where thinned


class SampleStep(SpecModel):
    """Keep a share of the rows (`by` absent), or of the values of a key with all their rows."""

    keep_percent: KeepPercent
    by: Columns | None = None
    seed: Seed = 0


class WeightStep(SpecModel):
    """Multiply a weight column, created as 1.0 if absent, by an expression (null counts as 0)."""

    column: Column
    by: Expression


class RenameStep(SpecModel):
    """Rename columns: old name to new name, all at once."""

    columns: Annotated[dict[Column, Column], Field(min_length=1, max_length=MAX_COLUMNS)]

    def rules(self) -> Iterator[tuple[str, str]]:
        new = list(self.columns.values())
        for name in sorted({name for name in new if new.count(name) > 1}):
            yield "columns", f"must not give two columns one name, got {name!r} twice; rename one"


class SelectStep(SpecModel):
    """Keep these columns, in this order."""

    columns: Columns


class DropStep(SpecModel):
    """Drop these columns."""

    columns: Columns


class CastStep(SpecModel):
    """Convert columns to a type, named as Arrow names it (int64, float32, list<int64>, …)."""

    columns: Annotated[dict[Column, TypeName], Field(min_length=1, max_length=MAX_COLUMNS)]


class FillNullStep(SpecModel):
    """Replace nulls of columns by a constant."""

    columns: Annotated[dict[Column, Scalar], Field(min_length=1, max_length=MAX_COLUMNS)]


class PadSequenceStep(SpecModel):
    """Make every list of the columns exactly `length` long: cut the end, fill up with `value`."""

    columns: Columns
    length: Annotated[int, Field(ge=1, le=1_000_000)]
    value: int | float = 0


class TruncateStep(SpecModel):
    """Cut lists of the columns to at most `length` items, from their head or their tail."""

    columns: Columns
    length: Annotated[int, Field(ge=0, le=1_000_000)]
    keep: Literal["head", "tail"] = "head"


class HashBucketStep(SpecModel):
    """Replace ids (integers, strings, lists of them) by a hash in [0, buckets); null stays null."""

    columns: Columns
    buckets: PositiveInt
    seed: Seed = 0


class MapResources(SpecModel):
    """What one call of a `map` function needs of a data worker, in Ray's logical resources."""

    cpu: Annotated[int, Field(ge=0, le=1024)] | None = None
    gpu: Annotated[int, Field(ge=0, le=64)] | None = None
    memory_bytes: Annotated[int, Field(ge=1)] | None = None


class MapStep(SpecModel):
    """Call the user's function on each table; a step with resources runs as tasks of its own."""

    function: ImportPath
    options: dict[str, JsonValue] = Field(default_factory=dict)  # keyword arguments of the function
    format: Literal["arrow", "numpy", "torch"] = "arrow"
    input_columns: Columns | None = None  # what the function reads; all when absent
    # Types of the columns that the function adds or changes; without them the function is asked
    # once, on an empty table, before anything runs.
    output_columns: dict[Column, TypeName] | None = None
    changes_rows: bool = False
    resources: MapResources | None = None
    concurrency: PositiveInt | None = None

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from check_options("options", self.options)


class Step(SpecModel):
    """One step: exactly one of these keys."""

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
            yield "", f"must have exactly one step kind, got {got}; make it one list item a step"
        elif not given:
            kinds = ", ".join(
                field.alias or name for name, field in type(self).model_fields.items()
            )
            yield "", f"must have exactly one step kind, got none; write one of {kinds}"

    def _given(self) -> list[str]:
        fields = type(self).model_fields
        return [f.alias or n for n, f in fields.items() if getattr(self, n) is not None]

    @property
    def kind(self) -> str:
        """The step's kind as the manifest writes it, such as `antiJoin`."""
        return self._given()[0]

    @property
    def config(self) -> SpecModel:
        """The model of the one kind that is given."""
        values: list[Any] = [getattr(self, name) for name in type(self).model_fields]
        return next(value for value in values if isinstance(value, SpecModel))


class PipelineOptions(SpecModel):
    """Switches of the planner and the feed; rows are the same whichever way they stand."""

    feed: Literal["auto", "rayData"] = "auto"
    preserve_order: bool = False  # global batch order is fixed by the seed; a resume repeats it
    pushdown: bool = True  # predicates prune partitions and row groups
    projection: bool = True  # only columns that something uses are read
    fusion: bool = True  # adjacent steps run in the task that reads
    broadcast: bool = True  # side tables are read once and shared, not read by every worker
    # Rows that one piece of work reads and hands on, at most; from the files' row width if absent.
    rows_per_block: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
