"""Step `materialize`: keep the rows in a table.

The step changes no row: the planner reads the table in place of the steps before it, once the
table has all rows (`plan.materialized`). So binding checks that the table can hold each column and
gives it back with the same type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import pyarrow as pa

from pipeline_runtime.bucketing import check_bucketable
from pipeline_runtime.iceberg.schemas import find_writable
from pipeline_runtime.steps.base import BindContext, BoundStep
from pipeline_runtime.steps.checks import Checks, broken, find_field
from pipeline_runtime.steps.materialize.model import MaterializeStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialize(BoundStep):
    """Returns the rows as they are."""

    kind: ClassVar[str] = "materialize"

    @classmethod
    def bind(
        cls, config: MaterializeStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        with checks.at("bucketBy"):
            _check_bucket(find_field(input_schema, config.bucket_by))
        for index, name in enumerate(config.sort_by or ()):
            with checks.at(f"sortBy[{index}]"):
                _check_sort(find_field(input_schema, name))
        for field in input_schema:
            with checks.at():
                _check_kept(field)
        checks.finish()
        return cls(output_schema=input_schema)

    def __call__(self, table: pa.Table) -> pa.Table:
        return table


def _check_bucket(field: pa.Field) -> None:
    try:
        check_bucketable(field.type)
    except TypeError as error:
        raise broken(str(error)) from error


def _check_sort(field: pa.Field) -> None:
    """Refuse types by which rows of Iceberg files are not sorted: Arrow has NaN elsewhere."""
    if pa.types.is_nested(field.type) or pa.types.is_floating(field.type):
        raise broken(
            f"must be a column by which files can be sorted, but {field.name!r} is {field.type}; "
            "leave it out"
        )


def _check_kept(field: pa.Field) -> None:
    try:
        written = find_writable(field.type)
    except TypeError as error:
        raise broken(f"column {field.name!r} {error}") from error
    if written != field.type:
        raise broken(
            f"must have columns of types that Iceberg has, but {field.name!r} is {field.type}; "
            f"cast it to {written} in a step before, or make it in a step after"
        )
