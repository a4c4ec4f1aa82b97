"""From an experiment to a physical plan: bind, push predicates and projections down, fuse.

The order: the table is opened and its schema known; `dataset.where`, the split into training and
evaluation and the pipeline's steps are bound to it one after another, every problem of every step
collected; predicates prune units; columns that nothing uses are not read; adjacent steps become one
stage. Pure but for opening tables (footers only), and the same with Ray or without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.config import DatasetExperiment, ExperimentSpec
from pipeline_runtime.errors import ExpressionError, ManifestError, Problem
from pipeline_runtime.expressions import Expression
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.materialization.lookup import Materialization
from pipeline_runtime.plan.consumers import Consumer, choose_consumer
from pipeline_runtime.plan.engine import choose_delivery, resolve_order
from pipeline_runtime.plan.materialized import (
    check_place,
    find_materialization,
    find_place,
    open_cache,
)
from pipeline_runtime.plan.model import (
    FirstLook,
    Plan,
    PlannedStep,
    Sharing,
    Stage,
    StreamPlan,
)
from pipeline_runtime.plan.predicates import Pushdown, build_pushdown
from pipeline_runtime.plan.problems import Problems
from pipeline_runtime.plan.sharing import choose_sharing, shared_after
from pipeline_runtime.plan.side_table_loading import open_side_table
from pipeline_runtime.plan.split import Split
from pipeline_runtime.plan.step_lines import describe_step
from pipeline_runtime.sources import ROW_ID_COLUMN, Identity, Opening, Source, open_source
from pipeline_runtime.steps.base import (
    INTERNAL_PREFIX,
    BindContext,
    Transform,
    public_schema,
)
from pipeline_runtime.steps.binding import bind_pipeline, number_draws
from pipeline_runtime.steps.filter.model import FilterStep
from pipeline_runtime.steps.filter.transform import Filter

# A step's live columns before the plan has worked them out.
_ALL: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """A step while the plan is being made; `expression` is what it filters by, if it filters."""

    step: PlannedStep
    expression: Expression | None = None
    pushed: Expression | None = None  # what may prune for it: implied by `expression`


def build_plan(
    experiment: DatasetExperiment,
    storage_root: str,
    consumer: Consumer | None = None,
    *,
    keeps_order: bool | None = None,
    pins: Pins | None = None,
) -> Plan:
    """Plan an experiment's data.

    Args:
        consumer: what the rows are for; what the manifest asks for if None.
        keeps_order: whether the order of batches is fixed if `preserveOrder` is absent; None: if
            the manifest has one rank, as on this machine.
        pins: states of tables that are read again as they were; other tables are pinned now.

    Raises ManifestError with every broken rule that the tables' schemas show, SourceError if a
    table cannot be read.
    """
    spec = experiment.spec
    options = spec.pipeline_options
    if keeps_order is None:
        keeps_order = spec.trainers.world_size == 1
    preserve_order = resolve_order(options, default=keeps_order)
    consumer = consumer or choose_consumer(spec)
    opening = Opening(
        storage_root=storage_root,
        catalogs=spec.catalogs,
        pins=pins or Pins(),
        kernels=options.debug.kernels,
    )
    decodes_pages = options.debug.kernels and options.debug.page_decoding
    table = open_source(spec.dataset, replace(opening, decodes_pages=decodes_pages))
    schema = _source_schema(spec, table)
    context = BindContext(
        open_side_table=lambda request: open_side_table(request, opening),
        kernels=options.debug.kernels,
        bucketing=table.bucketing,
    )
    problems = Problems()
    problems.check_columns("spec.dataset.rowKey", spec.dataset.row_key, schema)
    problems.check_columns("spec.dataset.requestColumns", spec.dataset.request_columns, schema)
    request_key = (spec.dataset.request_key,) if spec.dataset.request_key else None
    problems.check_columns("spec.dataset.requestKey", request_key, schema)
    for field, names in (("rowKey", spec.dataset.row_key), ("requestKey", request_key)):
        problems.check_hashable(f"spec.dataset.{field}", names, schema)
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
    materialization = None
    if place is not None:
        materialization = _look_up(experiment, place, [*head, *steps], table, opening)
    if materialization is not None and materialization.state == "Hit":
        table = open_cache(materialization, replace(opening, decodes_pages=decodes_pages))
        schema = steps[materialization.place].step.transform.output_schema
        head, steps = [], steps[materialization.place + 1 :]
        splits = {role: _bind_split(spec, schema, role) for role in consumer.roles}

    def plan_stream(role: str, steps: Sequence[_Bound], columns: Sequence[str]) -> StreamPlan:
        bound = [*head, *(splits[role] or []), *steps]
        return _Stream(spec, consumer, table, schema, bound, tuple(columns)).build(role)

    by_role = {role: _for_evaluation(steps) if role == "evaluation" else steps for role in splits}
    streams = {role: plan_stream(role, by_role[role], columns or ()) for role in splits}
    has_evaluation = "evaluation" in splits
    matching = {role: plan_stream(role, (), ()) for role in splits} if has_evaluation else {}
    main = next(iter(streams.values()))
    feed = consumer.choose_feed(main.stages)
    is_remote = main.scan.is_remote
    reads_ahead = options.debug.read_ahead and is_remote and feed.engine == "Readers"
    streams = {role: replace(s, reads_ahead=reads_ahead) for role, s in streams.items()}
    return Plan(
        streams=streams,
        matching=matching,
        consumer=consumer,
        batch_columns=columns or (),
        preserve_order=preserve_order,
        broadcast=options.debug.broadcast,
        prefetch=options.debug.prefetch,
        feed=feed,
        delivery=choose_delivery(
            options, feed, spec.training.batch_size, preserve_order=preserve_order
        ),
        warnings=(*_warnings(main), *consumer.warn(main)),
        pins=opening.pins.found,
        materialization=materialization,
    )


def _look_up(
    experiment: DatasetExperiment,
    place: int,
    bound: Sequence[_Bound],
    table: Source,
    opening: Opening,
) -> Materialization:
    """Look up the rows that are kept after the steps before `materialize`.

    Args:
        bound: `dataset.where`, if there is one, and all steps.
    """
    transforms = [each.step.transform for each in bound]
    first = len(transforms) - len(experiment.spec.pipeline)
    kept = transforms[first + place].output_schema.names
    needed, _ = needed_columns(transforms[: first + place], kept)
    columns = [name for name in table.schema.names if name in needed]
    return find_materialization(experiment, place, transforms[first:], columns, table, opening)


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


def _bind_where(spec: ExperimentSpec, schema: pa.Schema) -> list[_Bound]:
    where = spec.dataset.where
    if where is None:
        return []
    path = "spec.dataset.where"
    _at(path, lambda: expressions.check_boolean(expressions.parse(where), schema))
    transform = Filter.bind(FilterStep(where=where), schema)
    step = PlannedStep(path=path, kind="where", label=where, transform=transform, live=_ALL)
    return [_Bound(step=step, expression=expressions.parse(where))]


def _bind_split(spec: ExperimentSpec, schema: pa.Schema, role: str) -> list[_Bound]:
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
        return [_Bound(step=step)]
    if role == "evaluation":
        return [_Bound(step=step, pushed=where)]
    return [_Bound(step=step, pushed=expressions.not_true(where))]


def _split_label(spec: ExperimentSpec, role: str) -> str:
    evaluation = spec.training.evaluation
    assert evaluation is not None
    held_out = evaluation.where or f"{evaluation.holdout_percent} % held out"
    if role == "evaluation":
        limit = f", at most {evaluation.max_rows:,} rows" if evaluation.max_rows else ""
        return held_out + limit
    return f"({held_out}) is not true" if evaluation.where else f"not: {held_out}"


def _check_row_key(spec: ExperimentSpec, table: Source, drawn: Sequence[_Bound]) -> None:
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


def _bind_steps(spec: ExperimentSpec, schema: pa.Schema, context: BindContext) -> list[_Bound]:
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
        bound.append(_Bound(step=planned, expression=transform.predicate))
    return bound


def _for_evaluation(steps: Sequence[_Bound]) -> list[_Bound]:
    """Return the steps for the rows that evaluate the model.

    Draws are numbered anew, so that a step that applies to training alone has no say in what a
    later step keeps of these rows.
    """
    given = (bound.step.transform for bound in steps)
    transforms = number_draws([t.for_evaluation() or t for t in given])
    return [
        replace(bound, step=replace(bound.step, transform=transform))
        for bound, transform in zip(steps, transforms, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Stream:
    """One role's stream while it is optimised."""

    spec: ExperimentSpec
    consumer: Consumer
    table: Source
    schema: pa.Schema
    bound: list[_Bound]
    columns: tuple[str, ...]

    def build(self, role: str) -> StreamPlan:
        options, shuffle = self.spec.pipeline_options, self.consumer.shuffle(role)
        push = self._pushdown()
        key = self.consumer.request_key
        steps = [bound.step for bound in self.bound]
        kept = (*self.columns, *((key,) if key else ()))
        needed, after = needed_columns([step.transform for step in steps], kept)
        if not options.debug.projection:
            everything = frozenset(self.schema.names).union(*(s.transform.outputs for s in steps))
            needed, after = everything, [everything] * len(steps)
        read_columns = tuple(name for name in self.schema.names if name in needed)
        scan = self.table.scan(push.predicates if options.debug.pushdown else (), read_columns)
        stored = [name for name in read_columns if name in scan.request_columns]
        read_schema = pa.schema([self.schema.field(name) for name in read_columns])
        sharing = choose_sharing(
            self.spec.dataset, read_schema, stored, deduplication=options.debug.deduplication
        )
        stages = _fuse(_annotate(steps, push, after), fusion=options.debug.fusion)
        is_apart = any(stage.steps for stage in stages[1:])  # rows between tasks are flat
        request_columns = () if is_apart else self._request_columns(steps, sharing)
        if sharing.key is not None and not request_columns:
            reason = "requests are not searched for, since batches repeat their columns"
            sharing = Sharing(is_on=True, reason=reason)
        return StreamPlan(
            role=role,
            table=self.table,
            scan=scan,
            pushed=push.texts if options.debug.pushdown else (),
            read_columns=read_columns,
            identity=self._identity(),
            stages=stages,
            output_schema=self._output_schema(steps),
            shuffle=shuffle,
            request_key=key,
            seed=self.consumer.seed,
            max_rows_per_block=options.rows_per_block,
            kernels=options.debug.kernels,
            sharing=sharing,
            request_columns=request_columns,
            group_key=self.spec.dataset.request_key
            if role == "evaluation" and self.columns
            else None,
            first_look=None if sharing.key else self._first_look(stages[0], read_columns),
        )

    def _first_look(self, stage: Stage, read_columns: Sequence[str]) -> FirstLook | None:
        """The columns that the steps up to the last filter need; None if that spares nothing."""
        if not self.spec.pipeline_options.debug.late_materialization:
            return None
        known = list(takewhile(lambda step: step.transform.keeps_places, stage.steps))
        drops = [index for index, step in enumerate(known) if step.transform.changes_rows]
        if not drops:
            return None
        num_steps = drops[-1] + 1
        needed, _ = needed_columns([step.transform for step in known[:num_steps]], ())
        columns = tuple(name for name in read_columns if name in needed)
        if len(columns) == len(read_columns) or not (columns or self._identity().columns):
            return None
        return FirstLook(columns=columns, num_steps=num_steps)

    def _request_columns(self, steps: Sequence[PlannedStep], sharing: Sharing) -> tuple[str, ...]:
        """The columns that the consumer takes once a request."""
        shared = shared_after([step.transform for step in steps], sharing.columns)
        once = self.consumer.takes_once(shared)
        return tuple(name for name in self.columns if name in once)

    def _pushdown(self) -> Pushdown:
        filters = [(b.pushed or b.expression, b.step.transform) for b in self.bound]
        return build_pushdown(filters, self.schema)

    def _identity(self) -> Identity:
        if self.spec.dataset.row_key:
            return Identity(columns=self.spec.dataset.row_key)
        return self.table.identity

    def _output_schema(self, steps: Sequence[PlannedStep]) -> pa.Schema:
        last = steps[-1].transform.output_schema if steps else public_schema(self.schema)
        return pa.schema([last.field(name) for name in self.columns])


