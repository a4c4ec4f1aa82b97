"""Runs a simulation from end to end: reads the profile, builds the run, compares, concludes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dataset_operator.sizing.compare import TIMES, compare
from dataset_operator.sizing.conclusion import conclude, list_warnings
from dataset_operator.sizing.document import Assumptions, Measured, Need, Simulation
from dataset_operator.sizing.measured import find_changes, load_profile
from dataset_operator.sizing.simulated_run import Assumed, Run, build_run
from pipeline_runtime.config import HEADROOM, DatasetExperiment


def simulate_experiment(
    experiment: DatasetExperiment,
    profile: Path,
    assumed: Assumed,
    advice: str,
    tell: Callable[[str], None] = lambda what: None,
) -> Simulation:
    """Simulate an experiment from its profile; the same arguments give the same numbers.

    Args:
        profile: file or folder of the profile.
        advice: for errors: how to make a profile.
        tell: reports the policy that is simulated next.

    Raises:
        UserError: the file is unreadable, not a profile, or a profile of another experiment.
    """
    measured = load_profile(profile, advice)
    changed = find_changes(measured, experiment, advice)
    run = build_run(experiment.spec, measured, assumed)
    compared = compare(run, assumed, tell)
    conclusion = conclude(run, compared.outcomes[0], compared.last)
    return Simulation(
        experiment=experiment.metadata.name,
        headline=conclusion.headline,
        advice=conclusion.advice,
        warnings=list_warnings(
            run, compared.outcomes[0], assumed, measured.trainer.device, changed
        ),
        need=_describe_need(run),
        epochs=run.epochs,
        samples=run.samples,
        policies=compared.outcomes,
        profile=Measured(
            experiment=measured.experiment.name,
            measured_at=measured.measured_at,
            device=measured.trainer.device,
        ),
        assumed=_describe_assumed(run, assumed),
        curves=compared.curves,
    )


def _describe_need(run: Run) -> Need:
    return Need(
        demand=run.demand,
        worker_rate=run.worker_rate,
        workers=run.required,
        workers_low=run.required_low,
        workers_high=run.required_high,
        headroom=HEADROOM,
        replicas=run.wanted,
        min_replicas=run.rules.min_workers,
        max_replicas=run.rules.max_workers,
        gpus=run.gpus,
        has_gpus=run.has_gpus,
    )


def _describe_assumed(run: Run, assumed: Assumed) -> Assumptions:
    return Assumptions(
        hours=assumed.hours,
        start_seconds=assumed.start_seconds,
        gpu_speed=assumed.gpu_speed,
        row_cost=assumed.row_cost,
        noise_ratio=run.setting.noise,
        gpu_hour_price=assumed.gpu_hour_price,
        data_worker_hour_price=assumed.worker_hour_price,
        is_priced=assumed.is_priced,
        seed=assumed.seed,
        times=TIMES,
    )
