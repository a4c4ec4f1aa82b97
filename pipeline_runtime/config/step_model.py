"""The base of the models of steps, and the parts that several of them share.

Each folder of `pipeline_runtime.steps` declares one step. Its `model.py` has a subclass of
`StepModel`, which `step_registry` finds and `steps` makes a field of `Step`. Everything that can be
said of a step without the table's schema is declared here, so that the operator, the CRD, the
reference and the fluent API learn it from one place. `steps.base.Transform` declares the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints
from pydantic.alias_generators import to_camel

from pipeline_runtime.config.base import MAX_SAFE_INTEGER, CelRule, Column, SpecModel
from pipeline_runtime.config.dataset import SourceChoice

Arguments = dict[str, Any]
Names = str | Sequence[str]
# The side table of a join: URIs of Parquet files, or the fields of `iceberg`.
Side = Names | Mapping[str, str]
# The key of a join: columns by name or, if the sides name them differently, left name to right.
Keys = Names | Mapping[str, str] | Sequence[str | Mapping[str, str]]
TypeName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
# The rows that a sampling step thins: those of the training alone, or also those of the evaluation.
ApplyTo = Literal["Training", "All"]


class StepModel(SpecModel):
    """A kind of step: its fields, and what they say without the table's schema.

    The name of its folder is the name of the method in the fluent API and, in camelCase, the key in
    a manifest. The docstrings of the class and of its fields are the documentation.
    """

    # Fields, in camelCase, that change how the step is carried out but not the rows: they are no
    # part of a run's identity.
    unhashed_fields: ClassVar[tuple[str, ...]] = ()
    # Those of them, as attributes, that refuse rows: rows are kept only for runs with equal limits.
    limits: ClassVar[tuple[str, ...]] = ()
    cel_rules: ClassVar[tuple[CelRule, ...]] = ()
    # True if the step computes columns of each row by itself, so that rows that a trained model is
    # to score need it too.
    is_preprocessing: ClassVar[bool] = False

    # True if rows can be measured on their way to trainers too, not only to a table.
    measures_training: ClassVar[bool] = False

    @classmethod
    def folder(cls) -> str:
        """Return the name of the step's folder, such as `anti_join`."""
        return cls.__module__.split(".")[-2]

    @classmethod
    def kind(cls) -> str:
        """Return the step's kind as a manifest has it, such as `antiJoin`."""
        return to_camel(cls.folder())

    @classmethod
    def from_python(cls, *arguments: Any, **options: Any) -> Arguments:
        """Return the fields, in snake_case, for the arguments of the method of the fluent API.

        `tools.steps` writes the method with the signature of an override. Without one, it derives
        the signature from the fields.
        """
        raise NotImplementedError(f"{cls.__name__} derives its method from its fields")

    @classmethod
    def shorten(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields, as JSON values, in the shortest of the spellings that mean the same.

        The identity of a run is made of it.
        """
        return fields

    def describe(self) -> str:
        """Return the step's fields as one line for people, without its kind."""
        return ", ".join(self.find_inputs())

    def find_expressions(self) -> Iterator[tuple[str, str]]:
        """Yield the field and text of each expression over the step's input."""
        yield from ()

    def find_side_expressions(self) -> Iterator[tuple[str, str]]:
        """Yield the field and text of each expression over the side table."""
        yield from ()

    def find_types(self) -> Iterator[tuple[str, str]]:
        """Yield the field and text of each type's name that `validate` checks."""
        yield from ()

    def find_inputs(self) -> Iterable[str]:
        """Return the columns of the input that fields name, without those in expressions."""
        return ()

    def find_outputs(self) -> frozenset[str] | None:
        """Return the columns that the step adds or changes; None if the fields do not say."""
        return frozenset()

    def find_functions(self) -> Iterator[str]:
        """Yield the `module:name` of each function of the user that the step calls."""
        yield from ()

    def find_scores(self) -> tuple[str, ...]:
        """Return the columns that models make, in the order of the manifest."""
        return ()

    def find_side_table(self) -> SourceChoice | None:
        """Return the second table that the step reads."""
        return None

    def find_catalog(self) -> str | None:
        """Return the name of the Iceberg catalog that the step needs."""
        side_table = self.find_side_table()
        return side_table.iceberg.catalog if side_table and side_table.iceberg else None

    def find_measured(self) -> str | None:
        """Return the name of what measures all rows at the step's place; None if nothing does."""
        return None

    def find_worker_groups(self) -> Iterator[tuple[str, str]]:
        """Yield the field and the name of each group of `inferenceWorkers` that the step uses."""
        yield from ()

    def find_seed(self) -> int | None:
        """Return the seed of a step that draws or hashes."""
        return None


class TypedColumn(SpecModel):
    """A column and its type."""

    name: Column
    """Name of the column."""
    type: TypeName
    """Type, as Arrow names it (`int64`, `float32`, `list<int64>`)."""


class MapResources(SpecModel):
    """Ray's logical resources that one call of a `map` function needs."""

    cpu: Annotated[int, Field(ge=0, le=1024)] | None = None
    """Cores that one call needs."""
    gpu: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs that one call needs."""
    memory_bytes: Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)] | None = None
    """Memory that one call needs."""


def describe_columns(columns: Iterable[SpecModel]) -> str:
    """Return objects of two fields as one line, such as `x: float32, y: int8`."""
    pairs = (column.model_dump().values() for column in columns)
    return ", ".join(f"{name}: {value}" for name, value in pairs)


def build_parquet(uri: Names, s3: Mapping[str, Any] | None) -> Arguments:
    """Return the fields of a Parquet source."""
    location: Arguments = {"uri": uri} if isinstance(uri, str) else {"uris": list(uri)}
    return location | {"s3": s3}


def build_side(table: Side, s3: Mapping[str, Any] | None) -> Arguments:
    """Return the source of a side table: Parquet by its URIs, or Iceberg by its fields."""
    if isinstance(table, Mapping):
        return {"iceberg": dict(table)}
    return {"parquet": build_parquet(table, s3)}


def to_list(names: Names | None) -> list[str] | None:
    """Return names as a list; a single name may stand for a list of one."""
    if names is None:
        return None
    return [names] if isinstance(names, str) else list(names)
