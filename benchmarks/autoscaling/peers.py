"""The laws that a user might pick instead, from their published descriptions, with the source.

A law answers every 15 s, as ours; one whose own loop is shorter is asked as often as that. It holds
while its signals are not known. Bounds are the setting's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from benchmarks.autoscaling.seen import Seen, Senses, Window
from dataset_operator.autoscaling.signals import Sample
from dataset_operator.simulation.plant import Cluster

# HPA: no move while the ratio is within a tenth of 1; 300 s before pods go; up by 4 or double.
HPA_TOLERANCE = 0.1
HPA_DOWN_SECONDS = 300.0
HPA_UP_PODS = 4


@dataclass(slots=True)
class Peer:
    """What all of them share; a law says `want`."""

    cluster: Cluster
    senses: Senses = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.senses = Senses(self.cluster)
        self.begin()

    def begin(self) -> None:
        """Set what the law itself remembers."""

    def decide(self, sample: Sample) -> int:
        seen = self.senses.see(sample)
        wanted = sample.desired if seen is None else self.want(seen)
        setting = self.cluster.setting
        return min(max(wanted, setting.min_workers), setting.max_workers)

    def want(self, seen: Seen) -> int:
        """The number of workers that the law asks for."""
        raise NotImplementedError


@dataclass(slots=True)
class Constant(Peer):
    """So many, always: a bound, what a profile advised, or the best in hindsight."""

    workers: int = 1

    def decide(self, sample: Sample) -> int:
        setting = self.cluster.setting
        return min(max(self.workers, setting.min_workers), setting.max_workers)


@dataclass(slots=True)
class Hpa(Peer):
    """⌈current · metric ÷ target⌉ with the HPA's tolerance, windows and limits of the rate.

    Source: kubernetes.io, «Horizontal Pod Autoscaling», algorithm details and default behavior.
    """

    target: float = 0.8
    _wanted: Window = field(init=False)

    def begin(self) -> None:
        self._wanted = Window(HPA_DOWN_SECONDS)

    def ratio(self, seen: Seen) -> float | None:
        """Of the metric to its target."""
        return seen.busy / self.target

    def want(self, seen: Seen) -> int:
        ratio = self.ratio(seen)
        if ratio is None:
            return seen.desired
        wanted = seen.desired
        if abs(ratio - 1.0) > HPA_TOLERANCE:
            wanted = math.ceil(seen.ready * ratio)
        self._wanted.add(seen.at, wanted)
        if wanted > seen.desired:
            return min(wanted, max(2 * seen.desired, seen.desired + HPA_UP_PODS))
        return min(seen.desired, int(max(self._wanted.values)))


@dataclass(slots=True)
class HpaOnIdleGpus(Hpa):
    """The HPA on an inverted metric: target ÷ GPU utilisation, so that idle GPUs add workers.

    Source: as `Hpa`, with a DCGM series turned round by the metrics adapter's rule.
    """

    target: float = 0.9

    def ratio(self, seen: Seen) -> float | None:
        if seen.gpu_utilization is None:
            return None
        return self.target / max(seen.gpu_utilization, 0.01)


@dataclass(slots=True)
class Keda(Hpa):
    """KEDA's external metric by AverageValue: ⌈places of the queue that are free ÷ target⌉.

    Source: keda.sh, «Scaling Deployments», metricType AverageValue; free places, since a queue
    before the trainers is to be full.
    """

    target: float = 1.0

    def ratio(self, seen: Seen) -> float | None:
        return seen.free_units / self.target / seen.ready


@dataclass(slots=True)
class QueuePi(Peer):
    """A proportional-integral controller on the queue's fill, its integral held at the bounds.

    Source: Åström and Hägglund, «PID Controllers», 1995, the discrete velocity form.
    """

    set_point: float = 0.5
    gain: float = 4.0  # workers for an empty queue
    integral_seconds: float = 120.0
    _workers: float | None = field(init=False)
    _error: float = field(init=False)
    _at: float = field(init=False)

    def begin(self) -> None:
        self._workers, self._error, self._at = None, 0.0, 0.0

    def want(self, seen: Seen) -> int:
        error = self.set_point - seen.fill
        if self._workers is None:
            self._workers, self._error, self._at = float(seen.desired), error, seen.at
        seconds = seen.at - self._at
        self._workers += self.gain * (error - self._error + error * seconds / self.integral_seconds)
        setting = self.cluster.setting
        self._workers = min(max(self._workers, setting.min_workers), setting.max_workers)
        self._error, self._at = error, seen.at
        return round(self._workers)


@dataclass(slots=True)
class Dask(Peer):
    """dask's adaptive scaling: work that is known of, finished within a target duration.

    ⌈occupancy ÷ target duration⌉, a worker for each task at most; fewer only after three times in
    a row, as `wait_count` says; dask-kubernetes takes at most a quarter away at a time.
    Source: docs.dask.org, «Adaptive deployments»; distributed `Scheduler.adaptive_target`;
    kubernetes.dask.org, `DaskAutoscaler`.
    """

    target_seconds: float = 5.0
    _fewer: int = field(init=False)

    def begin(self) -> None:
        self._fewer = 0

    def want(self, seen: Seen) -> int:
        tasks = seen.free_units + seen.busy * seen.ready
        occupancy = tasks * seen.unit_seconds
        wanted = min(math.ceil(occupancy / self.target_seconds), math.ceil(tasks))
        if wanted >= seen.desired:
            self._fewer = 0
            return wanted
        self._fewer += 1
        if self._fewer < 3:
            return seen.desired
        return max(wanted, math.ceil(0.75 * seen.desired))


@dataclass(slots=True)
class RayAutoscaler(Peer):
    """Ray's autoscaler: nodes for tasks that fit nowhere; a node idle for 60 s goes.

    Source: docs.ray.io, «KubeRay autoscaling», `idleTimeoutSeconds` and `upscalingMode: Default`
    (at most as many new nodes at a time as there are).
    """

    idle_seconds: float = 60.0
    _spare: Window = field(init=False)

    def begin(self) -> None:
        self._spare = Window(self.idle_seconds)

    def want(self, seen: Seen) -> int:
        # Ray Data submits as many tasks as its queue has room for.
        pending = seen.free_units - seen.ready
        self._spare.add(seen.at, math.floor(seen.ready * (1.0 - seen.busy)))
        if pending >= 1.0 and seen.ready >= seen.desired:
            return min(seen.desired + math.ceil(pending), 2 * seen.desired)
        return seen.desired - int(min(self._spare.values))


@dataclass(slots=True)
class RayDataUtilisation(Peer):
    """Ray Data's cluster autoscaler by use: at 75 % of a resource one node more of each kind.

    Asked every 10 s at most; what is little used for 180 s goes.
    Source: ray 2.60, `ray/data/_internal/cluster_autoscaler/default_cluster_autoscaler_v2.py`.
    """

    threshold: float = 0.75
    release_seconds: float = 180.0
    _use: Window = field(init=False)

    def begin(self) -> None:
        self._use = Window(self.release_seconds)

    def want(self, seen: Seen) -> int:
        self._use.add(seen.at, seen.busy)
        if seen.busy >= self.threshold:
            return seen.desired + 1
        if max(self._use.values) < self.threshold / 2:
            return seen.desired - 1
        return seen.desired


@dataclass(slots=True)
class RayDataRate(Peer):
    """Ray Data's rate-based autoscaler: resources for twice the rate at which rows leave now.

    Only up, and only while half of a resource is in use; asked every 10 s at most.
    Source: ray 2.60, `ray/data/_internal/cluster_autoscaler`, the rate-based one (its default).
    """

    factor: float = 2.0
    gate: float = 0.5

    def want(self, seen: Seen) -> int:
        if seen.busy < self.gate or seen.ready < seen.desired:
            return seen.desired
        return max(seen.desired, math.ceil(self.factor * seen.rate / seen.worker_rate))


@dataclass(slots=True)
class Cachew(Peer):
    """Cachew's hill climb on the time of a batch, a worker at a time.

    Up while it falls by more than 7 %; once it no longer does, a step back. Down while it rises by
    less than 3 %. After 20 stable reports it opens again: a queue one and a half times as long
    looks downwards, a batch that takes as much longer upwards.
    Source: Graur et al., «Cachew», USENIX ATC 2022, section 4.2 and its released dispatcher.
    """

    gain: float = 0.07
    loss: float = 0.03
    stable_reports: int = 20
    _before: float | None = field(init=False)
    _direction: int = field(init=False)
    _stable: int = field(init=False)
    _settled_batch: float = field(init=False)
    _settled_fill: float = field(init=False)

    def begin(self) -> None:
        self._before, self._direction, self._stable = None, 1, 0
        self._settled_batch, self._settled_fill = 0.0, 0.0

    def want(self, seen: Seen) -> int:
        if seen.ready != seen.desired:
            return seen.desired  # it waits until the number is what it asked for
        if self._direction == 0:
            return self._watch(seen)
        before, self._before = self._before, seen.batch_seconds
        if before is None:
            return seen.desired + self._direction
        change = (before - seen.batch_seconds) / before
        if abs(change) > 1.2:
            return seen.desired
        if self._direction > 0:
            if change > self.gain:
                return seen.desired + 1
            return self._settle(seen, seen.desired - 1)
        if change > -self.loss:
            return seen.desired - 1
        return self._settle(seen, seen.desired + 1)

    def _settle(self, seen: Seen, workers: int) -> int:
        self._direction, self._stable, self._before = 0, 0, None
        self._settled_batch, self._settled_fill = seen.batch_seconds, max(seen.fill, 0.01)
        return workers

    def _watch(self, seen: Seen) -> int:
        self._stable += 1
        if self._stable < self.stable_reports:
            return seen.desired
        if seen.batch_seconds > 1.5 * self._settled_batch:
            self._direction = 1
        elif seen.fill > 1.5 * self._settled_fill:
            self._direction = -1
        self._settled_batch = min(self._settled_batch, seen.batch_seconds)
        return seen.desired


@dataclass(slots=True)
class TfDataService(Peer):
    """tf.data service's optimal number: ⌈Σ consumers' rates ÷ a worker's throughput⌉.

    It exports the number and moves nothing; here it is done at once.
    Source: tensorflow `core/data/service/auto_scaler.cc`.
    """

    def want(self, seen: Seen) -> int:
        batch_rows = self.cluster.given.batch_rows
        return max(1, math.ceil(batch_rows / seen.step_seconds / seen.worker_rate))
