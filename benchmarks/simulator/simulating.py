"""Simulates a profile, with the costs beside the sleeps that real runs have shown.

`observing` runs before it, and `results` compares both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from benchmarks.autoscaling.policies import Lastmile
from benchmarks.harness.errors import BenchmarkError
from benchmarks.simulator.courses import Course, Point
from benchmarks.simulator.observing import Observed
from benchmarks.simulator.profiles import BATCH_ROWS, MAX_WORKERS, UNIT_ROWS, Profile, build_rules
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


def fit(observed: Sequence[Observed]) -> Costs:
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


def _find_spans(run: Observed) -> list[tuple[Phase, Interval]]:
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
        Phase(
            from_row=phase.from_row,
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
        min_workers=1,
        max_workers=MAX_WORKERS,
        first_workers=profile.first_workers,
    )


def predict(profile: Profile, costs: Costs, seed: int) -> Course:
    """Simulate a profile under the same policy."""
    setting, rules = build_setting(profile, costs), build_rules()
    trace = simulate(setting, lambda cluster: Lastmile(cluster, rules), seed)
    points = [
        Point(
            at=moment.at,
            desired=moment.desired,
            ready=moment.ready,
            rows=moment.rows,
            idle_seconds=moment.production_seconds,
        )
        for moment in trace.moments
    ]
    return Course(points=tuple(points))
