"""Runs an output: data workers write a table, which the driver records, merges and commits.

`writing_run` prepares a run and executes it, `backfill_run` one that writes partitions;
`pipeline_runtime.output` does the work.
"""

from __future__ import annotations

from datetime import datetime

from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.plan import Plan
from pipeline_runtime.run.consumers import Claim
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.writing.backfill_run import prepare_backfill
from pipeline_runtime.run.writing.targets import open_target
from pipeline_runtime.run.writing.writing_run import WritingRun, prepare_writing


def check(experiment: DatasetExperiment, plan: Plan, storage_root: str) -> None:
    """See `run.consumers.Runner`. The plan itself refuses columns that cannot be written.

    A table that is there already is not looked at: a run may resume or overwrite it.
    """
    open_target(experiment, plan, storage_root)


def prepare(
    experiment: DatasetExperiment, options: RunOptions, now: datetime, claim: Claim
) -> WritingRun:
    """See `run.consumers.Runner`. Raises OutputError, among others."""
    output = experiment.spec.output
    assert output is not None
    if output.is_by_partition:
        return prepare_backfill(experiment, options, now, claim)
    return prepare_writing(experiment, options, now, claim)
