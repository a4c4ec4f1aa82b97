"""Runs a policy with a simulated cluster: read, decide, request, until all rows are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Sample
from dataset_operator.simulation import events
from dataset_operator.simulation.cluster import Cluster
from dataset_operator.simulation.setting import Setting
from dataset_operator.simulation.truth import Truth, truth_now

# A starved run is given up after this many times its duration with rows always ready.
MAX_STRETCH = 8.0
# Standard deviation of a reading of GPU utilisation, which is a mean over a scrape.
_GPU_NOISE = 0.01


class AutoscalingPolicy(Protocol):
    """A policy that sets the number of workers."""

    def decide(self, sample: Sample) -> int:
        """Return the number of workers to request."""
        ...

    def restart(self) -> None:
        """Restart the process that runs the policy."""
        ...


MakePolicy = Callable[[Cluster], AutoscalingPolicy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """State of a run at the end of a control period; sums count from its beginning.

    Attributes:
        desired: requested workers.
        capacity: pods that the cluster could place.
    """

    at: float
    desired: int
    ready: int
    capacity: int
    truth: Truth
    rows: float
    production_seconds: float
    paid_seconds: float


@dataclass(slots=True)
class Trace:
    """A simulated run."""

    setting: Setting
    moments: list[Moment] = field(default_factory=list)
    has_ended: bool = False


def simulate(
    setting: Setting, make_policy: MakePolicy, seed: int, max_stretch: float = MAX_STRETCH
) -> Trace:
    """Simulate a setting under a policy; the same seed gives every policy the same noise."""
    [trace] = simulate_together([setting], make_policy, seed, max_stretch)
    return trace


def simulate_together(
    settings: Sequence[Setting],
    make_policy: MakePolicy,
    seed: int,
    max_stretch: float = MAX_STRETCH,
) -> list[Trace]:
    """Simulate concurrent settings, each under its own policy, until all have ended.

    Args:
        settings: `schedulable` of each bounds the pods of all; the first request gets them.
        max_stretch: a run is given up after this many times its shortest duration.
    """
    runs = [_begin(setting, make_policy, seed, place) for place, setting in enumerate(settings)]
    latest = [max_stretch * _least_seconds(setting) for setting in settings]
    while any(
        not run.cluster.has_ended and run.cluster.time < end
        for run, end in zip(runs, latest, strict=True)
    ):
        for run in runs:
            others = (other.cluster.pods for other in runs if other is not run)
            run.cluster.others = sum(others)
            if not run.cluster.has_ended:
                run.go_on()
    for run in runs:
        run.trace.has_ended = run.cluster.has_ended
    return [run.trace for run in runs]


@dataclass(slots=True)
class _Run:
    """A simulated cluster and its policy."""

    cluster: Cluster
    policy: AutoscalingPolicy
    trace: Trace
    readings: np.random.Generator
    restarts: list[float]
    computed_before: float = 0.0

    def go_on(self) -> None:
        """Simulate one control period, and apply the decision at its end."""
        cluster, setting = self.cluster, self.trace.setting
        cluster.run(cluster.time + PERIOD_SECONDS)
        if self.restarts and cluster.time >= self.restarts[0]:
            self.restarts.pop(0)
            self.policy.restart()
        computed = float(cluster.state.sums[events.COMPUTE])
        noise = float(self.readings.standard_normal())
        gpu = _read_gpu(cluster, computed - self.computed_before, noise)
        self.computed_before = computed
        sample = cluster.read(gpu)
        self.trace.moments.append(_note(cluster, sample.pods.ready))
        workers = self.policy.decide(_blind(setting, sample))
        if workers != cluster.desired:
            cluster.request(workers)


def _begin(setting: Setting, make_policy: MakePolicy, seed: int, place: int) -> _Run:
    """Start a run; the first of several has the noise that it has alone."""
    apart = (place,) if place else ()
    cluster = Cluster(setting=setting, seed=(seed, *apart) if apart else seed)
    return _Run(
        cluster=cluster,
        policy=make_policy(cluster),
        trace=Trace(setting=setting),
        readings=np.random.default_rng((seed, 1, *apart)),
        restarts=list(setting.restarts),
    )


def _least_seconds(setting: Setting) -> float:
    """Return the seconds of the loop with rows always ready."""
    seconds, ends = 0.0, [phase.from_row for phase in setting.phases[1:]]
    for phase, end in zip(setting.phases, [*ends, setting.rows], strict=True):
        steps = (min(end, setting.rows) - phase.from_row) / setting.batch_rows
        seconds += steps * (phase.step_seconds + sum(phase.waits.values()))
    if setting.epoch_steps:
        seconds += setting.rows / setting.batch_rows / setting.epoch_steps * setting.pause_seconds
    return seconds


def _note(cluster: Cluster, ready: int) -> Moment:
    sums = cluster.state.sums
    return Moment(
        at=cluster.time,
        desired=cluster.desired,
        ready=ready,
        capacity=cluster.capacity,
        truth=truth_now(cluster),
        rows=float(sums[events.ROWS]),
        production_seconds=float(sums[events.PRODUCTION]),
        paid_seconds=float(sums[events.PAID]),
    )


def _read_gpu(cluster: Cluster, computed: float, noise: float) -> float | None:
    """Return the GPU series for the last period, from the seconds of compute in it."""
    setting = cluster.setting
    if setting.gpu == "absent":
        return None
    if setting.gpu == "zero":
        return None  # a source knows the nodes whose NVML reports nothing
    share = computed / PERIOD_SECONDS * setting.natural_utilization + _GPU_NOISE * noise
    return min(1.0, max(0.0, share))


def _blind(setting: Setting, sample: Sample) -> Sample:
    """Remove all signals but the pods during an outage of metrics."""
    if any(first <= sample.at < last for first, last in setting.outages):
        return replace(sample, trainer=None, workers=None, gpu_utilization=None)
    return sample
