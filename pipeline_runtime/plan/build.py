"""From an experiment to a physical plan: bind, push predicates and projections down, fuse.

The order: `bound` opens the tables and binds the steps to their columns; predicates prune units;
columns that nothing uses are not read; adjacent steps become one stage. Pure but for opening tables
(footers only), and the same with Ray or without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import pyarrow as pa

from pipeline_runtime.config import DatasetExperiment, ExperimentSpec
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.materialization.backfill import look_up_backfill
from pipeline_runtime.materialization.lookup import RowsRequest
from pipeline_runtime.plan.bound import Bound, BoundPlan, bind_tables, read_cache
from pipeline_runtime.plan.consumers import Consumer, choose_consumer
from pipeline_runtime.plan.engine import choose_delivery, resolve_order
from pipeline_runtime.plan.materialized import find_materialization, find_place
from pipeline_runtime.plan.model import FirstLook, Plan, PlannedStep, Sharing, Stage, StreamPlan
from pipeline_runtime.plan.predicates import Pushdown, build_pushdown
from pipeline_runtime.plan.sharing import choose_sharing, shared_after
from pipeline_runtime.plan.side_table_loading import narrow_step
from pipeline_runtime.sources import Identity, Opening, Source
from pipeline_runtime.steps.base import Transform, public_schema
from pipeline_runtime.steps.binding import number_draws


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
    bound = bind_tables(spec, consumer, opening)
    place = find_place(spec)
    materialization = backfill = None
    if place is not None:
        kept = bound.steps[place].step.transform.output_schema.names
        request = _request_rows(experiment, place, kept, bound, opening)
        materialization = find_materialization(request)
        if materialization.state == "Hit":
            bound = read_cache(spec, bound, materialization, opening)
    elif spec.output is not None and spec.output.is_by_partition:
        num_steps = len(bound.steps)
        backfill = look_up_backfill(
            _request_rows(experiment, num_steps, bound.columns, bound, opening)
        )
    streams, matching = _plan_streams(spec, consumer, bound)
    main = next(iter(streams.values()))
    feed = consumer.choose_feed(main.stages)
    is_remote = main.scan.is_remote
    reads_ahead = options.debug.read_ahead and is_remote and feed.engine == "Readers"
    streams = {role: replace(s, reads_ahead=reads_ahead) for role, s in streams.items()}
    return Plan(
        streams=streams,
        matching=matching,
        consumer=consumer,
        batch_columns=bound.columns,
        preserve_order=preserve_order,
        broadcast=options.debug.broadcast,
        prefetch=options.debug.prefetch,
        feed=feed,
        delivery=choose_delivery(
            options, feed, spec.training.batch_size, preserve_order=preserve_order
        ),
        warnings=(*_warnings(main), *consumer.warn(main)),
        pins=opening.pins.found,
        models=opening.pins.models,
        materialization=materialization,
        backfill=backfill,
        inference_workers=spec.inference_workers,
    )


def _plan_streams(
    spec: ExperimentSpec, consumer: Consumer, bound: BoundPlan
) -> tuple[dict[str, StreamPlan], dict[str, StreamPlan]]:
    """Return the stream of each role, and those that only look for rows of an evaluation."""

    def plan(role: str, steps: Sequence[Bound], columns: tuple[str, ...]) -> StreamPlan:
        every = [*bound.head, *bound.splits[role], *steps]
        stream = _Stream(spec, consumer, bound.table, bound.schema, every, columns, bound.is_kept)
        return stream.build(role)

    streams = {
        role: plan(
            role,
            _for_evaluation(bound.steps) if role == "evaluation" else bound.steps,
            bound.columns,
        )
        for role in bound.splits
    }
    has_evaluation = "evaluation" in bound.splits
    return streams, {role: plan(role, (), ()) for role in bound.splits} if has_evaluation else {}


def _request_rows(
    experiment: DatasetExperiment,
    num_steps: int,
    kept: Sequence[str],
    bound: BoundPlan,
    opening: Opening,
) -> RowsRequest:
    """Describe the rows after the first steps, to look them up.

    Args:
        kept: columns of these rows.
    """
    steps = [each.step.transform for each in bound.steps[:num_steps]]
    needed, _ = needed_columns([*(each.step.transform for each in bound.head), *steps], kept)
    return RowsRequest(
        experiment=experiment,
        place=num_steps,
        transforms=steps,
        columns=[name for name in bound.table.schema.names if name in needed],
        source=bound.table,
        opening=opening,
    )


def _for_evaluation(steps: Sequence[Bound]) -> list[Bound]:
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
    bound: list[Bound]
    columns: tuple[str, ...]
    is_kept: bool

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
        if not self.is_kept:  # else the steps know the partitions of another table
            steps = [narrow_step(step, scan.units) for step in steps]
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
