"""The columns of a table to write, and whether they can be written; `build` asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.config import ExperimentSpec, Output
from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.plan.model import OutputPlan
from pipeline_runtime.sources.partition_names import find_name_fault, find_partition_type
from pipeline_runtime.steps.base import public_schema
from pipeline_runtime.steps.checks import unknown_column


def find_output_columns(spec: ExperimentSpec, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns of the table, those of the partitions included.

    Args:
        schema: the pipeline's output.

    Raises ManifestError with every column that is unknown or cannot be written.
    """
    output = spec.output
    assert output is not None
    partition_by = output.partition_by or ()
    wanted = output.columns or tuple(public_schema(schema).names)
    columns = tuple(dict.fromkeys([*wanted, *partition_by]))
    fields = dict.fromkeys(columns, "columns") | dict.fromkeys(partition_by, "partitionBy")
    problems = [
        _problem(fields[name], unknown_column(name, schema.names, "the pipeline's output"))
        for name in columns
        if name not in schema.names
    ]
    if not problems:
        problems += _find_partition_problems(partition_by, schema)
        stored = [schema.field(name) for name in columns if name not in partition_by]
        if not stored:
            problems.append(
                _problem(
                    "partitionBy", "must leave a column for the files, but has all; remove one"
                )
            )
        problems += [_problem("columns", text) for text in _find_unwritable(stored)]
    if problems:
        raise ManifestError(problems)
    return columns


def plan_output(output: Output, columns: tuple[str, ...]) -> OutputPlan:
    """Return the plan of a table with these columns."""
    return OutputPlan(columns=columns, partition_by=output.partition_by or ())


def _problem(field: str, message: str) -> Problem:
    return Problem(path=f"spec.output.{field}", message=message)


def _find_partition_problems(columns: tuple[str, ...], schema: pa.Schema) -> Iterator[Problem]:
    for name in columns:
        kind = schema.field(name).type
        if find_partition_type(kind) is None:
            yield _problem(
                "partitionBy",
                f"column {name!r} must hold texts, integers, booleans or dates, but is {kind}; "
                "cast it in a step",
            )
        elif fault := find_name_fault(name):
            yield _problem("partitionBy", f"column {name!r} cannot be a folder: {fault}; rename it")


def _find_unwritable(fields: list[pa.Field]) -> Iterator[str]:
    """Yield what is wrong with each column whose type Parquet does not have."""
    if _find_fault(pa.schema(fields)) is None:
        return
    for field in fields:
        if fault := _find_fault(pa.schema([field])):
            yield (
                f"column {field.name!r} cannot be written to Parquet as {field.type}: {fault}; "
                "cast or drop it in a step"
            )


def _find_fault(schema: pa.Schema) -> str | None:
    """Return why Parquet cannot have these columns; None if it can."""
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except (pa.ArrowException, NotImplementedError) as error:
        return str(error)
    return None
