"""Policies that a user might choose instead, from their published descriptions, with the source.

Each decides every 15 s, as ours does, even if its own loop is shorter. It keeps the number while
its signals are unknown. The bounds are those of the setting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean

from benchmarks.autoscaling.seen import Seen, Senses, Window
from dataset_operator.autoscaling.signals import Sample
from dataset_operator.simulation.cluster import Cluster

# HPA: no move while the ratio is within a tenth of 1; pods leave after 300 s; up by 4 or double.
HPA_TOLERANCE = 0.1
HPA_DOWN_SECONDS = 300.0
HPA_UP_PODS = 4


@dataclass(slots=True)
class Peer:
    """Base of all peer policies, which implement `want`."""

    cluster: Cluster
    senses: Senses = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.senses = Senses(self.cluster)
        self.begin()

    def begin(self) -> None:
        """Reset the memory of the policy."""

    def decide(self, sample: Sample) -> int:
        seen = self.senses.see(sample)
        wanted = sample.desired if seen is None else self.want(seen)
        setting = self.cluster.setting
        return min(max(wanted, setting.min_workers), setting.max_workers)

    def want(self, seen: Seen) -> int:
        """Return the number of workers that the policy requests."""
        raise NotImplementedError


@dataclass(slots=True)
class Constant(Peer):
    """A constant number: a bound, the advice of a profile, or the best in hindsight."""

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
        """Return the ratio of the metric to its target."""
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

    Source: as `Hpa`, with a DCGM series that the metrics adapter inverts.
    """

    target: float = 0.9

    def ratio(self, seen: Seen) -> float | None:
        if seen.gpu_utilization is None:
            return None
        return self.target / max(seen.gpu_utilization, 0.01)


@dataclass(slots=True)
class Keda(Hpa):
    """KEDA's external metric by AverageValue: ⌈free places of the queue ÷ target⌉.

    Source: keda.sh, «Scaling Deployments», metricType AverageValue; free places, because the queue
    before the trainers should be full.
    """

    target: float = 1.0

    def ratio(self, seen: Seen) -> float | None:
        return seen.free_units / self.target / seen.ready


@dataclass(slots=True)
class QueuePi(Peer):
    """A proportional-integral controller on the queue's fill, with a bounded integral.

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
    """dask's adaptive scaling: finish the known work within a target duration.

    ⌈occupancy ÷ target duration⌉, at most one worker per task; fewer only after three times in a
    row (`wait_count`); dask-kubernetes removes at most a quarter at a time.
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
    """Ray's autoscaler: add nodes for tasks that fit nowhere; remove a node that idles for 60 s.

    Idle nodes are counted as if Ray packed tasks on as few nodes as possible, in its favour.
    Source: docs.ray.io, «KubeRay autoscaling», `idleTimeoutSeconds`, and `upscalingMode`, which is
    not limited by default and, if `Conservative`, to as many pending as there are.
    """

    idle_seconds: float = 60.0
    is_conservative: bool = False
    _spare: Window = field(init=False)

    def begin(self) -> None:
        self._spare = Window(self.idle_seconds)

    def want(self, seen: Seen) -> int:
        self._spare.add(seen.at, _count_idle(seen))
        # Ray Data submits as many tasks as its queue has room for.
        pending = math.ceil(seen.free_units - seen.ready)
        if pending >= 1 and seen.ready >= seen.desired:
            return seen.desired + (min(pending, seen.desired) if self.is_conservative else pending)
        return seen.desired - int(min(self._spare.values))


def _count_idle(seen: Seen) -> int:
    return math.floor(seen.ready * (1.0 - seen.busy))


@dataclass(slots=True)
class RayDataUtilisation(Peer):
    """Ray Data's cluster autoscaler by utilisation: at 75 % of a resource, one node more.

    It runs every 10 s at most. A request is kept for 180 s of lower utilisation; then Ray's
    autoscaler removes nodes that idle for 60 s.
    Source: ray 2.60, `ray/data/_internal/cluster_autoscaler/default_cluster_autoscaler_v2.py`.
    """

    threshold: float = 0.75
    release_seconds: float = 180.0
    idle_seconds: float = 60.0
    _asked_at: float = field(init=False)
    _spare: Window = field(init=False)

    def begin(self) -> None:
        self._asked_at, self._spare = -math.inf, Window(self.idle_seconds)

    def want(self, seen: Seen) -> int:
        self._spare.add(seen.at, _count_idle(seen))
        if seen.busy >= self.threshold:
            self._asked_at = seen.at
            return seen.desired + 1
        if seen.at - self._asked_at < self.release_seconds:
            return seen.desired
        return seen.desired - int(min(self._spare.values))


