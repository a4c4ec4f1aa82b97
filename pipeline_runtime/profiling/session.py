"""A profile from end to end: plan, sample, measure, conclude."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from pipeline_runtime.config import DatasetExperiment, hash_parts
from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.feed.making.batching import batching_of
from pipeline_runtime.feed.transport.wire import Wire
from pipeline_runtime.plan import build_plan
from pipeline_runtime.profiling.advice import Findings, advise
from pipeline_runtime.profiling.clock import on_one_core, summarise
from pipeline_runtime.profiling.document import Profile
from pipeline_runtime.profiling.measurements import (
    describe_columns,
    describe_hops,
    describe_reading,
    describe_sample,
    describe_steps,
    list_warnings,
)
from pipeline_runtime.profiling.need import find_binding, plan_need
from pipeline_runtime.profiling.roofline import measure_roofline
from pipeline_runtime.profiling.sample import Limits, measure_packed, measure_passes, take_sample
from pipeline_runtime.report import ExperimentName
from pipeline_runtime.run.summarise import machine, versions
from pipeline_runtime.run.training.prepare import check_program, check_training

# Of the time: reading a sample, measuring the work on it, training on it.
_SAMPLE_SHARE, _WORK_SHARE, _TRAIN_SHARE = 0.15, 0.35, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """The user's choices beside the manifest."""

    seconds: float
    rows: int
    storage_root: str


def profile_experiment(
    experiment: DatasetExperiment,
    options: ProfileOptions,
    tell: Callable[[str], None] = lambda phase: None,
) -> Profile:
    """Measure an experiment in this process; the user's modules must be importable.

    Args:
        tell: called with what is measured next.

    Raises:
        ManifestError, SourceError, StepError, TrainingError: as a run would, or because no row of
            the sample reaches the model.
    """
    began, now = time.perf_counter(), datetime.now(UTC)
    spec = experiment.spec
    for name in spec.find_consumers():
        message = "cannot be profiled yet; replace it by a training"
        raise ManifestError([Problem(path=f"spec.{name}", message=message)])
    # The profile is about data workers, which are on other machines than the trainers.
    plan = build_plan(experiment, options.storage_root, keeps_order=False)
    check_training(experiment, plan)
    check_program(spec.training)
    # What the user's code prints is no part of the result.
    with on_one_core(), contextlib.redirect_stdout(sys.stderr):
        tell("reading a sample")
        limits = Limits(seconds=_SAMPLE_SHARE * options.seconds, rows=options.rows)
        batching = batching_of(plan.delivery, plan.training, spec.training)
        taken = take_sample(plan.training, limits, batching, Wire(sparse=plan.delivery.sparse))
        tell(f"the work on {taken.rows:,} rows, step by step")
        passes = measure_passes(taken, _WORK_SHARE * options.seconds)
        packed = measure_packed(taken, plan.delivery.compression)
        tell(f"the model on {taken.samples:,} frozen samples")
        device = _device(experiment)
        roofline = measure_roofline(spec, taken, device, _TRAIN_SHARE * options.seconds)
    reading, steps = describe_reading(taken, passes), describe_steps(taken, passes)
    reader = summarise([taken.samples / one.whole.own for one in passes])
    need = plan_need(spec, roofline.trainer.intake, reader)
    binding = find_binding(need, roofline.trainer, reading, steps)
    columns = describe_columns(spec.training, taken)
    findings = Findings(
        spec=spec,
        plan=plan,
        trainer=roofline.trainer,
        reading=reading,
        steps=steps,
        columns=columns,
        need=need,
        binding=binding,
    )
    warnings = [*roofline.warnings, *list_warnings(experiment, plan, passes, device)]
    return Profile(
        experiment=ExperimentName(
            name=experiment.metadata.name, namespace=experiment.metadata.namespace or "default"
        ),
        spec_hashes=hash_parts(experiment),
        measured_at=now,
        seconds=time.perf_counter() - began,
        versions=versions(),
        machine=machine(),
        sample=describe_sample(taken, passes),
        trainer=roofline.trainer,
        reading=reading,
        steps=steps,
        columns=columns,
        hops=describe_hops(taken, reading, steps, packed, roofline.trainer, need),
        need=need,
        binding=binding,
        advice=advise(findings),
        warnings=tuple(warnings),
    )


def _device(experiment: DatasetExperiment) -> torch.device:
    """Return the device of a run: a GPU if the trainers have one and this machine too."""
    wants_gpu = experiment.spec.trainers.gpus_per_replica > 0
    return torch.device("cuda" if wants_gpu and torch.cuda.is_available() else "cpu")
