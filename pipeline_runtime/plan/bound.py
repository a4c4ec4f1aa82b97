"""Binds a manifest to the columns of its tables: `dataset.where`, the split, and the steps.

The tables are opened and their schemas known; every problem of every step is collected. `build`
then plans the streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.config import ExperimentSpec
from pipeline_runtime.errors import ExpressionError, ManifestError, Problem, below_field
from pipeline_runtime.expressions import Expression
from pipeline_runtime.materialization.lookup import Materialization
from pipeline_runtime.plan.consumers import Consumer
from pipeline_runtime.plan.materialized import check_place, find_place, open_cache
from pipeline_runtime.plan.model import PlannedStep
from pipeline_runtime.plan.opened_models import open_embedder, open_generator, open_model
from pipeline_runtime.plan.problems import Problems
from pipeline_runtime.plan.side_table_loading import open_side_table
from pipeline_runtime.plan.split import Split
from pipeline_runtime.plan.step_lines import describe_step
from pipeline_runtime.sources import ROW_ID_COLUMN, Opening, Source, open_source
from pipeline_runtime.steps.base import INTERNAL_PREFIX, BindContext, public_schema
from pipeline_runtime.steps.binding import bind_pipeline
from pipeline_runtime.steps.filter.model import FilterStep
from pipeline_runtime.steps.filter.transform import Filter

# A step's live columns before the plan has worked them out.
_ALL: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A step while the plan is being made; `expression` is what it filters by, if it filters."""

    step: PlannedStep
    expression: Expression | None = None
    pushed: Expression | None = None  # what may prune for it: implied by `expression`


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPlan:
    """The table, and all that happens to its rows, bound to its columns.

    Attributes:
        schema: the table's columns that the manifest wants.
        head: `dataset.where`, if there is one.
        splits: the part of the rows that each role gets.
        columns: those that the consumer takes.
        is_kept: True if the table has the rows after some steps, as `materialize` has kept them.
    """

    table: Source
    schema: pa.Schema
    head: Sequence[Bound]
    splits: Mapping[str, Sequence[Bound]]
    steps: Sequence[Bound]
    columns: tuple[str, ...]
    is_kept: bool = False


def bind_tables(spec: ExperimentSpec, consumer: Consumer, opening: Opening) -> BoundPlan:
    """Open the tables, and bind everything to their columns.

    Raises ManifestError with every broken rule, SourceError if a table cannot be read.
    """
    with below_field("spec.dataset"):
        table = open_source(spec.dataset, _decoding_pages(opening, spec))
    schema = _source_schema(spec, table)
    context = BindContext(
        open_side_table=lambda request: open_side_table(request, opening),
        kernels=spec.pipeline_options.debug.kernels,
        bucketing=table.bucketing,
        open_model=lambda request: open_model(request, spec.artifacts.uri, opening),
        open_generator=lambda step: open_generator(step, opening),
        open_embedder=lambda step: open_embedder(step, opening),
    )
    problems = Problems()
    _check_keys(spec, schema, problems)
    head = problems.collect(_bind_where, spec, schema) or []
    splits = {role: problems.collect(_bind_split, spec, schema, role) for role in consumer.roles}
    steps = problems.collect(_bind_steps, spec, schema, context) or []
    drawn = [*(bound for split in splits.values() for bound in split or []), *steps]
    problems.collect(_check_row_key, spec, table, drawn)
    output = steps[-1].step.transform.output_schema if steps else schema
    columns = None if problems.found else problems.collect(consumer.find_columns, output)
    place = find_place(spec)
    if place is not None and not problems.found:
        problems.collect(check_place, spec, place, [bound.step.transform for bound in steps])
    problems.raise_if_any()
    return BoundPlan(
        table=table,
        schema=schema,
        head=head,
        splits={role: split or [] for role, split in splits.items()},
        steps=steps,
        columns=tuple(columns or ()),
    )


def _decoding_pages(opening: Opening, spec: ExperimentSpec) -> Opening:
    debug = spec.pipeline_options.debug
    return replace(opening, decodes_pages=debug.kernels and debug.page_decoding)


def _check_keys(spec: ExperimentSpec, schema: pa.Schema, problems: Problems) -> None:
    dataset = spec.dataset
    request_key = (dataset.request_key,) if dataset.request_key else None
    problems.check_columns("spec.dataset.requestColumns", dataset.request_columns, schema)
    for field, names in (("rowKey", dataset.row_key), ("requestKey", request_key)):
        problems.check_columns(f"spec.dataset.{field}", names, schema)
        problems.check_hashable(f"spec.dataset.{field}", names, schema)


