"""Options of a run from the command line, beside the manifest."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs

from pipeline_runtime.run.folders import build_folder_name, parse_run_hash, parse_run_id
from pipeline_runtime.run.preceding import Preceding
from pipeline_runtime.run.reported_inference import ReportedInference
from pipeline_runtime.run.reported_tables import ReportedTables
from pipeline_runtime.sources import Location

# Data work needs one core, and the split's executor another. With one logical CPU, the second of
# two executions (training and evaluation) would never get a core.
MIN_LOGICAL_CPUS = 2
# Of the id in the name of a run: runs that begin in one second differ.
_ID_BYTES = 4
# Runs have their folders below it, in the current folder, unless the user names one.
_REPORTS = Path("build")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run from the command line, beside the manifest.

    Attributes:
        output: folder of the report; with `folder_per_run`, the parent of the runs' folders.
        storage_root: base of URIs without a scheme: the manifest's, else the command line's.
        run_id: id that the attempts of one run share; `resume` then ignores other runs. If None,
            `resume` considers all runs of the experiment.
        only_run: name of the run that `resume` continues; None: the newest that can be continued.
        address: `local`: this process, or an embedded Ray if the manifest needs one; `ray`: an
            embedded Ray in any case; or that of a running cluster.
        code_paths: folders that the user's modules are imported from.
        function: the entrypoint, if it is a function of a notebook.
        partitions: partitions of the source that an output by partitions computes, as texts such as
            `day=2026-01-01`; all if empty.
        preceding: controls of work that precedes a run.
        tables: what the run has found out about its Iceberg tables; metrics and summary show it.
        inference: counts of the run's inference workers; metrics and summary show them.
    """

    output: Path
    folder_per_run: bool = False
    storage_root: str = "build/"
    address: str = "local"
    resume: bool = False
    run_id: str | None = None
    only_run: str | None = None
    metrics_port: int = 0  # 0: any free port
    code_paths: tuple[str, ...] = ()
    verbose: bool = False
    function: Callable[[Any], object] | None = None
    partitions: tuple[str, ...] = ()
    preceding: Preceding = field(default_factory=Preceding, compare=False)
    tables: ReportedTables = field(default_factory=ReportedTables, compare=False)
    inference: ReportedInference = field(default_factory=ReportedInference, compare=False)

    @property
    def is_on_this_machine(self) -> bool:
        """Return whether nothing of the run is elsewhere."""
        return self.address in ("local", "ray")

    def may_continue(self, run: str) -> bool:
        """Return whether `resume` considers the run of this name."""
        is_mine = self.run_id is None or parse_run_id(run) == self.run_id
        return is_mine and self.only_run in (None, run)

    def is_attempt(self, run: str, run_hash: str) -> bool:
        """Return whether the run of this name is of the same manifest, and may be continued."""
        return parse_run_hash(run) == run_hash and self.may_continue(run)

    def may_lock(self, place: Location) -> bool:
        """Return whether a lock can keep other runs out of a folder on the artifacts store.

        On disks that the machines of a cluster share, a lock may outlive a lost machine.
        """
        return self.is_on_this_machine and isinstance(place.filesystem, pafs.LocalFileSystem)

    def name_run(
        self, now: datetime, run_hash: str, artifacts: Location, *, is_alone: bool = True
    ) -> str:
        """Return the name of a run that starts from its beginning.

        `only_run` keeps its name, if it is a run of the same manifest: it was stopped before its
        first checkpoint.

        Args:
            now: UTC.
            artifacts: the experiment's folder on the artifacts store. Where no lock protects it,
                the name of a run ends with a random id, unless it has one.
            is_alone: whether no other run of the manifest may begin in the same second.
        """
        before = self.only_run
        if before is not None and self.is_attempt(before, run_hash):
            return before
        needs_id = self.run_id is None and not (is_alone and self.may_lock(artifacts))
        return build_folder_name(
            now, run_hash, secrets.token_hex(_ID_BYTES) if needs_id else self.run_id
        )


def choose_output(output: str | Path | None, name: str) -> Path:
    """Return `RunOptions.output`: the folder that the user names, or `build/NAME`."""
    return _REPORTS / name if output is None else Path(output).expanduser()


def logical_cpus() -> int:
    """Return the CPUs that an embedded Ray has for data work."""
    return max(MIN_LOGICAL_CPUS, len(os.sched_getaffinity(0)))
