"""Step `map`: the user's own function on each table.

Binding imports the function (`functions`), checks its options and finds the columns of its output.
Calling converts the batch to the function's format (`batch_forms`), calls the function and checks
its result. An exception of the function is not caught: the caller wraps it with the file and rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import pyarrow as pa
from pydantic import JsonValue

from pipeline_runtime.errors import StepError
from pipeline_runtime.steps.base import (
    ROW_HASH_COLUMN,
    BindContext,
    BoundStep,
    is_internal,
    public_schema,
)
from pipeline_runtime.steps.checks import Checks, broken, find_field, replace_types, set_column
from pipeline_runtime.steps.map.batch_forms import FORMATS
from pipeline_runtime.steps.map.functions import UserFunction, check_options, load_function
from pipeline_runtime.steps.map.model import MapStep
from pipeline_runtime.steps.type_names import TypeNameError, parse_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(BoundStep):
    """Calls a function of the user on each table.

    With `outputColumns` those columns are taken from its result and all others stay as they were;
    without, the columns that it was given are replaced by those that it returns. Columns that it
    was not given (`inputColumns`) stay, unless it changes the number of rows: then only its result
    counts.
    """

    kind: ClassVar[str] = "map"

    function: str  # module:name, imported on the worker
    options: Mapping[str, JsonValue]
    format: Literal["Arrow", "Numpy", "Torch"]
    given: tuple[str, ...]  # the columns that the function sees
    returned: pa.Schema  # the columns that are taken from its result
    dropped: frozenset[str]  # given, and not in the output

    @property
    def is_elementwise(self) -> bool:
        return False  # the function may look at all rows that it is given

    @property
    def keeps_places(self) -> bool:
        return False

    @property
    def calls_user_code(self) -> bool:
        return True

    @property
    def runs_alone(self) -> bool:
        return self.resources is not None or self.concurrency is not None

    @classmethod
    def bind(
        cls, config: MapStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        given = _given_schema(checks, config, input_schema)
        declared = _declared_types(checks, config)
        function = _check_function(checks, config)
        checks.finish()
        assert function is not None  # else a problem was noted
        returned = given if config.changes_rows else pa.schema([])
        if declared is not None:
            returned, dropped = replace_types(returned, declared), frozenset[str]()
        else:
            with checks.at("outputColumns"):
                returned = _ask(config, function, given)
            checks.finish()
            dropped = frozenset(given.names) - frozenset(returned.names)
        kept = pa.schema([field for field in input_schema if field.name not in dropped])
        types = {field.name: field.type for field in returned}
        return cls(
            function=config.function,
            options=config.options,
            format=config.format,
            given=tuple(given.names),
            returned=returned,
            dropped=dropped,
            changes_rows=config.changes_rows,
            resources=config.resources,
            concurrency=config.concurrency,
            inputs=frozenset(given.names),
            outputs=frozenset(returned.names),
            output_schema=returned if config.changes_rows else replace_types(kept, types),
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        function = load_function(self.function)
        batch_format = FORMATS[self.format]
        internal = [name for name in table.schema.names if is_internal(name)]
        seen = [*self.given, *(internal if self.changes_rows else ())]
        result = function(batch_format.to_batch(table.select(seen)), **self.options)
        try:
            rows = batch_format.to_table(result, {f.name: f.type for f in self.returned})
            self._check(rows, table)
        except StepError as error:
            raise StepError(f"map.function: {self.function} {error}") from error
        if self.changes_rows:
            internal = [name for name in rows.schema.names if is_internal(name)]
            return rows.select([*self.returned.names, *internal])
        kept = table.select([name for name in table.schema.names if name not in self.dropped])
        for name in self.returned.names:
            kept = set_column(kept, name, rows.column(name))
        return kept

    def _check(self, rows: pa.Table, table: pa.Table) -> None:
        names = rows.schema.names
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise StepError(f"must return every column once, got {repeated!r} twice; rename one")
        for field in self.returned:
            _check_column(rows, field)
        for name in rows.schema.names:
            if not (name in self.returned.names or name in self.given or is_internal(name)):
                raise StepError(
                    f"must return the columns {self.returned.names}, got {name!r} too; declare it "
                    "in outputColumns or leave it out"
                )
        if self.changes_rows:
            _check_row_hash(rows, table)
        elif rows.num_rows != table.num_rows:
            raise StepError(
                f"must return as many rows as it was given ({table.num_rows}), got "
                f"{rows.num_rows}; set changesRows: true if that is meant"
            )


def _check_column(rows: pa.Table, field: pa.Field) -> None:
    if field.name not in rows.schema.names:
        raise StepError(
            f"must return the column {field.name!r} of type {field.type}, got the columns "
            f"{rows.schema.names}"
        )
    got = rows.schema.field(field.name).type
    if got != field.type:
        raise StepError(
            f"must return the column {field.name!r} as {field.type}, got {got}; cast it in the "
            "function or change outputColumns"
        )


def _check_row_hash(rows: pa.Table, table: pa.Table) -> None:
    """Refuse rows without their identity: later sampling would be at random."""
    if ROW_HASH_COLUMN not in table.schema.names:
        return
    if ROW_HASH_COLUMN not in rows.schema.names:
        raise StepError(
            f"must return the column {ROW_HASH_COLUMN} with changesRows, got {rows.schema.names}; "
            "it is each row's identity, which sampling and checksums need: keep it with the row it "
            "came with, and repeat it where a row is repeated"
        )
    _check_column(rows, pa.field(ROW_HASH_COLUMN, pa.uint64()))


def _given_schema(checks: Checks, config: MapStep, input_schema: pa.Schema) -> pa.Schema:
    """Return the columns that the function gets, checked against its format."""
    fields = [] if config.input_columns else list(public_schema(input_schema))
    for index, name in enumerate(config.input_columns or ()):
        with checks.at(f"inputColumns[{index}]"):
            fields.append(find_field(input_schema, name))
    given = pa.schema(fields)
    with checks.at("format"):
        FORMATS[config.format].check_input(given)
        if config.changes_rows and not FORMATS[config.format].carries_row_hash:
            raise broken(
                "must be Arrow or Numpy with changesRows, so that the function can return "
                f"{ROW_HASH_COLUMN}, got {config.format!r}"
            )
    return given


def _declared_types(checks: Checks, config: MapStep) -> dict[str, pa.DataType] | None:
    if config.output_columns is None:
        return None
    types = {}
    for index, column in enumerate(config.output_columns):
        try:
            types[column.name] = parse_type(column.type)
        except TypeNameError as error:
            checks.add(f"outputColumns[{index}].type", str(error))
    return types


def _check_function(checks: Checks, config: MapStep) -> UserFunction | None:
    function = None
    with checks.at("function"):
        function = load_function(config.function)
    if function is not None:
        with checks.at("options"):
            check_options(function, config.options)
    return function


def _ask(config: MapStep, function: UserFunction, given: pa.Schema) -> pa.Schema:
    """Return the columns that the function returns for an empty table."""
    batch_format = FORMATS[config.format]
    if config.changes_rows:  # which the function is to hand on
        given = given.append(pa.field(ROW_HASH_COLUMN, pa.uint64()))
    types = {field.name: field.type for field in given}
    try:
        result = function(batch_format.to_batch(given.empty_table()), **config.options)
        returned = public_schema(batch_format.to_table(result, types).schema)
    except Exception as error:  # whatever the user's function raises
        raise broken(
            f"must be declared unless {config.function} can be asked with an empty table, which "
            f"raised {type(error).__name__}: {error}; add outputColumns with the name and type of "
            "each column that it adds or changes"
        ) from error
    unknown = [field.name for field in returned if pa.types.is_null(field.type)]
    if unknown:
        raise broken(
            f"must be declared, since {config.function} gives {unknown[0]!r} no type on an empty "
            "table; add it to outputColumns with its type"
        )
    return returned
