"""Runs an experiment with `output` to a table and a report on disk, on this machine, without Ray.

`prepare_table` refuses invalid input and finds an earlier attempt, `write_table` executes the run
with its signals, metrics and report. `output.job` does the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pipeline_runtime import report
from pipeline_runtime.config import DatasetExperiment, Output, run_config, run_hash
from pipeline_runtime.errors import (
    Interrupted,
    LastmileError,
    ManifestError,
    Problem,
)
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.making.work import run_stage
from pipeline_runtime.feed.pieces import Piece
from pipeline_runtime.metrics import MetricsServer
from pipeline_runtime.output.job import ROLE, Job, Progress, Stopped, Target, open_job
from pipeline_runtime.output.merge import FileFormat
from pipeline_runtime.output.names import make_token
from pipeline_runtime.output.place import Place, open_place
from pipeline_runtime.output.records import RunRecord
from pipeline_runtime.output.spool import SpooledPiece, Spooler, spool_schema
from pipeline_runtime.plan import Plan, StreamPlan, build_plan
from pipeline_runtime.report.files.plan_file import PLAN_FILE
from pipeline_runtime.run.folders import build_folder_name, parse_run_hash, parse_run_id
from pipeline_runtime.run.prepare import (
    RunOptions,
    add_code_paths,
    check_not_complete,
    storage_root,
)
from pipeline_runtime.run.results import (
    build_planned,
    handling_signals,
    keep_files,
    keep_results,
    write_results,
)
from pipeline_runtime.run.summarise import (
    find_seeds,
    machine_without_gpus,
    read_size,
    step_flows,
    versions,
)
from pipeline_runtime.run.writing_metrics import WritingCollector
from pipeline_runtime.sources import Location, open_location
from pipeline_runtime.training.position import digest_units

REPORT_FILES = ("summary.json", "report.html", PLAN_FILE, "manifest.yaml")
_URI = "spec.output.parquet.uri"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTable:
    """A run that passed all checks and is ready to start.

    Attributes:
        run_location: folder of the run's report on the artifacts store.
    """

    experiment: DatasetExperiment
    plan: Plan
    uri: str
    job: Job
    run_location: Location
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingOutcome:
    """How a run ended; `error_kind` is the class of the exception, see errors.py."""

    kind: str  # Complete | Failed | Interrupted
    error: str | None = None
    error_kind: str | None = None
    is_running: bool = False  # as of a training's outcome: no step of the user's outlives the run


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTable:
    """A run that ended, with any outcome."""

    outcome: WritingOutcome
    summary: report.Summary
    output: Path


@dataclass(slots=True)
class WritingWatcher:
    """Callbacks to follow a run; by default, they do nothing."""

    on_prepared: Callable[[PreparedTable], None] = field(default=lambda run: None)
    on_metrics_port: Callable[[int], None] = field(default=lambda port: None)
    on_progress: Callable[[Progress], None] = field(default=lambda progress: None)
    on_stop: Callable[[int], None] = field(default=lambda count: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finisher:
    """What a reader does with a piece: the stages after the first, then its spool file."""

    stream: StreamPlan
    spooler: Spooler

    def __call__(self, piece: Piece) -> SpooledPiece:
        for index in range(1, len(self.stream.stages)):
            piece = run_stage(self.stream, index, piece)
        return self.spooler(piece)


def prepare_table(
    experiment: DatasetExperiment, options: RunOptions, now: datetime
) -> PreparedTable:
    """Plan a run, find where it resumes, and claim it.

    Raises ManifestError, SourceError (StoreError if a store does not answer), OutputError, or
    AlreadyComplete.
    """
    output = experiment.spec.output
    assert output is not None
    if options.address != "local":
        message = "is written by one machine so far, so --address must be local; leave it out"
        raise ManifestError([Problem(path="spec.output", message=message)])
    add_code_paths(options.code_paths)
    root = storage_root(experiment, options)
    plan = build_plan(experiment, root)
    place = open_place(open_location(output.parquet.uri, root, output.parquet.s3))
    _check_apart(experiment, place, root)
    found = run_hash(experiment)

    def is_mine(name: str) -> bool:
        is_equal = parse_run_hash(name) == found
        return is_equal and options.run_id in (None, parse_run_id(name))

    job = open_job(
        Target(
            place=place,
            form=_format(output, plan),
            mode=output.mode,
            partition_by=output.partition_by or (),
        ),
        build_folder_name(now, found, options.run_id),
        RunRecord(
            id=make_token(),
            run_hash=found,
            run_config=run_config(experiment),
            data_digest=digest_units(plan.main),
            piece_rows=plan.main.piece_rows,
        ),
        is_mine=is_mine,
        resume=options.resume,
    )
    job.num_threads = threads_per_rank(1)
    artifacts = open_location(experiment.spec.artifacts.uri, root)
    run_location = artifacts.join(experiment.metadata.name, job.run)
    if options.resume and not job.is_staged:
        check_not_complete(run_location)
    warnings: tuple[str, ...] = ()
    if options.resume and job.is_new:
        warnings = ("--resume: no attempt to resume was found; the run starts from its beginning",)
    return PreparedTable(
        experiment=experiment,
        plan=plan,
        uri=output.parquet.uri,
        job=job,
        run_location=run_location,
        warnings=warnings,
    )


def _format(output: Output, plan: Plan) -> FileFormat:
    return FileFormat(
        schema=spool_schema(plan.main, output.partition_by or ()),
        full_schema=plan.main.output_schema,
        compression=output.parquet.compression.lower(),
        target_bytes=output.parquet.target_file_size_bytes,
    )


def _check_apart(experiment: DatasetExperiment, place: Place, root: str) -> None:
    """Raise ManifestError if the table would take the place of its own source."""
    source = experiment.spec.dataset.parquet
    table = place.table.location
    for uri in source.locations if source else ():
        found = open_location(uri, root, source.s3 if source else None)
        is_below = f"{found.path.rstrip('/')}/".startswith(f"{table.path}/")
        if is_below and found.filesystem == table.filesystem:
            message = f"must be apart from the source, but {uri!r} is in it; name another folder"
            raise ManifestError([Problem(path=_URI, message=message)])


def write_table(
    experiment: DatasetExperiment,
    manifest: str,
    options: RunOptions,
    watcher: WritingWatcher | None = None,
) -> FinishedTable:
    """Run an experiment to its end; a failure while it writes is returned, not raised.

    Raises what `prepare_table` raises.
    """
    watcher = watcher or WritingWatcher()
    started = datetime.now(UTC)
    run = prepare_table(experiment, options, started)
    watcher.on_prepared(run)
    planned = build_planned(run.plan, manifest)
    keep_files(planned, run.run_location)
    began = time.monotonic()
    outcome = _execute(run, options, watcher)
    summary = _summarise(run, outcome, started, time.monotonic() - began)
    summary = _write_report(planned, options.output, summary, run.run_location)
    return FinishedTable(outcome=outcome, summary=summary, output=options.output)


def _execute(run: PreparedTable, options: RunOptions, watcher: WritingWatcher) -> WritingOutcome:
    stream, job = run.plan.main, run.job
    spooler = Spooler(
        storage=job.spool,
        columns=tuple(stream.output_schema.names),
        partition_by=job.target.partition_by,
    )
    piece_rows = job.record.piece_rows
    finish = _Finisher(stream=stream, spooler=spooler)
    feed = ThreadReaders(
        streams={ROLE: Stream(plan=stream, piece_rows=piece_rows, finish=finish)},
        num_threads=job.num_threads if run.plan.feed.may_be_threads else 1,
    )
    collector = WritingCollector(
        [(index, kind) for index, kind, _ in stream.step_rows], stream.scan.pruning.rows_read
    )
    server = MetricsServer(collector, options.metrics_port)
    watcher.on_metrics_port(server.port)
    try:
        with _signals(watcher) as stop:

            def on_progress(progress: Progress) -> None:
                collector.update(progress)
                watcher.on_progress(progress)
                if stop.count and progress.phase in ("Spooling", "Merging"):
                    raise Stopped

            on_progress(job.progress)
            job.write(feed, stream.groups(0, piece_rows), on_progress)
        return WritingOutcome(kind="Complete")
    except (Stopped, Interrupted):
        error = "stopped by a signal; run again with --resume to continue"
        return WritingOutcome(kind="Interrupted", error=error, error_kind="Interrupted")
    except LastmileError as error:
        return WritingOutcome(kind="Failed", error=str(error), error_kind=type(error).__name__)
    finally:
        server.close()


@dataclass(slots=True)
class _Stop:
    """The number of signals so far."""

    count: int = 0


@contextmanager
def _signals(watcher: WritingWatcher) -> Iterator[_Stop]:
    """Let the first Ctrl-C or SIGTERM request a stop, and the second one interrupt at once."""
    stop = _Stop()

    def handle() -> None:
        stop.count += 1
        watcher.on_stop(stop.count)
        if stop.count > 1:
            raise Interrupted("stopped by a second signal")

    with handling_signals(handle):
        yield stop


def _summarise(
    run: PreparedTable, outcome: WritingOutcome, started: datetime, seconds: float
) -> report.Summary:
    job, progress, metadata = run.job, run.job.progress, run.experiment.metadata
    finished = datetime.now(UTC)
    read = progress.counts[0].rows if progress.counts else 0
    before = progress.resumed_counts[0].rows if progress.resumed_counts else 0
    return report.Summary(
        experiment=report.ExperimentName(
            name=metadata.name, namespace=metadata.namespace or "default"
        ),
        run=report.Run(
            run_hash=job.record.run_hash,
            attempt=job.claim.attempt,
            started_at=started,
            finished_at=finished,
            seconds=(finished - started).total_seconds(),
            outcome=outcome.kind,
            error=outcome.error,
        ),
        seeds=find_seeds(run.experiment),
        versions=versions(),
        machine=machine_without_gpus(),
        dataset=read_size(run.plan.main, progress.counts),
        steps=step_flows(run.plan.main, progress.counts),
        output=report.Written(
            uri=run.uri,
            rows=progress.rows,
            files=progress.files,
            bytes=progress.num_bytes,
            partition_by=job.target.partition_by,
        ),
        throughput=report.Throughput(rows_per_second=(read - before) / max(seconds, 1e-9)),
        warnings=(*run.plan.warnings, *run.warnings, *job.warnings),
    )


def _write_report(
    planned: Mapping[str, bytes], output: Path, summary: report.Summary, location: Location
) -> report.Summary:
    """Write the report here and beside the run's other files; return it with its warnings."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_results(planned, output, summary)
    except OSError as error:
        raise LastmileError(
            f"{output}: the run ended {summary.run.outcome}, but its report cannot be written: "
            f"{error}; make room and run again with --resume"
        ) from error
    return keep_results(REPORT_FILES, output, location, summary)
