"""The peers' settings, each chosen over all scenarios on seeds that are not used again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.autoscaling.jobs import Job, job_of, run_jobs
from benchmarks.autoscaling.judging import NUM_GPUS
from benchmarks.autoscaling.policies import BEST_CONSTANT, POLICIES
from benchmarks.autoscaling.scenarios import Cell

TUNING_SEEDS: Final = (10_001, 10_002)
# Tuned at one delay and one noise in the middle: a user does not tune anew for each cluster.
TUNING_START_SECONDS: Final = 30.0
TUNING_NOISE_PERCENT: Final = 20
# Price of a GPU second in worker seconds, in the middle of those that are judged.
TUNING_PRICE: Final = 20.0

Chosen = dict[str, dict[str, Any]]


def tune(cells: Sequence[Cell]) -> Chosen:
    """For every policy with a grid the settings of the least mean log cost a row."""
    used = [
        cell
        for cell in cells
        if cell.start_seconds == TUNING_START_SECONDS and cell.noise_percent == TUNING_NOISE_PERCENT
    ]
    tuned = [policy for policy in POLICIES if policy.grid and policy.name != BEST_CONSTANT]
    jobs = [
        job_of(cell, policy.name, settings, seed)
        for policy in tuned
        for settings in policy.settings()
        for cell in used
        for seed in TUNING_SEEDS
    ]
    costs: dict[tuple[str, tuple[tuple[str, Any], ...]], list[float]] = defaultdict(list)
    for job, measures in run_jobs(jobs):
        costs[job.policy, job.settings].append(
            math.log(measures.cost_per_row(NUM_GPUS, TUNING_PRICE))
        )
    return {policy.name: _least(policy.name, costs) for policy in tuned}


def find_best_constants(cells: Sequence[Cell], seeds: Sequence[int]) -> dict[tuple[Any, ...], int]:
    """By cell, the number of workers that would have cost least over these very seeds."""
    [policy] = [policy for policy in POLICIES if policy.name == BEST_CONSTANT]
    jobs = [
        job_of(cell, policy.name, settings, seed)
        for cell in cells
        for settings in policy.settings()
        for seed in seeds
    ]
    costs: dict[Job, float] = {}
    for job, measures in run_jobs(jobs):
        costs[job] = measures.cost_per_row(NUM_GPUS, TUNING_PRICE)
    totals: dict[tuple[Any, ...], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for job, cost in costs.items():
        totals[job.cell][dict(job.settings)["workers"]] += cost
    return {cell: min(by, key=lambda workers: by[workers]) for cell, by in totals.items()}


def _least(
    policy: str, costs: dict[tuple[str, tuple[tuple[str, Any], ...]], list[float]]
) -> dict[str, Any]:
    means = {settings: sum(c) / len(c) for (name, settings), c in costs.items() if name == policy}
    return dict(min(means, key=lambda settings: means[settings]))
