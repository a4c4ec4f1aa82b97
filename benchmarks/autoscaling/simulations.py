"""Simulates cells: every policy with the same seeds, in several processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from benchmarks.autoscaling.policies import POLICIES
from benchmarks.autoscaling.scenarios import SCENARIOS, Cell, Scenario, cells_of
from benchmarks.harness.errors import BenchmarkError
from dataset_operator.simulation.loop import simulate_together
from dataset_operator.simulation.measures import Measures, measure, measure_together

# Simulations that a process takes at a time; each takes about a tenth of a second.
_CHUNK = 16

Found = Mapping[str, Sequence[Measures]]  # of a cell, by policy, in the order of the seeds
_Job = tuple[str, int, str, int]  # by names, which are sent to another process


def simulate_scenario(pool: Executor, scenario: Scenario, seeds: Sequence[int]) -> list[Found]:
    """Simulate every policy in every cell of a scenario."""
    places = range(len(cells_of(scenario)))
    jobs: list[_Job] = [
        (scenario.name, place, policy, seed)
        for place in places
        for policy in POLICIES
        for seed in seeds
    ]
    done = dict(zip(jobs, pool.map(_run, jobs, chunksize=_CHUNK), strict=True))
    return [
        {policy: [done[scenario.name, at, policy, seed] for seed in seeds] for policy in POLICIES}
        for at in places
    ]


def _run(job: _Job) -> Measures:
    name, place, policy, seed = job
    [scenario] = [scenario for scenario in SCENARIOS if scenario.name == name]
    return simulate_cell(cells_of(scenario)[place], policy, seed)


def simulate_cell(cell: Cell, policy: str, seed: int) -> Measures:
    """Simulate a cell under a policy; the same seed gives every policy the same noise.

    Raises BenchmarkError if the policy starves the trainers so long that the run does not end.
    """
    traces = simulate_together(cell.settings(), POLICIES[policy], seed)
    found = measure(traces[0]) if len(traces) == 1 else measure_together(traces)
    if not found.has_ended:
        raise BenchmarkError(
            f"{policy}: must train all rows of {cell.scenario.name!r} (seed {seed}), but only "
            f"trained {found.rows:,.0f} in {found.seconds:,.0f} s"
        )
    return found
