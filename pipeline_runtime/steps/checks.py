"""Checks of a step while it is bound, before anything runs, and the collection of their failures.

A problem's path begins with the step's kind (`filter.where`); `bind_step` prepends the step's own
path. The helpers here raise `ManifestError`, which `Checks.at` collects.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.errors import (
    ExpressionError,
    ManifestError,
    Problem,
    SourceError,
    StepError,
    StoreError,
)
from pipeline_runtime.steps.base import ROW_HASH_COLUMN
from pipeline_runtime.steps.list_columns import decoded_type

# difflib's similarity, 0 to 1: its default, which catches one or two wrong letters.
_CLOSE_ENOUGH = 0.6
# Names to list in a message if none is close; more would bury the rule.
_MAX_NAMES_SHOWN = 12


def broken(message: str, path: str = "") -> ManifestError:
    """Return one broken rule as an exception."""
    return ManifestError([Problem(path=path, message=message)])


class Checks:
    """Collects the broken rules of one step, or of a part of it, which has no kind of its own.

    Users see all of them at once.

    Code that may fail goes in `with checks.at(field):`; `finish` raises the collected problems.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._problems: list[Problem] = []

    def add(self, field: str, message: str) -> None:
        path = ".".join(part for part in (self._kind, field) if part)
        self._problems.append(Problem(path=path, message=message))

    @contextmanager
    def at(self, field: str = "") -> Iterator[None]:
        try:
            yield
        except ManifestError as error:
            for problem in error.problems:
                self.add(".".join(part for part in (field, problem.path) if part), problem.message)
        except StoreError:
            raise  # a store that does not answer is no fault of the manifest
        except SourceError as error:
            self.add(".".join(part for part in (field, error.field) if part), error.message)
        except (ExpressionError, StepError) as error:
            self.add(field, str(error))

    def finish(self) -> None:
        if self._problems:
            raise ManifestError(self._problems)


def find_field(schema: pa.Schema, name: str) -> pa.Field:
    """Return the field of that name. Raises a broken rule with a suggestion if there is none."""
    index = schema.get_field_index(name)
    if index < 0:
        raise broken(unknown_column(name, schema.names))
    return schema.field(index)


def unknown_column(name: str, known: Iterable[str], what: str = "the step's input") -> str:
    return f"must be a column of {what}, got {name!r}; {suggestion(name, known)}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?`, or else a list of the known names."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=_CLOSE_ENOUGH)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(names[:_MAX_NAMES_SHOWN]) or "none"
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return f"there are: {shown}{more}"


def parse_condition(text: str, schema: pa.Schema) -> expressions.Expression:
    """Return the expression, which must be a boolean over the schema's columns."""
    expression = expressions.parse(text)
    expressions.check_boolean(expression, schema)
    return expression


def parse_value(text: str, schema: pa.Schema) -> tuple[expressions.Expression, pa.DataType]:
    """Return the expression and its type over the schema's columns."""
    expression = expressions.parse(text)
    return expression, expressions.infer_type(expression, schema)


def check_number(schema: pa.Schema, name: str) -> None:
    """Check that a column has numbers or booleans, be it a dictionary of them."""
    field = find_field(schema, name)
    kind = decoded_type(field.type)
    is_known = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_boolean,
    )
    if not any(test(kind) for test in is_known):
        raise broken(
            f"must be a column of numbers or booleans, got {name!r} of type {field.type}; cast it "
            "in a step before"
        )


def check_weight(schema: pa.Schema, name: str) -> None:
    """Check that a weight column, if it exists, is a float or double, so that products fit."""
    index = schema.get_field_index(name)
    if index < 0:
        return
    data_type = schema.field(index).type
    if not (pa.types.is_float32(data_type) or pa.types.is_float64(data_type)):
        raise broken(f"must be a float or double column, got {name!r} of type {data_type}; cast it")


def replace_types(schema: pa.Schema, types: dict[str, pa.DataType]) -> pa.Schema:
    """Return the schema with these columns' types replaced in place, or appended if new."""
    for name, data_type in types.items():
        index = schema.get_field_index(name)
        field = pa.field(name, data_type)
        schema = schema.append(field) if index < 0 else schema.set(index, field)
    return schema


def set_column(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the table with the column replaced in place, or appended if new."""
    index = table.schema.get_field_index(name)
    if index < 0:
        return table.append_column(name, column)
    return table.set_column(index, name, column)


def row_hashes(table: pa.Table, kind: str) -> pa.ChunkedArray:
    """Return the rows' identity hashes, which the planner adds for steps that need them."""
    if ROW_HASH_COLUMN not in table.schema.names:
        raise StepError(
            f"{kind}: must have the column {ROW_HASH_COLUMN} (identity of a row), got a table "
            "without it; add it with pipeline_runtime.steps.add_row_hash"
        )
    return table.column(ROW_HASH_COLUMN)
