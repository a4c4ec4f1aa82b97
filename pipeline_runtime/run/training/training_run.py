"""A prepared training as a run of the session; `driver` watches its trainers.

The main thread turns what the trainers report into the display, the metrics and the history.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pipeline_runtime import report
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.formatting import format_duration
from pipeline_runtime.monitor import MonitorState
from pipeline_runtime.report.files.metrics_history import HISTORY_FILE
from pipeline_runtime.run import phases
from pipeline_runtime.run.consumers import Control, Reading, Results, RunBasis
from pipeline_runtime.run.keeping_measures import KeptMeasures
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.phases import Phases
from pipeline_runtime.run.training.code_digest import digest_code
from pipeline_runtime.run.training.driver import Trainers, TrainingOutcome, execute
from pipeline_runtime.run.training.evaluation_file import collect_rows
from pipeline_runtime.run.training.past import read_past
from pipeline_runtime.run.training.prepare import PreparedRun, check_program
from pipeline_runtime.run.training.totals import (
    build_sections,
    find_last_checkpoint,
    total_counts,
)
from pipeline_runtime.training.measured import find_observers, merge_ranks
from pipeline_runtime.training.recorder import Past

if TYPE_CHECKING:  # a plan is shown before this is imported
    from pipeline_runtime.metrics import Pace, RunCollector


class TrainingRun:
    """See `run.consumers.ConsumerRun`."""

    stopping = "stopping after this step, with a checkpoint (Ctrl-C again: at once, without one)"

    def __init__(self, run: PreparedRun, options: RunOptions, warnings: tuple[str, ...]) -> None:
        self._run = run
        resumed = None
        if (header := run.resume) is not None:
            resumed = report.ResumedFrom(
                checkpoint=header.uri, epoch=header.epoch, step=header.step
            )
        self.basis = RunBasis(
            experiment=run.experiment,
            plan=run.plan,
            run_location=run.run_location,
            run_hash=run.identity.run_hash,
            attempt=run.identity.attempt,
            resumed_from=resumed,
            warnings=(*warnings, *run.warnings),
            code_digest=digest_code(run.experiment.spec.training),
        )
        plan, world_size = run.plan, run.world_size
        is_here = options.address == "local" and world_size == 1 and not plan.needs_ray
        self.num_trainers = None if is_here else world_size
        self._state = MonitorState()
        self._past = Past()
        self._measures = KeptMeasures(run.plan.training.steps, run.run_location)

    @cached_property
    def collector(self) -> RunCollector:
        """The metrics of this attempt."""
        from pipeline_runtime.metrics import RunCollector

        return RunCollector(
            ((index, kind) for index, kind, _ in self._run.plan.training.step_rows),
            damaged_checkpoints=len(self._run.damaged_checkpoints),
        )

    @property
    def report_files(self) -> tuple[str, ...]:
        """Files that it adds to the folder of the report."""
        return (HISTORY_FILE, *self._measures.files)

    @property
    def intro(self) -> Iterator[str]:
        """Lines that say what is about to run."""
        run = self._run
        pruning = run.plan.training.scan.pruning
        yield (
            f"{run.experiment.metadata.name}: run {run.identity.run_hash}, "
            f"{pruning.rows_read:,} rows in {pruning.row_groups_read} row groups of "
            f"{pruning.files_read} files, {run.experiment.spec.training.epochs} epochs, "
            f"{run.world_size} trainer(s)"
        )
        if run.resume is not None:
            yield f"resuming at epoch {run.resume.epoch}, step {run.resume.step}: {run.resume.uri}"

    def load(self, clock: Phases) -> None:
        """Import torch and the user's module."""
        clock.begin(phases.TORCH)
        import pipeline_runtime.training.ranks.worker  # noqa: F401

        if self._run.function is None:
            check_program(self._run.experiment.spec.training)

    def execute(self, control: Control) -> TrainingOutcome:
        """Train to the end, and record the history."""
        self._past, missing = read_past(self._run, control.options.output)
        if self._run.resume is not None:
            missing += collect_rows(self._run.run_location, control.options.output)
        start = self._find_trainers(control)
        control.phases.begin(phases.FIRST_BATCH)
        path = control.options.output / HISTORY_FILE
        recorder = _Recorder(report.HistoryWriter(path, kept=self._past.rows))
        try:
            outcome = execute(start, control.stop, self._watch(control, recorder))
        finally:
            problems = recorder.close()
        self._state = outcome.state
        self._state.warnings.extend([*missing, *problems])
        if outcome.kind == "Complete":
            self._keep_measures(control)
        return outcome

    def _keep_measures(self, control: Control) -> None:
        """Keep what steps measured of the rows of the first epoch."""
        parts = [rank.measured for rank in self._state.ranks.values() if rank.measured]
        if not parts:
            return
        try:
            self._measures.keep(merge_ranks(find_observers(self._run.plan.training.steps), parts))
        except LastmileError as error:
            self._state.warnings.append(f"the measures of the run are not kept: {error}")
        control.show(Reading(notes=self._measures.notes))

    def _find_trainers(self, control: Control) -> Callable[[], Trainers]:
        """Return what starts the trainers, in this process or over Ray."""
        if self.num_trainers is None:
            from pipeline_runtime.run.training.in_process import LocalTrainer

            return partial(LocalTrainer, self._run, self._past)
        from pipeline_runtime.run.training.on_ray import RayTrainers

        def show(note: str) -> None:
            control.show(Reading(notes=(note,)))

        return partial(RayTrainers, self._run, control.options, self._past, show)

    def _watch(self, control: Control, recorder: _Recorder) -> Callable[[MonitorState], None]:
        """Return what is called with each reading of the monitor."""
        from pipeline_runtime.run.training.pace import PaceMeter

        run, clock = self._run, control.phases
        meter = PaceMeter(run.planned_rows)

        def watch(state: MonitorState) -> None:
            ranks = list(state.ranks.values())
            if not control.options.verbose:  # else Ray prints it, with the rest of the log
                for line in state.output:
                    print(line, file=sys.stderr)
            notes = [f"warning: {warning}" for warning in state.warnings]
            firsts = [rank.first_batch_at for rank in ranks if rank.first_batch_at is not None]
            if clock.current == phases.FIRST_BATCH and len(firsts) == run.world_size:
                clock.begin(phases.TRAINING, at=max(firsts))
                notes.append(_describe_start(clock))
            pace = meter.measure(ranks)
            self.collector.update(state.ranks, pace)
            for point in state.history:
                recorder.append(point.seconds, point.epoch, point.step, point.metrics)
            is_training = clock.current == phases.TRAINING
            line = _describe(run, state, pace) if is_training else ""
            control.show(Reading(line=line, notes=tuple(notes), source=state))

        return watch

    def build_results(self, control: Control) -> Results:
        """Return the results of the training."""
        last = find_last_checkpoint(self._run, self._state)
        problems = collect_rows(self._run.run_location, control.options.output)
        measures = self._measures.report(control.options.output)
        sections = build_sections(self._run, self._state, control.phases, last, self._past)
        sections["measures"] = tuple(measure.shorten() for measure in measures)
        resuming = (f"last checkpoint: {last}", "resume: the same command with --resume")
        return Results(
            counts=total_counts(self._state.ranks.values()),
            sections=sections,
            warnings=(*self._state.warnings, *problems, *self._measures.warnings),
            hints=resuming if last else (),
        )


def _describe_start(clock: Phases) -> str:
    parts = [f"{name} {format_duration(taken)}" for name, taken in clock.seconds.items()]
    return f"first batch after {format_duration(sum(clock.seconds.values()))} ({', '.join(parts)})"


def _describe(run: PreparedRun, state: MonitorState, pace: Pace | None) -> str:
    first = state.ranks[min(state.ranks)]
    parts = [
        f"epoch {first.epoch + 1}/{run.experiment.spec.training.epochs}",
        f"step {first.step:,}",
    ]
    if pace is None:
        return " · ".join(parts)
    parts.append(f"{100 * pace.progress_ratio:.0f} %")
    if pace.rows_per_second is not None:
        parts.append(f"{pace.rows_per_second:,.0f} rows/s")
    if pace.samples_per_second is not None:
        parts.append(f"{pace.samples_per_second:,.0f} samples/s")
    if pace.production_wait_ratio is not None:
        parts.append(f"waited {100 * pace.production_wait_ratio:.0f} %")
    if "loss" in first.metrics:
        parts.append(f"loss {first.metrics['loss']:.4f}")
    if pace.remaining_seconds is not None:
        parts.append(f"ETA {_duration(pace.remaining_seconds)}")
    return " · ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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
