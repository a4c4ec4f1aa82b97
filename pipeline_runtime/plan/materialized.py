"""The step `materialize` in a plan: its rules, and the table that stands for the steps before it.

A step that keeps rows changes none. If its table has all rows that the run needs, the plan reads
the table, and the steps before are left out; else they are computed as without it. `run` has the
missing rows computed and kept before it reads any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from pipeline_runtime import expressions
from pipeline_runtime.config import ExperimentSpec, IcebergSource, SourceChoice
from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.iceberg.catalogs import asking_catalog, load_table
from pipeline_runtime.materialization.lookup import (
    Materialization,
    Request,
    RowsRequest,
    look_up,
)
from pipeline_runtime.materialization.source import PartOfSource
from pipeline_runtime.materialization.states import read_state
from pipeline_runtime.materialization.tables import PARTITION_COLUMN
from pipeline_runtime.sources import Opening, open_source
from pipeline_runtime.steps.base import Transform, is_internal
from pipeline_runtime.steps.materialize.model import MaterializeStep


def find_step(spec: ExperimentSpec) -> MaterializeStep | None:
    """Return the step `materialize`; None if there is none."""
    steps = (step.config for step in spec.pipeline)
    return next((step for step in steps if isinstance(step, MaterializeStep)), None)


def find_place(spec: ExperimentSpec) -> int | None:
    """Return the index of the step `materialize`; None if there is none."""
    steps = (step.config for step in spec.pipeline)
    return next((i for i, step in enumerate(steps) if isinstance(step, MaterializeStep)), None)


def check_place(spec: ExperimentSpec, place: int, transforms: Sequence[Transform]) -> None:
    """Check that the steps before `materialize` leave what comes after it as it was.

    Args:
        transforms: all steps, bound.

    Raises ManifestError with every broken rule.
    """
    path, before = f"spec.pipeline[{place}].materialize", transforms[:place]
    known = transforms[place].output_schema.names
    problems = []
    for field, name in dict(_list_kept(spec)).items():
        for column in name:
            if is_internal(column):
                message = (
                    f"must not come with {column!r} in {field}, which is no column of the kept "
                    "table. Name other columns there that identify a row"
                )
                problems.append(Problem(path=path, message=message))
                continue
            changed = [i for i, step in enumerate(before) if column in step.outputs]
            if changed or column not in known:
                what = f"spec.pipeline[{changed[0]}] changes it" if changed else "it is dropped"
                message = (
                    f"must come after steps that leave the column {column!r} of {field} as it is, "
                    f"but {what}. Put materialize before that step, or keep the column"
                )
                problems.append(Problem(path=path, message=message))
    for index, step in enumerate(before):
        if step.observes_all:
            message = (
                "must come before steps that measure rows, since rows that the table has are not "
                f"measured again, but comes after spec.pipeline[{index}] {step.kind}. Move that "
                "step after it"
            )
            problems.append(Problem(path=path, message=message))
    if spec.training.evaluation is not None:
        for index, step in enumerate(before):
            if step.for_evaluation() is not None and not step.observes_all:
                message = (
                    "must come before steps for the training alone, since the table has the rows "
                    f"of the evaluation too, but comes after spec.pipeline[{index}] {step.kind}. "
                    "Move that step after it"
                )
                problems.append(Problem(path=path, message=message))
    if problems:
        raise ManifestError(problems)


def _list_kept(spec: ExperimentSpec) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the fields that name columns of the source which are read after the step."""
    yield "dataset.rowKey", spec.dataset.row_key or ()
    if spec.dataset.request_key:
        yield "dataset.requestKey", (spec.dataset.request_key,)
    if (evaluation := spec.training.evaluation) is not None:
        yield "training.evaluation.by", evaluation.by or ()
        where = expressions.parse(evaluation.where).columns if evaluation.where else ()
        yield "training.evaluation.where", tuple(sorted(where))


def find_materialization(request: RowsRequest) -> Materialization:
    """Look up the rows that the table of the step has; see `lookup.look_up`.

    Args:
        request: the rows before the step.
    """
    step = request.experiment.spec.pipeline[request.place].config
    assert isinstance(step, MaterializeStep)
    given = {field.name: getattr(request, field.name) for field in fields(request)}
    return look_up(Request(**given, step=step))


def open_cache(found: Materialization, opening: Opening) -> PartOfSource:
    """Open the rows of a complete materialization.

    Raises SourceError or StoreError.
    """
    catalog, number = found.step.iceberg.catalog, found.snapshot_id
    assert number is not None, "a table without a snapshot has no rows"
    model = IcebergSource(catalog=catalog, table=found.table, snapshot_id=str(number))
    source = open_source(SourceChoice(iceberg=model), opening)
    table = load_table(opening.catalogs, catalog, found.table)
    with asking_catalog(f"{found.table}: cannot read the cache table"):
        state = read_state(table, number)
    wanted = (
        partition.places
        for partition in state.partitions.values()
        if partition.values[0] in found.wanted
    )
    return PartOfSource(whole=source, places=frozenset().union(*wanted), hidden=PARTITION_COLUMN)