def read_cache(
    spec: ExperimentSpec, bound: BoundPlan, found: Materialization, opening: Opening
) -> BoundPlan:
    """Return what remains to be done with the rows that `materialize` has kept."""
    schema = bound.steps[found.place].step.transform.output_schema
    return replace(
        bound,
        table=open_cache(found, _decoding_pages(opening, spec)),
        schema=schema,
        head=(),
        splits={role: _bind_split(spec, schema, role) for role in bound.splits},
        steps=bound.steps[found.place + 1 :],
        is_kept=True,
    )


def _source_schema(spec: ExperimentSpec, table: Source) -> pa.Schema:
    """Return the table's columns that the manifest wants, in its order."""
    wanted = spec.dataset.source.wanted_columns
    if wanted is None:
        return pa.schema([field for field in table.schema if _is_readable(field.name)])
    problems = Problems()
    problems.check_columns(f"spec.dataset.{spec.dataset.source_kind}.columns", wanted, table.schema)
    problems.raise_if_any()
    return pa.schema([table.schema.field(name) for name in wanted])


def _is_readable(name: str) -> bool:
    """Return whether a column is data: Lastmile's own are not, except the identity."""
    return name == ROW_ID_COLUMN or not name.startswith(INTERNAL_PREFIX)


def _at(path: str, work: Callable[[], Any]) -> Any:
    """Run a piece of binding; an expression's error becomes a problem of the field at `path`."""
    try:
        return work()
    except ExpressionError as error:
        raise ManifestError([Problem(path=path, message=str(error))]) from error


def _bind_where(spec: ExperimentSpec, schema: pa.Schema) -> list[Bound]:
    where = spec.dataset.where
    if where is None:
        return []
    path = "spec.dataset.where"
    _at(path, lambda: expressions.check_boolean(expressions.parse(where), schema))
    transform = Filter.bind(FilterStep(where=where), schema)
    step = PlannedStep(path=path, kind="where", label=where, transform=transform, live=_ALL)
    return [Bound(step=step, expression=expressions.parse(where))]


def _bind_split(spec: ExperimentSpec, schema: pa.Schema, role: str) -> list[Bound]:
    evaluation = spec.training.evaluation
    if evaluation is None:
        return []
    path = "spec.training.evaluation"
    problems = Problems()
    problems.check_columns(f"{path}.by", evaluation.by, schema)
    problems.check_hashable(f"{path}.by", evaluation.by, schema)
    problems.raise_if_any()
    transform = _at(f"{path}.where", lambda: Split.bind(evaluation, schema, role))
    step = PlannedStep(
        path=path, kind="split", label=_split_label(spec, role), transform=transform, live=_ALL
    )
    where = transform.expression
    if where is None:
        return [Bound(step=step)]
    if role == "evaluation":
        return [Bound(step=step, pushed=where)]
    return [Bound(step=step, pushed=expressions.not_true(where))]


def _split_label(spec: ExperimentSpec, role: str) -> str:
    evaluation = spec.training.evaluation
    assert evaluation is not None
    held_out = evaluation.where or f"{evaluation.holdout_percent} % held out"
    if role == "evaluation":
        limit = f", at most {evaluation.max_rows:,} rows" if evaluation.max_rows else ""
        return held_out + limit
    return f"({held_out}) is not true" if evaluation.where else f"not: {held_out}"


def _check_row_key(spec: ExperimentSpec, table: Source, drawn: Sequence[Bound]) -> None:
    """Raise ManifestError if rows are sampled by their places, and these do not last."""
    is_position = table.identity.is_position and not spec.dataset.row_key
    if not spec.dataset.source.needs_row_key or not is_position:
        return
    for bound in drawn:
        if bound.step.transform.needs_row_hash:
            message = (
                f"must be set, because {bound.step.path} samples rows of {table.description}, "
                "whose places change when the table is compacted. Name the columns that identify "
                "a row"
            )
            raise ManifestError([Problem(path="spec.dataset.rowKey", message=message)])


def _bind_steps(spec: ExperimentSpec, schema: pa.Schema, context: BindContext) -> list[Bound]:
    transforms = bind_pipeline(spec.pipeline, public_schema(schema), context)
    bound = []
    for index, (step, transform) in enumerate(zip(spec.pipeline, transforms, strict=True)):
        planned = PlannedStep(
            path=f"spec.pipeline[{index}]",
            kind=step.kind,
            label=describe_step(step),
            transform=transform,
            live=_ALL,
        )
        bound.append(Bound(step=planned, expression=transform.predicate))
    return bound
