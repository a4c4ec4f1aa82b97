"""Runs a training: trainers in this process or over Ray, and what they report.

`prepare` plans the work of each rank and finds where it resumes, `training_run` executes it.
"""

from __future__ import annotations

from datetime import datetime

from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.plan import Plan
from pipeline_runtime.run.consumers import Claim
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.training.prepare import (
    check_program,
    check_training,
    count_ranks,
    prepare_run,
)
from pipeline_runtime.run.training.training_run import TrainingRun


def check(experiment: DatasetExperiment, plan: Plan, storage_root: str) -> None:
    """See `run.consumers.Runner`. A manifest without a training may be for its rows alone.

    The built-in model is not imported, because that needs torch.
    """
    if "training" not in experiment.spec.model_fields_set:
        return
    check_training(experiment, plan)
    if not experiment.spec.training.is_built_in:
        check_program(experiment.spec.training)


def prepare(
    experiment: DatasetExperiment, options: RunOptions, now: datetime, claim: Claim
) -> TrainingRun:
    """See `run.consumers.Runner`. Raises TrainingError or CheckpointError, among others."""
    world_size, warning = count_ranks(experiment, options)
    run = prepare_run(experiment, options, now, world_size)
    claim(run.run_location)
    return TrainingRun(run, options, (warning,) if warning else ())