@dataclass(slots=True)
class RayDataRate(Peer):
    """Ray Data's rate-based autoscaler: resources for twice the rate of the present ones.

    Only up, and only while half of a resource is in use; below that, it repeats the last request.
    It runs every 10 s at most.
    Source: ray 2.60, `ray/data/_internal/cluster_autoscaler/rate_based_cluster_autoscaler.py`, its
    default; one operator reads and works, so the throughput that is optimal is its tasks'.
    """

    factor: float = 2.0
    gate: float = 0.5

    def want(self, seen: Seen) -> int:
        if seen.busy < self.gate or seen.ready < seen.desired:
            return seen.desired
        return math.ceil(self.factor * seen.ready)


@dataclass(slots=True)
class Cachew(Peer):
    """Cachew's hill climb on the time of a batch, a worker at a time.

    Up while it falls by more than 7 %, then one step back. Down while it rises by less than 3 %.
    After 20 stable reports it starts again: downwards if the queue is 1.5 times as long as at rest,
    upwards if a batch takes 1.5 times as long. Reports that differ by more than 120 % are dropped.
    Source: Graur et al., «Cachew», USENIX ATC 2022, section 4.2, and its release, eth-easl/cachew,
    `tensorflow/core/data/service/easl/scaling_utils.cc`.
    """

    gain: float = 0.07
    loss: float = 0.03
    stable_reports: int = 20
    _is_scaling: bool = field(init=False)
    _stable: int = field(init=False)
    _last: Seen | None = field(init=False)
    _other: Seen | None = field(init=False)  # the latest report of another number of workers
    _rest: Seen | None = field(init=False)  # the report of the number it came to rest at

    def begin(self) -> None:
        self._is_scaling, self._stable = True, 0
        self._last = self._other = self._rest = None

    def want(self, seen: Seen) -> int:
        if seen.ready != seen.desired:
            return seen.desired  # it waits until the number is the requested one
        if self._last is not None and self._last.ready != seen.ready:
            self._other = self._last
        is_first, self._last = self._last is None, seen
        if not self._is_scaling:
            return self._watch(seen)
        if is_first:
            return seen.desired + 1
        return self._climb(seen)

    def _climb(self, seen: Seen) -> int:
        before = self._other
        if before is None:
            return self._settle(seen)  # more were requested, but none started
        change = 1.0 - seen.batch_seconds / before.batch_seconds
        if abs(change) > 1.2:
            return seen.desired
        if before.ready < seen.ready:
            return seen.desired + 1 if change > self.gain else self._settle(before)
        is_cheap = change > -self.loss and seen.ready > 1
        return seen.desired - 1 if is_cheap else self._settle(before)

    def _settle(self, rest: Seen) -> int:
        self._is_scaling, self._stable, self._rest = False, 0, rest
        return rest.ready

    def _watch(self, seen: Seen) -> int:
        rest = self._rest
        assert rest is not None
        self._stable += 1
        if self._stable <= self.stable_reports:
            return seen.desired
        self._stable = 0
        if seen.fill > 1.5 * max(rest.fill, 0.01) and rest.ready > 1:
            self._is_scaling = True
            return rest.ready - 1
        if seen.batch_seconds > 1.5 * rest.batch_seconds:
            self._is_scaling = True
            return rest.ready + 1
        return seen.desired


@dataclass(slots=True)
class TfDataService(Peer):
    """tf.data service's optimal number: ⌈Σ consumers' rates ÷ a worker's throughput⌉.

    Both are means: a consumer's over its last 100 batches, a worker's is exponential. It only
    exports the number; here the number is applied at once.
    Source: tensorflow `core/data/service/auto_scaler.cc`; `core/framework/model.cc`, gap times.
    """

    window_seconds: float = 60.0
    _steps: Window = field(init=False)
    _rates: Window = field(init=False)

    def begin(self) -> None:
        self._steps, self._rates = Window(self.window_seconds), Window(self.window_seconds)

    def want(self, seen: Seen) -> int:
        self._steps.add(seen.at, seen.step_seconds)
        self._rates.add(seen.at, seen.worker_rate)
        demand = self.cluster.given.batch_rows / fmean(self._steps.values)
        return max(1, math.ceil(demand / fmean(self._rates.values)))
