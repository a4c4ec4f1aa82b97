"""A run that adds up a column."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

import pyarrow as pa

from pipeline_runtime.config import DatasetExperiment, run_hash
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.chunk import Chunk, StepCount, add_counts
from pipeline_runtime.feed.local.thread_readers import ThreadReaders
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.metrics import steps_flow
from pipeline_runtime.plan import Plan, build_plan
from pipeline_runtime.run.consumers import Claim, Control, Outcome, Reading, Results, RunBasis
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.phases import Phases
from pipeline_runtime.sources import open_location


def add_up(chunk: Chunk) -> Chunk:
    """Add up a chunk, in its reader."""
    total = sum(chunk.table.column(0).to_pylist())
    return replace(chunk, rows=pa.table({}), result=str(total))


class SumRun:
    """See `run.consumers.ConsumerRun`."""

    stopping = "stopping"
    num_trainers = None
    report_files = ()

    def __init__(self, basis: RunBasis) -> None:
        self.basis = basis
        self.total = 0
        self.counts: tuple[StepCount, ...] = ()

    @property
    def intro(self) -> tuple[str, ...]:
        return (f"the sum of {self.basis.plan.batch_columns[0]}",)

    @cached_property
    def collector(self) -> Any:
        run = self

        class Counts:
            def collect(self) -> Any:
                names = [kind for _, kind, _ in run.basis.plan.main.step_rows]
                return steps_flow(names, [run.counts], [()])

        return Counts()

    def load(self, phases: Phases) -> None:
        """Import nothing."""

    def execute(self, control: Control) -> Outcome:
        stream = self.basis.plan.main
        rows = stream.chunk_rows
        readers = ThreadReaders(
            streams={"sum": Stream(plan=stream, chunk_rows=rows, finish=add_up)}, num_threads=2
        )
        feed = readers.open("sum", 0, stream.groups(0, rows), in_order=False)
        try:
            for chunk in feed.chunks(Waited(), WorkerUsage()):
                self.total += int(chunk.result)
                self.counts = add_counts(self.counts, chunk.header.counts)
                control.show(Reading(line=f"{self.total:,}", source=self.total))
                if control.stop.count:
                    return Outcome(kind="Interrupted", error="stopped", error_kind="Interrupted")
        except LastmileError as error:
            return Outcome(kind="Failed", error=str(error), error_kind=type(error).__name__)
        return Outcome(kind="Complete")

    def build_results(self, control: Control) -> Results:
        return Results(
            counts=self.counts, warnings=(f"the sum is {self.total}",), hints=("start again",)
        )


def check(experiment: DatasetExperiment, plan: Plan, storage_root: str) -> None:
    """Accept any plan."""


def prepare(
    experiment: DatasetExperiment, options: RunOptions, now: datetime, claim: Claim
) -> SumRun:
    """Plan a run, and claim its folders."""
    root, found = options.storage_root, run_hash(experiment)
    artifacts = open_location(experiment.spec.artifacts.uri, root)
    folder = options.name_run(now, found, artifacts)
    basis = RunBasis(
        experiment=experiment,
        plan=build_plan(experiment, root),
        run_location=artifacts.join(experiment.metadata.name, folder),
        run_hash=found,
        attempt=1,
    )
    claim(basis.run_location)
    return SumRun(basis)
