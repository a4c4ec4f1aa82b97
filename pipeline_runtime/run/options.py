"""Options of a run from the command line, beside the manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pipeline_runtime.config import DatasetExperiment

# Data work needs one core, and the split's executor another. With one logical CPU, the second of
# two executions (training and evaluation) would never get a core.
MIN_LOGICAL_CPUS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run from the command line, beside the manifest.

    Attributes:
        run_id: id that the attempts of one run share; `resume` then ignores other runs. If None,
            `resume` considers all runs of the experiment.
        address: `local`: this process, or an embedded Ray if the manifest needs one; `ray`: an
            embedded Ray in any case; or that of a running cluster.
        code_paths: folders that the user's modules are imported from.
    """

    output: Path
    storage_root: str = "build/"
    address: str = "local"
    resume: bool = False
    run_id: str | None = None
    metrics_port: int = 0  # 0: any free port
    code_paths: tuple[str, ...] = ()
    verbose: bool = False

    @property
    def is_on_this_machine(self) -> bool:
        """Return whether nothing of the run is elsewhere."""
        return self.address in ("local", "ray")


def storage_root(experiment: DatasetExperiment, options: RunOptions) -> str:
    """Return the root of URIs without a scheme: the manifest's, else the command line's."""
    return experiment.spec.storage.root or options.storage_root


def logical_cpus() -> int:
    """Return the CPUs that an embedded Ray has for data work."""
    return max(MIN_LOGICAL_CPUS, len(os.sched_getaffinity(0)))
