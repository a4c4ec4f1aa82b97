"""Tunes the peers' settings over all scenarios, on seeds that are not used again.

The best constant in hindsight is chosen for each cell, on the same seeds that are judged.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, Final

from benchmarks.autoscaling.policies import BEST_CONSTANT, POLICIES
from benchmarks.autoscaling.result_rows import NUM_GPUS, PRICES
from benchmarks.autoscaling.scenarios import Cell, CellKey
from benchmarks.autoscaling.simulations import Job, Runner, job_of
from dataset_operator.simulation.measures import Measures

TUNING_SEEDS: Final = (10_001, 10_002)
# Tuned at one delay and one noise in the middle: a user does not tune anew for each cluster.
TUNING_START_SECONDS: Final = 30.0
TUNING_NOISE_PERCENT: Final = 20
# Price of a GPU second in worker seconds, in the middle of those that are judged.
TUNING_PRICE: Final = 20

# Constants that are tried first, and the number of seeds for that.
_CONSTANTS: Final = (4, 6, 8, 10, 12, 16, 22, 32, 48, 64)
_FIRST_SEEDS: Final = 2

Chosen = dict[str, dict[str, Any]]
Constants = dict[CellKey, dict[int, int]]  # workers by price
_Settings = tuple[tuple[str, Any], ...]
_Asking = Generator[list[Job], Mapping[Job, Measures], dict[int, int]]


def tune(cells: Sequence[Cell], names: Sequence[str], runner: Runner) -> Chosen:
    """Return the settings with the least mean log cost per row, of each policy with a grid."""
    used = [
        cell
        for cell in cells
        if cell.start_seconds == TUNING_START_SECONDS and cell.noise_percent == TUNING_NOISE_PERCENT
    ]
    tuned = [policy for policy in POLICIES if policy.grid and policy.name in names]
    jobs = [
        job_of(cell, policy.name, settings, seed)
        for policy in tuned
        for settings in policy.settings()
        for cell in used
        for seed in TUNING_SEEDS
    ]
    costs: dict[tuple[str, _Settings], list[float]] = defaultdict(list)
    for job, measures in runner.run(jobs, "tuning").items():
        costs[job.policy, job.settings].append(_log_cost(measures, TUNING_PRICE))
    return {policy.name: _least(policy.name, costs) for policy in tuned}


def _least(policy: str, costs: Mapping[tuple[str, _Settings], Sequence[float]]) -> dict[str, Any]:
    means = {settings: fmean(c) for (name, settings), c in costs.items() if name == policy}
    return dict(min(means, key=lambda settings: means[settings]))


def _log_cost(measures: Measures, price: float) -> float:
    """Return the logarithm of a run's cost; infinite for one that was cut off."""
    return math.log(measures.cost_per_row(NUM_GPUS, price)) if measures.has_ended else math.inf


def find_best_constants(cells: Sequence[Cell], seeds: Sequence[int], runner: Runner) -> Constants:
    """Return the number of workers that costs least over these seeds, by cell and price.

    A few numbers are tried on two seeds. From the best one the search goes up or down by one, on
    these and then on all seeds, until both neighbours cost more. There is one such number: fewer
    workers starve the trainers longer, and more workers cost without any use.
    """
    searches = {cell.key: _Search(cell).run(seeds) for cell in cells}
    asked = {key: next(search) for key, search in searches.items()}
    found: Constants = {}
    while asked:
        jobs = [job for wanted in asked.values() for job in wanted]
        results = runner.run(jobs, "constants")
        following = {}
        for key in asked:
            try:
                following[key] = searches[key].send(results)
            except StopIteration as stop:
                found[key] = stop.value
        asked = following
    return found


def constant_jobs(cell: Cell, workers: int, seeds: Sequence[int]) -> list[Job]:
    """Return the jobs of a constant."""
    return [job_of(cell, BEST_CONSTANT, {"workers": workers}, seed) for seed in seeds]


@dataclass(slots=True)
class _Search:
    """Search of one cell: yields jobs, receives their results, returns numbers by price."""

    cell: Cell
    _results: dict[Job, Measures] = field(default_factory=dict)

    def run(self, seeds: Sequence[int]) -> _Asking:
        bounds, few = self.cell.settings()[0], seeds[:_FIRST_SEEDS]
        least, most = bounds.min_workers, bounds.max_workers
        tried = sorted({min(max(workers, least), most) for workers in _CONSTANTS})
        best = yield from self._choose(dict.fromkeys(PRICES, tried), few)
        for on in (few, seeds):
            before: dict[int, int] = {}
            while best != before:
                before = best
                near = {
                    price: [w for w in (middle - 1, middle, middle + 1) if least <= w <= most]
                    for price, middle in best.items()
                }
                best = yield from self._choose(near, on)
        return best

    def _choose(self, among: Mapping[int, Sequence[int]], seeds: Sequence[int]) -> _Asking:
        """Return the number with the least mean log cost, by price."""
        wanted = sorted({workers for numbers in among.values() for workers in numbers})
        jobs = [job for workers in wanted for job in constant_jobs(self.cell, workers, seeds)]
        given = yield jobs
        self._results |= {job: given[job] for job in jobs}

        def cost(workers: int, price: int) -> float:
            ran = constant_jobs(self.cell, workers, seeds)
            return fmean(_log_cost(self._results[job], price) for job in ran)

        return {price: min(among[price], key=partial(cost, price=price)) for price in PRICES}
