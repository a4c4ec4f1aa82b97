"""What a pass has seen: the experiment and its children as they are, nothing decided yet.

`observe` (with clients) makes these values, `plan` reads them; tests write them down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from dataset_operator.api import HEAD, Role
from dataset_operator.autoscaling.history import Memory
from dataset_operator.autoscaling.signals import Counters
from dataset_operator.names import Owner

Document = dict[str, Any]
JobStatus = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the cluster.

    Attributes:
        waiting: what it waits for, in words, if it does.
        created: when it was made; None if it is not said.
        scheduled: since when it holds its place on a node; None if it has none.
        over: when it left that place, if its containers ended for good.
        started: when its containers did; None if one has not, or had to start again.
        ready_since: when it became ready; None if it is not.
        unready_since: when it ceased to be, or was made; None if it is.
        ip: its address; empty before it has one.
        ends: when its time to end is over, if it was deleted.
        out_of_memory: when one of its containers was last killed for want of memory.
        lost: why it ended though nobody asked it to (evicted, its node gone), if it did.
    """

    name: str
    uid: str
    role: Role
    ready: bool
    waiting: str = ""
    created: datetime | None = None
    scheduled: datetime | None = None
    over: datetime | None = None
    started: datetime | None = None
    ready_since: datetime | None = None
    unready_since: datetime | None = None
    ip: str = ""
    ends: datetime | None = None
    out_of_memory: datetime | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An attempt's job as Ray knows it; `exit_code` is the driver's, once it ended by itself."""

    status: JobStatus
    message: str = ""
    exit_code: int | None = None
    out_of_memory: bool = False

    @property
    def is_active(self) -> bool:
        """Whether its driver may be running."""
        return self.status in ("PENDING", "RUNNING")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How the training goes, as its driver says; None: not known.

    Attributes:
        ratio: share of the whole training that is done, 0 to 1.
        production_wait_ratio: share of their time that trainers waited for data workers, 0 to 1.
        gpu_utilization_ratio: of the trainers' GPUs, their mean, 0 to 1.
        slowest_gpu_ratio: the same of the GPU that is least busy.
        busy_ratio: share of the trainers' time, pauses left out, spent in their steps, 0 to 1.
        cpu_ranks: ranks that are known to train on a CPU.
        damaged_checkpoints: those that this attempt skipped when it resumed.
        metrics: the training's own, by name.
        counters: what scaling goes by.
    """

    ratio: float | None = None
    remaining_seconds: float | None = None
    samples_per_second: float | None = None
    production_wait_ratio: float | None = None
    gpu_utilization_ratio: float | None = None
    slowest_gpu_ratio: float | None = None
    busy_ratio: float | None = None
    cpu_ranks: int | None = None
    damaged_checkpoints: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)

    @property
    def utilization(self) -> float | None:
        """u: of the GPUs; where ranks train on a CPU, the share of time that they train."""
        if self.gpu_utilization_ratio is not None:
            return self.gpu_utilization_ratio
        return self.busy_ratio if self.cpu_ranks else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What is known for scaling.

    Attributes:
        memory: of the law; None: this process has not decided for this run yet.
        drained: addresses of data workers whose node Ray holds for gone; None: it was not asked.
        unknown: what of the metrics is not known and why, in words; "" if all is.
        log_job: the job that was to keep decisions; None: there is none, or Ray did not say.
    """

    memory: Memory | None = None
    drained: frozenset[str] | None = None
    unknown: str = ""
    log_job: Job | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPod:
    """The pod that writes the history of a cluster.

    Attributes:
        message: why it failed or waits, in words; "" if nobody says.
        is_going: whether it was deleted.
    """

    name: str
    uid: str
    phase: str
    message: str = ""
    is_going: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """What is to be kept of a cluster: looked up when it is to go.

    Attributes:
        events: of the experiment, its cluster and its pods, the oldest first.
        pods: of the cluster, as the API server has them, without what nobody reads.
    """

    events: tuple[Document, ...] = ()
    pods: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """That the API server refuses what is to be made; `is_invalid` if for what it says."""

    message: str
    is_invalid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One look at everything that belongs to an experiment.

    Attributes:
        document: the experiment, as the API server has it.
        accepted: the experiment as the present run last took it, from its ConfigMap; None if there
            is no run, or no such ConfigMap.
        is_accepted_sealed: whether the operator has sealed that ConfigMap as it is.
        rendered: the spec that the RayCluster was rendered as; None if its seal is not valid.
        broken_seals: objects with a seal that is not the operator's, or not over what they hold,
            as «Kind name».
        ray_reachable: whether the head's Jobs API answered.
        ray_failure: why it did not, in words; empty if it did, or if nobody could be asked.
        job: the job of the attempt in status; None if Ray does not know it, or was not reached.
        progress: how a running job goes; None if its driver does not say.
        children: our own beside the RayCluster and its token, by name, as they are.
        foreign: what bears the name of a child and is not ours, as «Kind name».
        refusal: what the API server said of what this pass wanted to make.
        scaling: what is known for scaling.
        history_pod: the one that the status names, if it is there.
        happened: what such a pod is to write, if it is to be made.
    """

    document: Mapping[str, Any]
    accepted: Mapping[str, Any] | None = None
    is_accepted_sealed: bool = False
    ray_cluster: Mapping[str, Any] | None = None
    rendered: Document | None = None
    broken_seals: tuple[str, ...] = ()
    has_token: bool = False
    pods: tuple[Pod, ...] = ()
    ray_reachable: bool = False
    ray_failure: str = ""
    job: Job | None = None
    progress: Progress | None = None
    children: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    refusal: Refusal | None = None
    scaling: Scaling = Scaling()
    history_pod: HistoryPod | None = None
    happened: Happened = Happened()

    @property
    def owner(self) -> Owner:
        """The experiment as the owner of its children."""
        return Owner.of(self.document)

    @property
    def generation(self) -> int:
        """The spec's generation."""
        return int(self.document["metadata"].get("generation", 0))

    @property
    def deleted_at(self) -> datetime | None:
        """When its deletion was asked for."""
        text = self.document["metadata"].get("deletionTimestamp")
        return parse_time(text) if text else None

    @property
    def status(self) -> Mapping[str, Any]:
        """What earlier passes wrote down."""
        return self.document.get("status") or {}

    @property
    def head(self) -> Pod | None:
        """The head's pod."""
        return next((pod for pod in self.pods if pod.role == HEAD), None)

    def ready(self, role: Role) -> int:
        """Pods of a role that are ready."""
        return sum(pod.ready for pod in self.pods if pod.role == role)


def parse_time(text: str) -> datetime:
    """A time as Kubernetes writes it."""
    return datetime.fromisoformat(text)


def format_time(moment: datetime) -> str:
    """A time as Kubernetes writes it, in UTC and whole seconds."""
    return moment.strftime(TIME_FORMAT)
