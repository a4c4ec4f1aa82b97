"""Looks a backfill up: the partitions of the source that a staging table lacks.

The planner calls `look_up_backfill` with all steps of a manifest whose `output.mode` is
`OverwritePartitions`. Rows of a partition of the source must be partitions of the staging table
too, so that they can be replaced alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline_runtime.config import IcebergTarget, Output
from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.iceberg.catalogs import (
    ask_catalog,
    asking_catalog,
    describe,
    find_catalog,
    open_catalog,
)
from pipeline_runtime.iceberg.commits import load_or_none
from pipeline_runtime.materialization.coverage import Coverage, find_missing, read_coverage
from pipeline_runtime.materialization.lookup import Completeness, RowsRequest, find_rows
from pipeline_runtime.materialization.recipe import Layout
from pipeline_runtime.materialization.states import Dimension

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill(Completeness):
    """The partitions of a staging table that an experiment computes.

    Attributes:
        catalog: the catalog of the table.
        keys: the columns that identify a row of the table.
        dimensions: the fields of the source's partitions, which the table's partitions have too.
        stored: the coverage of the table.
    """

    catalog: str
    keys: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    stored: Coverage


def look_up_backfill(request: RowsRequest) -> Backfill:
    """Find the partitions of the source that the staging table lacks, or has of other rows.

    Raises ManifestError if the partitions of the staging table are not those of the source,
    SourceError if a catalog or a table cannot be read, StoreError if there is no answer.
    """
    spec = request.experiment.spec
    output = spec.output
    assert output is not None
    target = output.iceberg
    assert target is not None
    layout = Layout(
        bucket_by=target.bucket_by or "",
        buckets=target.buckets or 0,
        sort_by=target.sort_by or (),
    )
    rows = find_rows(request, layout)
    wanted = {key: replace(each, recipe=rows.recipe.hash) for key, each in rows.coverage.items()}
    catalog = open_catalog(find_catalog(request.opening.catalogs, target.catalog))
    what = describe(target.catalog, f"load the table {target.table!r}")
    table = ask_catalog(what, lambda: load_or_none(catalog, target.table))
    stored: Coverage = {}
    if table is not None:
        with asking_catalog(f"{target.table}: cannot read the coverage"):
            stored = read_coverage(table)
    if problems := list(_find_problems(request, output, target, rows.dimensions, table)):
        raise ManifestError(problems)
    newest = table.current_snapshot() if table else None
    return Backfill(
        table=target.table,
        catalog=target.catalog,
        keys=spec.dataset.row_key or (),
        recipe=rows.recipe,
        wanted=wanted,
        missing=find_missing(wanted, stored, rows.is_same),
        partitions=rows.partitions,
        snapshot_id=newest.snapshot_id if newest else None,
        dimensions=rows.dimensions,
        stored=stored,
    )


def find_positions(table: Table, spec_id: int, dimensions: Sequence[Dimension]) -> list[int | None]:
    """Return the place of each dimension among the fields of a table's partition spec."""
    schema = table.schema()
    found = {
        Dimension(
            column=schema.find_column_name(field.source_id), transform=str(field.transform)
        ): place
        for place, field in enumerate(table.specs()[spec_id].fields)
    }
    return [found.get(each) for each in dimensions]


def _find_problems(
    request: RowsRequest,
    output: Output,
    target: IcebergTarget,
    dimensions: Sequence[Dimension],
    table: Table | None,
) -> Iterator[Problem]:
    """Yield a problem for each dimension of the source that the staging table has not."""
    source = request.source.description
    for place, each in enumerate(dimensions):
        for index, step in enumerate(request.transforms):
            if each.column in step.outputs:
                message = (
                    f"must leave the column {each.column!r} as it is, since {source} is "
                    "partitioned by it, but changes it. Give the result another name"
                )
                yield Problem(path=f"spec.pipeline[{index}]", message=message)
        if table is not None:
            is_found = find_positions(table, table.spec().spec_id, dimensions)[place] is not None
        else:
            is_found = each.transform == "identity" and each.column in (output.partition_by or ())
        if is_found:
            continue
        field = f"{each.transform}({each.column})"
        if table is not None:
            advice = f"but {target.table} is not. Write another table"
        elif each.transform == "identity":
            advice = f"but is {', '.join(output.partition_by or ()) or 'absent'}. Add it"
        else:
            advice = f"but there is no table {target.table}. Create it, partitioned by {field}"
        message = f"must be partitioned by {field}, as {source} is, {advice}"
        yield Problem(path="spec.output.partitionBy", message=message)
