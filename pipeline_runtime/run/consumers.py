"""The interface between a run and its consumer: what stands at the end of the plan's streams.

`session` executes any run: it has the plan made, shows it, starts Ray where that is needed, serves
metrics, handles signals, and leaves the report. The consumer claims its place, does the work, and
adds its sections to the summary. `plan.consumers` names the package of each consumer (`Runner`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from pipeline_runtime import report
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.feed.chunk import StepCount
from pipeline_runtime.plan import Plan
from pipeline_runtime.plan.consumers import Consumer
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.phases import Phases
from pipeline_runtime.run.stop_signals import StopRequest
from pipeline_runtime.sources import Location

if TYPE_CHECKING:  # a plan is shown before this is imported
    from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBasis:
    """Properties of a prepared run that do not depend on its consumer.

    Attributes:
        run_location: folder of the run on the artifacts store.
        code_digest: digest of the user's code that trains; None if there is none.
    """

    experiment: DatasetExperiment
    plan: Plan
    run_location: Location
    run_hash: str
    attempt: int
    resumed_from: report.ResumedFrom | None = None
    warnings: tuple[str, ...] = ()
    code_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a run."""

    kind: str  # Complete | Failed | Interrupted
    error: str | None = None
    error_kind: str | None = None  # the exception's class, see errors.py
    is_running: bool = False  # a step of the user's code could not be ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The progress of a run, for people.

    Attributes:
        line: the present state; empty before there is any.
        notes: lines to print once.
        source: the consumer's own numbers.
    """

    line: str = ""
    notes: tuple[str, ...] = ()
    source: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Controls that a consumer gets while it executes.

    Attributes:
        stop: requests of the user; it is looked at often.
        show: takes each reading.
    """

    options: RunOptions
    phases: Phases
    stop: StopRequest
    show: Callable[[Reading], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The part of a summary that the consumer knows.

    Attributes:
        counts: rows and bytes of the main stream's read and of every step.
        sections: other fields of `report.Summary`, by name.
        hints: lines about how to continue, unless the run is complete.
    """

    counts: tuple[StepCount, ...]
    sections: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


class ConsumerRun(Protocol):
    """A run that passed all checks and is ready to start."""

    basis: RunBasis

    @property
    def intro(self) -> Iterable[str]:
        """Lines that say what is about to run."""
        ...

    @property
    def stopping(self) -> str:
        """The effect of the first Ctrl-C, and of another one."""
        ...

    @property
    def num_trainers(self) -> int | None:
        """Logical CPUs that it holds beside data work on Ray; None if it needs no Ray."""
        ...

    @property
    def collector(self) -> Collector:
        """The metrics of this attempt."""
        ...

    @property
    def report_files(self) -> tuple[str, ...]:
        """Files that it adds to the folder of the report."""
        ...

    def load(self, phases: Phases) -> None:
        """Import the libraries of the work, and refuse user code that cannot be run.

        Raises ManifestError.
        """
        ...

    def execute(self, control: Control) -> Outcome:
        """Do the work to its end; a failure is returned, not raised."""
        ...

    def build_results(self, control: Control) -> Results:
        """Return the results after the end, whatever the outcome."""
        ...


Claim = Callable[[Location], None]
"""Claims a run by its folder on the artifacts store, see `claims.FolderClaim`."""


class Runner(Protocol):
    """The package of a consumer."""

    def check(self, experiment: DatasetExperiment, plan: Plan, storage_root: str) -> None:
        """Raise the error with which a run on one machine would refuse the manifest.

        Nothing is changed, and no earlier run is looked at.

        Raises ManifestError if the consumer cannot take the plan's rows, or another LastmileError.
        """
        ...

    def prepare(
        self, experiment: DatasetExperiment, options: RunOptions, now: datetime, claim: Claim
    ) -> ConsumerRun:
        """Plan a run, find where it resumes, and claim its place.

        Args:
            now: UTC; part of the name of a new run.
            claim: called once the name of the run is known, before anything is changed.

        Raises a LastmileError if it cannot start.
        """
        ...


def find_runner(consumer: Consumer) -> Runner:
    """Import the package that runs a consumer."""
    return cast(Runner, import_module(consumer.runner))
