"""A run with `output`: claims the table, has it written, and reports it.

`output.job` does the work. The main thread runs it, and shows each reading.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline_runtime import report
from pipeline_runtime.config import DatasetExperiment, run_config, run_hash
from pipeline_runtime.errors import Interrupted, LastmileError
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.output.destination import Committed
from pipeline_runtime.output.job import Job, Progress, Stopped, Target, Writers, open_job
from pipeline_runtime.output.names import make_token
from pipeline_runtime.output.observed import merge_observed
from pipeline_runtime.output.records import ChunkRecord, RunRecord
from pipeline_runtime.output.spool import Spooler
from pipeline_runtime.plan import Group, build_plan
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.run.consumers import Claim, Control, Outcome, Reading, Results, RunBasis
from pipeline_runtime.run.keeping_measures import KeptMeasures
from pipeline_runtime.run.materializing import build_ready_plan
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.phases import Phases
from pipeline_runtime.run.pinning import find_pins
from pipeline_runtime.run.reported_inference import ReportedInference
from pipeline_runtime.run.results import check_not_complete
from pipeline_runtime.run.summarise import build_checksum
from pipeline_runtime.run.writing.local_writers import open_local_writers
from pipeline_runtime.run.writing.targets import open_target
from pipeline_runtime.sources import open_location
from pipeline_runtime.training.position import digest_units

if TYPE_CHECKING:  # a plan is shown before this is imported
    from pipeline_runtime.feed.over_ray.model_pool import PlacedModels
    from pipeline_runtime.run.writing.writing_metrics import WritingCollector


def prepare_writing(
    experiment: DatasetExperiment, options: RunOptions, now: datetime, claim: Claim
) -> WholeRun:
    """Plan a run, find where it resumes, and claim it.

    Args:
        claim: see `run.consumers.Runner`.

    Raises ManifestError, SourceError (StoreError if a store does not answer), OutputError, or
    AlreadyComplete.
    """
    root = options.storage_root
    found = run_hash(experiment)

    def is_mine(name: str) -> bool:
        return options.is_attempt(name, found)

    artifacts = open_location(experiment.spec.artifacts.uri, root).join(experiment.metadata.name)
    pins = find_pins(artifacts, None, is_mine) if options.resume else Pins()
    plan = build_ready_plan(experiment, options, lambda each: build_plan(each, root, pins=pins))
    name = options.name_run(now, found, artifacts)
    if name == options.only_run:  # its table may be in place, or another run's by now
        check_not_complete(artifacts.join(name))
    target = open_target(experiment, plan, root)
    job = open_job(
        target,
        name,
        RunRecord(
            id=make_token(),
            run_hash=found,
            run_config=run_config(experiment),
            data_digest=digest_units(plan.main),
            chunk_rows=plan.main.chunk_rows,
            layout=target.layout,
        ),
        is_mine=is_mine,
        resume=options.resume,
        claim=lambda run: claim(artifacts.join(run)),
    )
    run_location = artifacts.join(job.run)
    if not job.is_staged:
        check_not_complete(run_location)
        claim(run_location)
    warnings: tuple[str, ...] = ()
    if options.resume and job.is_new:
        warnings = ("--resume: no attempt to resume was found; the run starts from its beginning",)
    basis = RunBasis(
        experiment=experiment,
        plan=plan,
        run_location=run_location,
        run_hash=job.record.run_hash,
        attempt=job.claim.attempt,
        warnings=warnings,
    )
    needs_ray = options.address != "local" or plan.needs_ray
    return WholeRun(basis, job, needs_ray=needs_ray)


class WritingRun:
    """See `run.consumers.ConsumerRun`."""

    hint = "resume: the same command with --resume"
    stopping = "stopping; what is written is kept (Ctrl-C again: at once)"

    def __init__(
        self, basis: RunBasis, target: Target, progress: Progress, *, needs_ray: bool
    ) -> None:
        self.basis = basis
        self.target = target
        self.progress = progress
        self.warnings: list[str] = []
        self._notes: list[str] = []  # lines to show with the next progress
        self._inference = ReportedInference()
        self._placed: PlacedModels | None = None
        self.measures = KeptMeasures(basis.plan.main.steps, basis.run_location)
        self.num_trainers = 0 if needs_ray else None
        self._began = self._ended = time.monotonic()

    @cached_property
    def collector(self) -> WritingCollector:
        """The metrics of this attempt."""
        from pipeline_runtime.run.writing.writing_metrics import WritingCollector

        stream = self.basis.plan.main
        steps = [(index, kind) for index, kind, _ in stream.step_rows]
        return WritingCollector(steps, stream.scan.pruning.rows_read)

    @property
    def report_files(self) -> tuple[str, ...]:
        """Files that it adds to the folder of the report."""
        return self.measures.files

    @property
    def intro(self) -> Iterator[str]:
        """Lines that say what is about to run."""
        pruning = self.basis.plan.main.scan.pruning
        yield (
            f"{self.basis.experiment.metadata.name}: run {self.basis.run_hash}, "
            f"{pruning.rows_read:,} rows in {pruning.row_groups_read} row groups of "
            f"{pruning.files_read} files, to {self.target.name}"
        )
        if self.basis.attempt > 1:
            yield f"resuming: attempt {self.basis.attempt}"

    def load(self, clock: Phases) -> None:
        """Import nothing: the plan has imported all libraries."""

    def execute(self, control: Control) -> Outcome:
        """Write the table."""
        control.stop.interrupts = True
        self._inference = control.options.inference
        self._began = time.monotonic()
        try:
            with self._place_models() as self._placed:
                self._write(control)
            return Outcome(kind="Complete")
        except (Stopped, Interrupted):
            error = "stopped by a signal; run again with --resume to continue"
            return Outcome(kind="Interrupted", error=error, error_kind="Interrupted")
        except LastmileError as error:
            return Outcome(kind="Failed", error=str(error), error_kind=type(error).__name__)
        finally:
            self._ended = time.monotonic()

    @abstractmethod
    def _write(self, control: Control) -> None:
        """Write the table. Raises Stopped, or a LastmileError."""

    def watch(self, control: Control) -> Callable[[Progress], None]:
        """Return a function that shows progress, and raises Stopped if the user requested it."""
        from pipeline_runtime.run.writing.progress import describe_progress

        planned_rows = self.basis.plan.main.scan.pruning.rows_read

        def on_progress(progress: Progress) -> None:
            self.collector.update(progress)
            phase = progress.phase.lower()
            if phase not in (control.phases.current, "committed"):  # the end of "committing"
                control.phases.begin(phase)
            line, notes = describe_progress(progress, planned_rows), tuple(self._notes)
            self._notes.clear()
            control.show(Reading(line=line, notes=notes, source=progress))
            if control.stop.count and progress.phase in ("Spooling", "Merging"):
                raise Stopped

        return on_progress

    def write_job(
        self,
        job: Job,
        stream: StreamPlan,
        groups: Sequence[Group],
        on_progress: Callable[[Progress], None],
    ) -> Committed:
        """Have a job write the rows of groups of a stream, and commit them."""
        spec = self.basis.experiment.spec
        is_keyed = spec.output is not None and spec.output.layout == "KeyAndScore"
        spooler = Spooler(
            storage=job.spool,
            columns=tuple(stream.output_schema.names),
            split=job.target.split,
            key=spec.dataset.row_key or () if is_keyed else (),
        )
        rows = Stream(plan=stream, chunk_rows=job.record.chunk_rows, finish=spooler)
        return job.write(
            lambda: self._open_writers(rows, job),
            groups,
            on_progress,
            on_spooled=lambda chunks: self._keep_measures(job, chunks),
        )

    def _keep_measures(self, job: Job, chunks: Sequence[ChunkRecord]) -> None:
        if steps := self.measures.steps:
            self.measures.keep(merge_observed(job.spool, chunks, steps))

    def _open_writers(self, stream: Stream, job: Job) -> AbstractContextManager[Writers]:
        """Open writers in this process and beside it, or over Ray."""
        if self._placed is None:
            return open_local_writers(self.basis.plan, stream)
        from pipeline_runtime.run.writing.ray_writers import open_ray_writers

        return open_ray_writers(
            self.basis.plan,
            stream,
            job.staged,
            staging_field=job.target.staging_field,
            placed=self._placed,
        )

    def _place_models(self) -> AbstractContextManager[PlacedModels | None]:
        """Return the inference workers of all commits; None without Ray."""
        if self.num_trainers is None:
            return nullcontext()
        from pipeline_runtime.run.writing.ray_writers import place_models

        return place_models(
            self.basis.plan, on_note=self._notes.append, on_reading=self._inference.record
        )

    def build_results(self, control: Control) -> Results:
        """Return the rows, files and bytes of the table."""
        progress = self.progress
        read, before = progress.rows_read
        seconds = max(1e-9, self._ended - self._began)
        output = self.basis.experiment.spec.output
        assert output is not None
        written = report.Written(
            uri=self.target.name,
            rows=progress.rows,
            files=progress.files,
            bytes=progress.num_bytes,
            partition_by=output.partition_by or (),
            catalog=output.iceberg.catalog if output.iceberg else None,
            **self._describe_table(),
        )
        sections: dict[str, Any] = {
            "output": written,
            "throughput": report.Throughput(rows_per_second=(read - before) / seconds),
        }
        checksum = progress.checksum
        if checksum is not None and checksum.rows == progress.rows:
            sections["checksum"] = build_checksum(checksum)
        measures = self.measures.report(control.options.output)
        sections["measures"] = tuple(measure.shorten() for measure in measures)
        return Results(
            counts=progress.counts,
            sections=sections,
            warnings=(*self.warnings, *self.measures.warnings),
            hints=(self.hint,),
        )

    @abstractmethod
    def _describe_table(self) -> dict[str, Any]:
        """Return fields of `report.Written` about the table that was committed."""


class WholeRun(WritingRun):
    """Writes a table by one commit."""

    def __init__(self, basis: RunBasis, job: Job, *, needs_ray: bool) -> None:
        super().__init__(basis, job.target, job.progress, needs_ray=needs_ray)
        self._job = job
        self.warnings = job.warnings

    def _write(self, control: Control) -> None:
        job, stream, on_progress = self._job, self.basis.plan.main, self.watch(control)
        on_progress(job.progress)
        self.write_job(job, stream, stream.groups(0, job.record.chunk_rows), on_progress)
        control.show(Reading(notes=self.measures.notes))

    def _describe_table(self) -> dict[str, Any]:
        """Return fields of `report.Written` about the table that was committed."""
        committed = self._job.committed
        if committed is None:
            return {}
        return {
            "snapshot_id": committed.snapshot_id or None,
            "replaced": committed.replaced or None,
        }
