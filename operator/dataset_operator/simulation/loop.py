"""A law in the loop with a plant: read, decide, ask, every period until all rows are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Sample
from dataset_operator.simulation import events
from dataset_operator.simulation.plant import Cluster
from dataset_operator.simulation.setting import Setting
from dataset_operator.simulation.truth import Truth, truth_now

# A run that starves is given up after so many times what it takes with rows always there.
MAX_STRETCH = 8.0
# Of a reading of GPU utilisation, which is a mean over a scrape.
_GPU_NOISE = 0.01


class Law(Protocol):
    """Whatever says how many workers there should be."""

    def decide(self, sample: Sample) -> int:
        """The number to ask for from now on."""
        ...

    def restart(self) -> None:
        """The process that runs the law begins anew."""
        ...


MakeLaw = Callable[[Cluster], Law]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """State of a run at the end of a control period; sums count from the beginning.

    Attributes:
        capacity: pods that it could have had.
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
    setting: Setting, make_law: MakeLaw, seed: int, max_stretch: float = MAX_STRETCH
) -> Trace:
    """Run a setting under a law; the same seed gives every law the same noise to start from."""
    [trace] = simulate_together([setting], make_law, seed, max_stretch)
    return trace


def simulate_together(
    settings: Sequence[Setting], make_law: MakeLaw, seed: int, max_stretch: float = MAX_STRETCH
) -> list[Trace]:
    """Run settings side by side, each under a law of its own, until all have ended.

    Args:
        settings: `schedulable` of each bounds the pods of all; whoever asks first gets them.
        max_stretch: a run that is not over after so many times its least seconds is given up.
    """
    runs = [_begin(setting, make_law, seed, place) for place, setting in enumerate(settings)]
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
    """A plant and its law."""

    cluster: Cluster
    law: Law
    trace: Trace
    readings: np.random.Generator
    restarts: list[float]
    computed_before: float = 0.0

    def go_on(self) -> None:
        """A control period, and what the law makes of it."""
        cluster, setting = self.cluster, self.trace.setting
        cluster.run(cluster.time + PERIOD_SECONDS)
        if self.restarts and cluster.time >= self.restarts[0]:
            self.restarts.pop(0)
            self.law.restart()
        computed = float(cluster.plant.sums[events.COMPUTE])
        noise = float(self.readings.standard_normal())
        gpu = _read_gpu(cluster, computed - self.computed_before, noise)
        self.computed_before = computed
        sample = cluster.read(gpu)
        self.trace.moments.append(_note(cluster, sample.pods.ready))
        workers = self.law.decide(_blind(setting, sample))
        if workers != cluster.desired:
            cluster.ask(workers)


def _begin(setting: Setting, make_law: MakeLaw, seed: int, place: int) -> _Run:
    """The first of several runs is what it is alone; each other has noise of its own."""
    apart = (place,) if place else ()
    cluster = Cluster(setting=setting, seed=(seed, *apart) if apart else seed)
    return _Run(
        cluster=cluster,
        law=make_law(cluster),
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
    sums = cluster.plant.sums
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
    """Return the value of a GPU series for the last period, given the seconds computed."""
    setting = cluster.setting
    if setting.gpu == "absent":
        return None
    if setting.gpu == "zero":
        return None  # on a node whose NVML gives nothing, a source tells 0 from unknown
    share = computed / PERIOD_SECONDS * setting.natural_utilization + _GPU_NOISE * noise
    return min(1.0, max(0.0, share))


def _blind(setting: Setting, sample: Sample) -> Sample:
    """Keep only the pods of a sample, as in an outage of metrics."""
    if any(first <= sample.at < last for first, last in setting.outages):
        return replace(sample, trainer=None, workers=None, gpu_utilization=None)
    return sample
