"""The physical plan, as plain frozen values that can be pickled and hold no I/O handles.

`build` makes it from an experiment, `explain` shows it, `groups` cuts its units into work, and the
feed executes it on workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from pipeline_runtime.config import InferenceWorkers, Shuffle
from pipeline_runtime.config.step_model import MapResources
from pipeline_runtime.iceberg.pins import ModelPin, Pin
from pipeline_runtime.materialization.backfill import Backfill
from pipeline_runtime.materialization.lookup import Materialization
from pipeline_runtime.plan.groups import Group, plan_groups, rows_per_chunk
from pipeline_runtime.plan.mixing import Mixing
from pipeline_runtime.plan.split import Split
from pipeline_runtime.sources import Identity, Scan, Source
from pipeline_runtime.steps.base import Transform

if TYPE_CHECKING:
    from pipeline_runtime.plan.consumers.base import Consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A bound step, where the manifest says it, and what a person should know about it."""

    path: str  # spec.pipeline[2]
    kind: str
    label: str
    transform: Transform
    live: frozenset[str]  # columns that something after this step uses; the rest is let go
    notes: tuple[str, ...] = ()

    @property
    def has_predicate(self) -> bool:
        """True if an expression may decide which rows are kept, so that it may prune files."""
        return self.kind == "split" or self.transform.predicate is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Steps that run in one task, one after another, without a copy between tasks."""

    name: str
    steps: tuple[PlannedStep, ...]
    resources: MapResources | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The way in which rows of one request share the columns that are equal in all of them."""

    is_on: bool  # a nested table is read so that they do
    key: str | None = None  # in a flat table, neighbours with an equal key do; None: none do
    columns: tuple[str, ...] = ()  # of the flat table, the key perhaps among them
    reason: str = ""  # for people


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """The columns and steps that decide which rows remain, before other columns are read."""

    columns: tuple[str, ...]
    num_steps: int  # of the first stage, the last of which drops rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """One stream of rows to a consumer; stage 0 begins with the read."""

    role: str  # training | evaluation | output
    table: Source
    scan: Scan
    pushed: tuple[str, ...]  # predicates that prune files and row groups
    read_columns: tuple[str, ...]
    identity: Identity
    stages: tuple[Stage, ...]
    output_schema: pa.Schema
    shuffle: Shuffle
    request_key: str | None
    seed: int
    max_rows_per_block: int | None
    kernels: bool  # rows may be copied by faster ways than Arrow's own
    sharing: Sharing
    request_columns: tuple[str, ...]  # of the output: batches carry them once a request
    group_key: str | None = None  # rows carry a hash of it, `GROUP_HASH_COLUMN`; None: they do not
    first_look: FirstLook | None = None  # None: all columns are read at once
    reads_ahead: bool = False  # the next rows while readers work on those before

    @property
    def steps(self) -> tuple[PlannedStep, ...]:
        """All steps of all stages, in order."""
        return tuple(step for stage in self.stages for step in stage.steps)

    def explain_no_units(self) -> str | None:
        """Return why there is nothing to read, before anything is read; None if there is."""
        pruning, table = self.scan.pruning, self.table.description
        if pruning.rows_total == 0:
            return f"{table}: the table has no rows"
        if pruning.rows_read == 0:
            return (
                f"{table}: no row group of {pruning.row_groups_total} can hold a row that "
                f"satisfies {' and '.join(self.pushed)}; check the predicates"
            )
        return None

    @property
    def chunk_rows(self) -> int:
        """The most rows that a chunk of this stream has."""
        return rows_per_chunk(self.scan.units, self.shuffle, self.max_rows_per_block)

    @property
    def mixing(self) -> Mixing | None:
        """The way in which groups have rows from all over the table; None if they do not."""
        if not self.scan.is_clustered or self.shuffle.unit == "None":
            return None
        residues = [step.transform.residues for step in self.steps]
        needed = [number for number in residues if number]
        return Mixing(residues=math.lcm(*needed) if needed else None)

    def groups(self, epoch: int, chunk_rows: int) -> list[Group]:
        """Return the groups of an epoch, in its order.

        Args:
            epoch: number of the epoch, from 0; without a shuffle, all have the same order.
            chunk_rows: the most rows of a chunk; a resumed run has those of its checkpoint.
        """
        return plan_groups(
            self.scan.units,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            chunk_rows=chunk_rows,
            mixing=self.mixing,
        )

    @property
    def step_rows(self) -> Iterator[tuple[int, str, str]]:
        """(index, kind, label) of the read and every step, as the funnel counts them."""
        yield 0, "read", self.table.description
        for index, step in enumerate(self.steps, start=1):
            yield index, step.kind, step.label


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedChoice:
    """The engine that brings rows to the trainers, and the reason for it."""

    engine: Literal["Readers", "RayData"]
    reason: str
    may_be_threads: bool = False  # readers, on one machine: no step of theirs holds Python's lock
    may_switch: bool = False  # there, to processes, once the trainer is what binds


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The way of rows from readers to trainers."""

    is_ready: bool  # readers make the batches
    reason: str
    sparse: bool
    compression: Literal["Auto", "None", "lz4", "zstd"]
    batched_calls: bool  # of readers in processes: several short chunks each
    shared_memory: bool  # of readers in processes, with a trainer on their machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a run needs to know about its data.

    Attributes:
        streams: streams of rows by their role, the consumer's main stream first.
        matching: by role, the rows before the pipeline's steps, to count them; empty without an
            evaluation.
        consumer: what the rows are for.
        materialization: the rows that the step `materialize` keeps; if its table has all of them,
            the streams read the table.
        backfill: the partitions that an output writes one by one.
        batch_columns: the columns that the consumer takes.
        pins: the states of the tables, sides included, that have states.
        models: the models that steps call.
        inference_workers: the groups that call models for data workers.
    """

    streams: Mapping[str, StreamPlan]
    matching: Mapping[str, StreamPlan]
    consumer: Consumer
    batch_columns: tuple[str, ...]
    preserve_order: bool
    broadcast: bool
    prefetch: bool
    feed: FeedChoice
    delivery: Delivery
    warnings: tuple[str, ...]
    pins: tuple[Pin, ...] = ()
    models: tuple[ModelPin, ...] = ()
    materialization: Materialization | None = None  # None: no step keeps rows
    backfill: Backfill | None = None  # None: the consumer takes all rows at once
    inference_workers: tuple[InferenceWorkers, ...] = ()

    @property
    def needs_ray(self) -> bool:
        """True if the rows cannot be made without Ray."""
        return self.feed.engine == "RayData" or any(
            step.transform.served for stream in self.streams.values() for step in stream.steps
        )

    @property
    def main(self) -> StreamPlan:
        """The stream that the consumer is there for."""
        return next(iter(self.streams.values()))

    @property
    def training(self) -> StreamPlan:
        """The stream that a model is trained on."""
        return self.streams["training"]

    @property
    def evaluation(self) -> StreamPlan | None:
        """The stream that a model is evaluated on, if there is one."""
        return self.streams.get("evaluation")

    def bound_evaluation(self, bound: int | None) -> Plan:
        """Return the plan with only those rows in its evaluation whose hash is below `bound`."""
        if bound is None:
            return self
        stream = self.streams["evaluation"]
        stages = tuple(
            replace(stage, steps=tuple(_bound_split(step, bound) for step in stage.steps))
            for stage in stream.stages
        )
        return replace(self, streams={**self.streams, stream.role: replace(stream, stages=stages)})


def _bound_split(step: PlannedStep, bound: int) -> PlannedStep:
    """Return the step; a split of the rows with a bound for the hash of their identity."""
    if not isinstance(step.transform, Split):
        return step
    return replace(step, transform=replace(step.transform, bound=bound))
