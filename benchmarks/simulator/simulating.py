"""Simulates a profile, with the costs beside the sleeps that real runs have shown.

`watching` runs before it, and `comparison` compares both.
"""

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
from dataset_operator.autoscaling.signals import Interval, measure_between
from dataset_operator.simulation.loop import simulate
from dataset_operator.simulation.setting import Phase, Setting

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
    spans = [span for run in observed for span in _find_spans(run)]
    if not starts or not spans:
        raise BenchmarkError("nothing to fit the simulator by: take a larger --share")
    steps = sum(interval.steps for _, interval in spans)
    made = sum(interval.made_rows for _, interval in spans)
    busy = sum(interval.busy_seconds for _, interval in spans)
    unstarved = sum(interval.unstarved_seconds for _, interval in spans)
    slept = sum(interval.steps * phase.step_seconds for phase, interval in spans)
    worked = sum(interval.made_rows * phase.row_seconds for phase, interval in spans)
    return Costs(
        step_seconds=max(0.0, (unstarved - slept) / steps),
        row_seconds=max(0.0, (busy - worked) / made),
        read_share=sum(interval.read_seconds for _, interval in spans) / busy,
        start_seconds=statistics.median(starts),
    )


def _find_spans(run: RealRun) -> list[tuple[Phase, Interval]]:
    """Return the periods of one pace in which warm workers delivered rows."""
    spans = []
    for (place, before), (now, after) in pairwise(run.samples):
        interval = measure_between(before, after)
        if place == now and interval is not None and interval.made_rows > 0.0:
            spans.append((run.profile.phases[place], interval))
    return spans


def build_setting(profile: Profile, costs: Costs) -> Setting:
    """Return the simulator's setting of a profile."""
    phases = tuple(
        replace(
            phase,
            step_seconds=phase.step_seconds + costs.step_seconds,
            row_seconds=phase.row_seconds + costs.row_seconds,
        )
        for phase in profile.phases
    )
    return Setting(
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


def predict(profile: Profile, costs: Costs, seed: int) -> Figures:
    """Simulate a profile under the same policy."""
    trace = simulate(build_setting(profile, costs), lambda c: Lastmile(c, RULES), seed)
    last = trace.moments[-1]
    return Figures(
        rows_per_second=last.rows / last.at,
        idle_seconds=last.production_seconds,
        workers=find_last((profile.phase_at(one.rows), one.desired) for one in trace.moments),
    )
