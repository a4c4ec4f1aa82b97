"""Runs a checked experiment to a report on disk; `lastmile run` and notebooks call it.

The consumer of the plan prepares the run and refuses invalid input (`consumers`). It also claims
the run's folder, which no other run and no other process then uses (`claims`). The plan is shown
before the libraries of the work are imported, and Ray if the run needs it. Whatever the outcome,
the folder holds `summary.json`, `report.html`, `plan.json`, `manifest.yaml` and what the consumer
adds. The same files are copied beside the run's other files on the artifacts store: plan and
manifest before the work starts, so that they exist even if the run is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_runtime import report
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.errors import FolderInUse, LastmileError, NameTaken
from pipeline_runtime.iceberg.tags import release_tags
from pipeline_runtime.importing import importing
from pipeline_runtime.kernels import stop_loading
from pipeline_runtime.plan.consumers import choose_consumer
from pipeline_runtime.report.files.plan_file import PLAN_FILE
from pipeline_runtime.run import phases
from pipeline_runtime.run.claims import FolderClaim, making, read_run_file
from pipeline_runtime.run.code_paths import add_code_paths
from pipeline_runtime.run.consumers import (
    ConsumerRun,
    Control,
    Outcome,
    Reading,
    Runner,
    find_runner,
)
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.phases import Phases
from pipeline_runtime.run.pinning import keep_pins, tag_pins
from pipeline_runtime.run.places import check_apart
from pipeline_runtime.run.preceding import Preceding
from pipeline_runtime.run.reported_inference import ReportedInference
from pipeline_runtime.run.reported_tables import ReportedTables
from pipeline_runtime.run.results import (
    begin_folder,
    build_planned,
    keep_files,
    keep_results,
    write_results,
)
from pipeline_runtime.run.run_log import RunLog, keeping_run_log
from pipeline_runtime.run.stop_signals import StopRequest, catching_signals

if TYPE_CHECKING:  # a plan is shown before this is imported
    from prometheus_client.registry import Collector

    from pipeline_runtime.run.metrics_file import Samples

# On a cluster, decisions/ is already in the store before the report.
REPORT_FILES = ("summary.json", "report.html", PLAN_FILE, "manifest.yaml")
# The operator lets a stopped driver live for 120 s.
_DRAIN_SECONDS = 150.0
_POLL_SECONDS = 3.0
_STOPPING = "stopping; partitions that are committed are kept (Ctrl-C again: at once)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that ended, with any outcome.

    Attributes:
        hints: lines about how to continue, unless the run is complete.
    """

    outcome: Outcome
    summary: report.Summary
    output: Path
    hints: tuple[str, ...] = ()


@dataclass(slots=True)
class Watcher:
    """Callbacks to follow a run; by default, they do nothing."""

    on_prepared: Callable[[ConsumerRun], None] = field(default=lambda run: None)
    on_metrics_port: Callable[[int], None] = field(default=lambda port: None)
    on_reading: Callable[[Reading], None] = field(default=lambda reading: None)
    on_stop: Callable[[int], None] = field(default=lambda count: None)
    phases: Phases = field(default_factory=Phases)


def run_experiment(
    experiment: DatasetExperiment,
    manifest: str,
    options: RunOptions,
    watcher: Watcher | None = None,
) -> Finished:
    """Run an experiment to its end; a failure of its work is returned, not raised.

    Raises a LastmileError if it cannot start, and AlreadyComplete if nothing is left to resume.
    """
    watcher = watcher or Watcher()
    with importing():
        runner = find_runner(choose_consumer(experiment.spec))
    watcher.phases.begin(phases.PLAN)
    shown = options.output
    # The user's code runs in this process, and may change its folder.
    options = replace(
        options, output=shown.absolute(), tables=ReportedTables(), inference=ReportedInference()
    )
    add_code_paths(options.code_paths)
    check_apart(experiment, options)
    samples: Samples = []
    with FolderClaim(_find_only_run(options)) as claim, keeping_run_log() as log:
        preceding = _build_preceding(claim, watcher, log, samples)
        claim.options = replace(claim.options, preceding=preceding)
        run = _prepare(runner, experiment, claim, watcher)  # imports the functions of steps
        run.basis = keep_pins(run.basis)
        options.tables.pins = run.basis.plan.pins
        options.tables.models = run.basis.plan.models
        watcher.on_prepared(run)
        with importing():
            run.load(watcher.phases)
        assert claim.folder is not None
        folder = claim.folder
        planned = build_planned(run.basis.plan, manifest)
        with making(folder):
            warning = begin_folder(folder, planned, is_latest=options.folder_per_run)
        if warning:
            watcher.on_reading(Reading(notes=(f"warning: {warning}",)))
        # If the store refuses now, these files are written again with the report, which warns.
        keep_files(planned, run.basis.run_location)
        tag_pins(run.basis)
        control = Control(
            options=replace(claim.options, output=folder),
            phases=watcher.phases,
            stop=StopRequest(),
            show=watcher.on_reading,
        )
        outcome = _execute(run, control, watcher, log, samples)
        watcher.phases.begin(phases.REPORT)
        finished = _report(run, control, outcome, planned, warning)
    return replace(finished, output=shown / folder.name if options.folder_per_run else shown)


def _find_only_run(options: RunOptions) -> RunOptions:
    """Return the options with the run that the user's folder holds, which `resume` continues."""
    if not options.resume or options.folder_per_run:
        return options
    try:
        held = read_run_file(options.output)
    except OSError as error:
        raise LastmileError(f"{options.output}: cannot be read: {error}") from error
    return replace(options, only_run=held.run if held else None)