def needed_columns(
    transforms: Sequence[Transform], kept: Sequence[str]
) -> tuple[frozenset[str], list[frozenset[str]]]:
    """Walk back from what is kept: what a step makes is not needed before it, what it reads is.

    Returns the columns needed of the source, and those needed after each step.
    """
    needed = frozenset(kept)
    after: list[frozenset[str]] = []
    for transform in reversed(transforms):
        after.append(needed)
        needed = (needed - transform.outputs) | transform.inputs
    return needed, after[::-1]


def _annotate(
    steps: Sequence[PlannedStep], push: Pushdown, after: Sequence[frozenset[str]]
) -> list[PlannedStep]:
    """Say on every step which columns live on, and on filters why a predicate was not pushed."""
    return [
        replace(step, live=live, notes=_pushdown_notes(step, push))
        for step, live in zip(steps, after, strict=True)
    ]


def _pushdown_notes(step: PlannedStep, push: Pushdown) -> tuple[str, ...]:
    if not step.has_predicate:
        return ()
    return tuple(
        f"not pushed to the files: {text}: {why}"
        for text, why in push.kept_back
        if text in step.label
    )


def _fuse(steps: Sequence[PlannedStep], *, fusion: bool) -> tuple[Stage, ...]:
    """Fuse adjacent steps in stages; a step with its own resources, or every one, starts anew."""
    runs: list[list[PlannedStep]] = [[]]
    previous_alone = False
    for step in steps:
        alone = step.transform.runs_alone
        if alone or previous_alone or not fusion:
            runs.append([])
        runs[-1].append(step)
        previous_alone = alone
    return tuple(_stage(index, run) for index, run in enumerate(runs))


def _stage(index: int, steps: Sequence[PlannedStep]) -> Stage:
    kinds = "+".join(step.kind for step in steps)
    name = "+".join(part for part in ("read" if index == 0 else "", kinds) if part)
    first = steps[0].transform if steps else None
    return Stage(
        name=name,
        steps=tuple(steps),
        resources=first.resources if first else None,
        concurrency=first.concurrency if first else None,
    )


def _warnings(stream: StreamPlan) -> Iterator[str]:
    if stream.identity.is_position:
        yield (
            "rows have no declared identity: sampling and checksums go by (file, row group, row), "
            "so rewriting the files changes which rows are kept; declare spec.dataset.rowKey"
        )
