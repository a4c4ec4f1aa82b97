"""Runs a checked experiment to a report on disk; `lastmile run` and notebooks call it.

`prepare` plans the run and refuses invalid input. The plan is shown before torch, and Ray if the
run needs it, are imported and started; `driver` then watches the run. Whatever the outcome, the
output folder holds `summary.json`, `report.html`, `metrics.parquet`, `plan.json` and
`manifest.yaml`. The same files are copied beside the checkpoints on the artifacts store: plan and
manifest before training starts, so that they exist even if the run is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_runtime import report
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.importing import importing
from pipeline_runtime.monitor import MonitorState
from pipeline_runtime.report.files.plan_file import PLAN_FILE
from pipeline_runtime.run import phases
from pipeline_runtime.run.driver import Outcome, StopRequest, Trainers, execute
from pipeline_runtime.run.phases import Phases
from pipeline_runtime.run.prepare import (
    PreparedRun,
    RunOptions,
    check_program,
    count_ranks,
    needs_ray,
    prepare_run,
)
from pipeline_runtime.run.results import (
    build_planned,
    handling_signals,
    keep_files,
    keep_results,
    write_results,
)

if TYPE_CHECKING:
    from pipeline_runtime.metrics import Pace, RunCollector

# On a cluster, decisions/ is already in the store before the report.
REPORT_FILES = ("summary.json", "report.html", "metrics.parquet", PLAN_FILE, "manifest.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that ended, with any outcome."""

    outcome: Outcome
    summary: report.Summary
    output: Path


@dataclass(slots=True)
class Watcher:
    """Callbacks to follow a run; by default, they do nothing."""

    on_prepared: Callable[[PreparedRun], None] = field(default=lambda run: None)
    on_metrics_port: Callable[[int], None] = field(default=lambda port: None)
    on_state: Callable[[MonitorState, Pace | None], None] = field(default=lambda state, pace: None)
    on_stop: Callable[[int], None] = field(default=lambda count: None)
    phases: Phases = field(default_factory=Phases)


def run_experiment(
    experiment: DatasetExperiment,
    manifest: str,
    options: RunOptions,
    watcher: Watcher | None = None,
) -> Finished:
    """Run an experiment to its end; a failure during training is returned, not raised.

    Raises ManifestError, SourceError (StoreError if a store does not answer), TrainingError or
    CheckpointError if it cannot start.
    """
    watcher = watcher or Watcher()
    watcher.phases.begin(phases.PLAN)
    shown = options.output
    # The user's code runs in this process, and may change its folder.
    options = replace(options, output=shown.absolute())
    now = datetime.now(UTC)
    ranks, warning = count_ranks(experiment, options)
    run = prepare_run(experiment, options, now, ranks)
    watcher.on_prepared(run)
    watcher.phases.begin(phases.TORCH)
    with importing():  # torch, and whatever the user's module imports
        import pipeline_runtime.training.ranks.worker  # noqa: F401

        check_program(experiment.spec.training)
    options.output.mkdir(parents=True, exist_ok=True)
    planned = build_planned(run.plan, manifest)
    # If the store refuses now, these files are written again with the report, which warns.
    keep_files(planned, run.run_location)
    outcome = _execute(run, options, watcher)
    watcher.phases.begin(phases.REPORT)
    if warning:
        outcome.state.warnings.insert(0, warning)
    from pipeline_runtime.run.decisions import fetch_decisions
    from pipeline_runtime.run.summarise import build_summary, time_report

    problem = fetch_decisions(run.run_location, options.output)
    if problem:
        outcome.state.warnings.append(problem)
    summary = build_summary(run, options, outcome, watcher.phases)
    try:
        write_results(planned, options.output, summary)
        summary = time_report(summary, watcher.phases)
        report.write_summary(options.output, summary)
    except OSError as error:
        raise LastmileError(
            f"{options.output}: the run ended {outcome.kind}, but its report cannot be written: "
            f"{error}; make room and run again with --resume, which continues from "
            f"{summary.checkpoints.last or 'the start'}"
        ) from error
    summary = keep_results(REPORT_FILES, options.output, run.run_location, summary)
    return Finished(outcome=outcome, summary=summary, output=shown)