def _prepare(
    runner: Runner, experiment: DatasetExperiment, claim: FolderClaim, watcher: Watcher
) -> ConsumerRun:
    """Prepare a run and claim its folders; two that begin in one second get different names.

    On a cluster, an old driver may still write its last checkpoint. It is waited for, since each
    attempt that fails counts, and the run is prepared again, to find that checkpoint.
    """
    now = datetime.now(UTC)
    ends = time.monotonic() + (0.0 if claim.options.is_on_this_machine else _DRAIN_SECONDS)
    is_told = False
    while True:
        try:
            return runner.prepare(experiment, claim.options, now, claim)
        except FolderInUse as error:
            if time.monotonic() >= ends:
                raise
            if not is_told:
                note = f"waiting for at most {_DRAIN_SECONDS:.0f} s: {error}"
                watcher.on_reading(Reading(notes=(note,)))
                is_told = True
            time.sleep(_POLL_SECONDS)
        except NameTaken:
            if claim.options.resume:  # by another process
                raise
            now += timedelta(seconds=1)


def _report(
    run: ConsumerRun,
    control: Control,
    outcome: Outcome,
    planned: Mapping[str, bytes],
    warning: str | None,
) -> Finished:
    """Write the report of a run that ended, and copy it to the artifacts store.

    Args:
        warning: one about the folder of the run.
    """
    from pipeline_runtime.run.decisions import fetch_decisions
    from pipeline_runtime.run.summarise import build_summary, time_report

    folder = control.options.output
    problems = [warning, fetch_decisions(run.basis.run_location, folder)]
    if outcome.kind == "Complete":
        problems += release_tags(run.basis.experiment.spec.catalogs, run.basis.plan.pins)
    results = run.build_results(control)
    results = replace(results, warnings=(*results.warnings, *filter(None, problems)))
    summary = build_summary(run.basis, results, outcome, control)
    try:
        write_results(planned, folder, summary)
        summary = time_report(summary, control.phases)
        report.write_summary(folder, summary)
    except OSError as error:
        last = summary.checkpoints.last
        resumes = f", which continues from {last}" if last else ""
        raise LastmileError(
            f"{folder}: the run ended {outcome.kind}, but its report cannot be written: "
            f"{error}; make room and run again with --resume{resumes}"
        ) from error
    names = (*REPORT_FILES, *run.report_files)
    summary = keep_results(names, folder, run.basis.run_location, summary)
    hints = () if outcome.kind == "Complete" else results.hints
    return Finished(outcome=outcome, summary=summary, output=folder, hints=hints)


def _build_preceding(
    claim: FolderClaim, watcher: Watcher, log: RunLog, samples: Samples
) -> Preceding:
    """Return the controls of work that precedes the run.

    Args:
        samples: takes the metrics, which are written once the run has a folder.
    """
    stop = StopRequest(interrupts=True)

    def show(reading: Reading) -> None:
        log.note(reading.notes)
        watcher.on_reading(reading)

    def tell(count: int) -> None:
        show(Reading(notes=(_STOPPING if count == 1 else "stopping at once",)))

    @contextmanager
    def watch(collector: Collector) -> Iterator[None]:
        from pipeline_runtime.run.metrics_file import keeping_metrics

        claim.check_free()
        with (
            _serving(collector, claim.options, watcher),
            keeping_metrics(collector, None, samples),
            catching_signals(stop, tell),
        ):
            yield

    return Preceding(phases=watcher.phases, stop=stop, show=show, watch=watch)


@contextmanager
def _serving(collector: Collector, options: RunOptions, watcher: Watcher) -> Iterator[None]:
    """Serve metrics."""
    from pipeline_runtime.metrics import MetricsServer
    from pipeline_runtime.run.inference_metrics import InferenceCollector
    from pipeline_runtime.run.table_metrics import TableCollector

    others = (TableCollector(options.tables), InferenceCollector(options.inference))
    server = MetricsServer(collector, options.metrics_port, *others)
    watcher.on_metrics_port(server.port)
    try:
        yield
    finally:
        server.close()


def _execute(
    run: ConsumerRun, control: Control, watcher: Watcher, log: RunLog, samples: Samples
) -> Outcome:
    """Execute the run with Ray, metrics and signal handlers set up around it."""
    from pipeline_runtime.run.metrics_file import keeping_metrics

    try:
        with _serving(run.collector, control.options, watcher):
            log.open(control.options.output, run.basis.run_location)
            with (
                _connected(run, control),
                keeping_metrics(run.collector, run.basis.run_location, samples),
                # After Ray, which sets its own SIGTERM handler (ray#17308).
                catching_signals(control.stop, watcher.on_stop),
            ):
                log.note((*run.intro, *(f"warning: {each}" for each in run.basis.warnings)))

                def show(reading: Reading) -> None:
                    log.note(reading.notes)
                    control.show(reading)

                return run.execute(replace(control, show=show))
    finally:
        stop_loading()


@contextmanager
def _connected(run: ConsumerRun, control: Control) -> Iterator[None]:
    """Start Ray, or connect to it, if the run needs it."""
    if run.num_trainers is None:
        yield
        return
    control.phases.begin(phases.RAY)
    with importing():
        from pipeline_runtime.run.ray_connection import connected

    options = control.options
    with connected(options.address, run.num_trainers, verbose=options.verbose):
        yield
