"""Simulates a profile, with the costs beside the sleeps that real runs have shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from benchmarks.autoscaling.policies import Lastmile
from benchmarks.harness.errors import BenchmarkError
from benchmarks.simulator.profiles import BATCH_ROWS, RULES, UNIT_ROWS, Profile
from benchmarks.simulator.watching import Figures, RealRun, find_last
from dataset_operator.autoscaling.signals import measure_between
from dataset_operator.simulation.loop import simulate
from dataset_operator.simulation.setting import Setting

# Sleeps are exact to a few milliseconds, and steps and chunks take 250 ms and more.
_NOISE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs that the simulator cannot know.

    Attributes:
        step_seconds, row_seconds: costs of a step and of a row beside the sleep.
        read_share: share of a busy worker's time.
        start_seconds: median time from a request to the first chunk.
    """

    step_seconds: float
    row_seconds: float
    read_share: float
    start_seconds: float


def fit(observed: Sequence[RealRun]) -> Costs:
    """Fit the costs to all runs together. Raises BenchmarkError if they started no worker."""
    starts = [seconds for run in observed for seconds in run.starts]
    # The periods of one pace in which warm workers delivered rows.
    spans = [
        (run.profile.phases[place], interval)
        for run in observed
        for (place, before), (now, after) in pairwise(run.samples)
        if place == now
        and (interval := measure_between(before, after)) is not None
        and interval.made_rows > 0.0
    ]
    if not starts or not spans:
        raise BenchmarkError("nothing to fit the simulator by: no run started a worker")
    steps = sum(one.steps for _, one in spans)
    made = sum(one.made_rows for _, one in spans)
    busy = sum(one.busy_seconds for _, one in spans)
    step_costs = sum(one.unstarved_seconds - one.steps * phase.step_seconds for phase, one in spans)
    row_costs = sum(one.busy_seconds - one.made_rows * phase.row_seconds for phase, one in spans)
    return Costs(
        step_seconds=max(0.0, step_costs / steps),
        row_seconds=max(0.0, row_costs / made),
        read_share=sum(one.read_seconds for _, one in spans) / busy,
        start_seconds=statistics.median(starts),
    )


def predict(profile: Profile, costs: Costs, seed: int) -> Figures:
    """Simulate a profile under the same policy."""
    phases = tuple(
        replace(
            phase,
            step_seconds=phase.step_seconds + costs.step_seconds,
            row_seconds=phase.row_seconds + costs.row_seconds,
        )
        for phase in profile.phases
    )
    setting = Setting(
        rows=profile.rows,
        phases=phases,
        batch_rows=BATCH_ROWS,
        unit_rows=UNIT_ROWS,
        # A reader has two chunks at a time: one in work, one waiting.
        credit_units=math.ceil(max(profile.required())),
        noise=_NOISE,
        read_share=costs.read_share,
        warm_seconds=0.0,  # sleeping workers do not warm up
        start_seconds=costs.start_seconds,
        min_workers=RULES.min_workers,
        max_workers=RULES.max_workers,
        first_workers=profile.first_workers,
    )
    trace = simulate(setting, lambda cluster: Lastmile(cluster, RULES), seed)
    last = trace.moments[-1]
    return Figures(
        rows_per_second=last.rows / last.at,
        idle_seconds=last.production_seconds,
        workers=find_last((profile.phase_at(one.rows), one.desired) for one in trace.moments),
    )