def _execute(run: PreparedRun, options: RunOptions, watcher: Watcher) -> Outcome:
    """Execute the run with metrics, history and signal handlers set up around it."""
    from pipeline_runtime.metrics import MetricsServer, RunCollector
    from pipeline_runtime.run.metrics_file import keeping_metrics

    collector = RunCollector(
        ((index, kind) for index, kind, _ in run.plan.training.step_rows),
        damaged_checkpoints=len(run.damaged_checkpoints),
    )
    server = MetricsServer(collector, options.metrics_port)
    watcher.on_metrics_port(server.port)
    until = run.resume.step if run.resume else None
    try:
        with (
            _starting(run, options, watcher.phases) as start,
            keeping_metrics(collector, run.run_location),
            _signals(watcher) as stop,  # after Ray, which sets its own SIGTERM handler (ray#17308)
        ):
            watcher.phases.begin(phases.FIRST_BATCH)
            recorder = _Recorder(
                report.HistoryWriter(options.output / "metrics.parquet", keep_until_step=until)
            )
            try:
                outcome = execute(start, stop, _watch(run, watcher, collector, recorder))
            finally:
                problems = recorder.close()
            outcome.state.warnings.extend(problems)
            return outcome
    finally:
        server.close()


@contextmanager
def _starting(
    run: PreparedRun, options: RunOptions, clock: Phases
) -> Iterator[Callable[[], Trainers]]:
    """Yield what starts the trainers, in this process or, if the run needs it, over Ray."""
    if not needs_ray(run, options):
        from pipeline_runtime.run.in_process import LocalTrainer

        yield lambda: LocalTrainer(run)
        return
    clock.begin(phases.RAY)
    with importing():
        from pipeline_runtime.run.cluster import connected
        from pipeline_runtime.run.on_ray import RayTrainers

    with connected(options.address, run.world_size, verbose=options.verbose):
        yield lambda: RayTrainers(run, options)


def _watch(
    run: PreparedRun, watcher: Watcher, collector: RunCollector, recorder: _Recorder
) -> Callable[[MonitorState], None]:
    """Return what is called with each reading of the monitor."""
    from pipeline_runtime.run.pace import PaceMeter
    from pipeline_runtime.run.summarise import HistoryRates
    from pipeline_runtime.run.supply import SupplyMeter

    rates = HistoryRates({"rows": float(run.resumed_rows)})
    meter, supply = PaceMeter(run.planned_rows), SupplyMeter()

    def watch(state: MonitorState) -> None:
        ranks = list(state.ranks.values())
        firsts = [rank.first_batch_at for rank in ranks if rank.first_batch_at is not None]
        if watcher.phases.current == phases.FIRST_BATCH and len(firsts) == run.world_size:
            watcher.phases.begin(phases.TRAINING, at=max(firsts))
        pace = meter.measure(ranks)
        collector.update(state.ranks, pace)
        for point in state.history:
            recorder.append(point.seconds, point.epoch, point.step, rates.convert(point))
        if state.history:
            last = state.history[-1]
            found = supply.measure(ranks, time.time())
            recorder.append(last.seconds, last.epoch, last.step, found)
        watcher.on_state(state, pace)

    return watch


class _Recorder:
    """Writes the history. If the disk is full, the history ends early; training continues."""

    def __init__(self, history: report.HistoryWriter) -> None:
        self._history = history
        self._problem: OSError | None = None

    def append(self, seconds: float, epoch: int, step: int, metrics: dict[str, float]) -> None:
        """Add a point, unless writing has failed before."""
        if self._problem is None:
            self._try(lambda: self._history.append(seconds, epoch, step, metrics))

    def close(self) -> list[str]:
        """Finish the file if possible, and return warnings."""
        if self._problem is None:
            self._try(self._history.close)
        if self._problem is None:
            return []
        return [f"the metrics history ends early: {self._problem}; free space for --output"]

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._problem = error


@contextmanager
def _signals(watcher: Watcher) -> Iterator[StopRequest]:
    """Let Ctrl-C and SIGTERM request a stop."""
    stop = StopRequest()

    def handle() -> None:
        stop.add()
        watcher.on_stop(stop.count)

    with handling_signals(handle):
        yield stop
