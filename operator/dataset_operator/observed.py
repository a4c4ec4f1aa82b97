"""Values that a reconcile pass observes: the experiment, its owned objects, and the settings.

`kube.observe` fetches them with clients and `plan` reads them; tests build them by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from dataset_operator.api import HEAD, Role
from dataset_operator.autoscaling.inference import InferenceCounters, InferenceMemory
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.autoscaling.signals import Counters
from dataset_operator.documents import Document, parse_time
from dataset_operator.groups import Groups
from dataset_operator.names import Owner
from dataset_operator.readings import Readings
from dataset_operator.settings import OperatorSettings
from dataset_operator.shapes import parse_status
from pipeline_runtime.config import (
    ExperimentStatus,
    MaterializationStatus,
    ModelStatus,
    SnapshotStatus,
)

JobStatus = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
# Phases of a run that writes a table, with what the driver does in each.
OUTPUT_PHASES: Mapping[str, str] = {
    "Spooling": "data workers store rows",
    "Merging": "rows are merged into files",
    "Committing": "the table takes its place",
    "Committed": "the table is in its place",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the cluster.

    Attributes:
        waiting: a message about why it waits; "" if it does not.
        created: time of its creation; None if not known.
        scheduled: when it got its node; None if it has none.
        over: when it left its node because all containers had ended for good; None if it has not.
        started: when its containers started; None if one has not, or has restarted.
        ready_since: when it became ready; None if it is not ready.
        unready_since: when it became unready, or was created; None if it is ready.
        ip: its IP address; "" before it has one.
        ends: end of its grace period; None if it was not deleted.
        out_of_memory: when one of its containers last ran out of memory; None if none did.
        lost: why it ended without being asked to, such as an eviction; "" if it did not.
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
class ObservedGroup:
    """A group of workers of a RayCluster.

    Attributes:
        replicas: the wanted number of workers; None if somebody has removed it.
        to_delete: names of the pods that KubeRay has to delete.
    """

    name: str
    replicas: int | None = None
    to_delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFailure:
    """KubeRay cannot create pods, such as under a quota; `since` is None if it is not known."""

    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The RayCluster of an experiment.

    Attributes:
        document: the whole object, for the builders that compare or patch it.
        is_going: True if it was deleted, and still exists.
        is_suspended: True if it has no pods; `spec.suspend` belongs to a queue, not to us.
        queue: the Kueue queue that admits it.
        made_from: hash of the part of the spec that it was made from; None if not known.
        trainers: the number of trainers and the GPUs of each; None if not known.
        is_handled: True if KubeRay has written its status.
        failure: why KubeRay cannot create its pods; None if it can.
        service: name of the head's Service; None if not known.
    """

    document: Mapping[str, Any]
    uid: str
    created: datetime | None = None
    is_going: bool = False
    is_suspended: bool = False
    queue: str | None = None
    made_from: str | None = None
    trainers: tuple[int, int] | None = None
    groups: tuple[ObservedGroup, ...] = ()
    is_handled: bool = False
    failure: ReplicaFailure | None = None
    service: str | None = None

    def find_group(self, role: Role) -> ObservedGroup | None:
        """Return the group of a role; None if somebody has removed it."""
        return next((group for group in self.groups if group.name == role), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTable:
    """The table that a run writes, so far; None: not known.

    Attributes:
        phase: a key of OUTPUT_PHASES.
        rows: rows that are stored.
        files: files of the table that are written.
        num_bytes: size of these files.
        partitions: partitions that the table is to have, if they are committed one by one.
        complete_partitions: those of them that are committed.
        snapshot_id: the snapshot of an Iceberg table that has the rows, once they are committed.
    """

    phase: str | None = None
    rows: int | None = None
    files: int | None = None
    num_bytes: int | None = None
    partitions: int | None = None
    complete_partitions: int | None = None
    snapshot_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTables:
    """The Iceberg tables and models that a driver reports, besides the table that it writes.

    Attributes:
        snapshots: those that the run reads.
        models: those that steps call.
        materialization: the table of the step `materialize`; None: not known, or no such step.
    """

    snapshots: tuple[SnapshotStatus, ...] = ()
    models: tuple[ModelStatus, ...] = ()
    materialization: MaterializationStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An attempt's job in Ray.

    Attributes:
        exit_code: exit code of the driver, once it has ended by itself.
        table: the table that a successful driver has written, according to its log; None: it has
            written none, or its log cannot be read.
        tables: the tables that it has read, according to its log.
    """

    status: JobStatus
    message: str = ""
    exit_code: int | None = None
    out_of_memory: bool = False
    table: WrittenTable | None = None
    tables: CatalogTables = CatalogTables()

    @property
    def is_active(self) -> bool:
        """Return whether the driver may be running."""
        return self.status in ("PENDING", "RUNNING")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of the run as the driver reports it; None: not known.

    Attributes:
        ratio: completed share of the whole run, 0 to 1.
        read_ratio: share of its rows that were read, 0 to 1; None: it is `ratio`, or not known.
        production_wait_ratio: share of time that trainers waited for data workers, 0 to 1.
        gpu_utilization_ratio: mean utilization of the trainers' GPUs, 0 to 1.
        slowest_gpu_ratio: utilization of the least busy GPU, 0 to 1.
        busy_ratio: share of the trainers' time, without pauses, spent in training steps, 0 to 1.
        cpu_ranks: number of ranks that are known to train on a CPU.
        damaged_checkpoints: number of checkpoints that this attempt skipped when it resumed.
        metrics: metrics that the training code reports, by name.
        table: the table, if the run writes one.
        tables: the Iceberg tables that the run reads.
        counters: input of the autoscaling policy.
        inference: input of the policy of inference workers, by the name of their group.
    """

    ratio: float | None = None
    read_ratio: float | None = None
    remaining_seconds: float | None = None
    samples_per_second: float | None = None
    production_wait_ratio: float | None = None
    gpu_utilization_ratio: float | None = None
    slowest_gpu_ratio: float | None = None
    busy_ratio: float | None = None
    cpu_ranks: int | None = None
    damaged_checkpoints: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    table: WrittenTable | None = None
    tables: CatalogTables = CatalogTables()
    counters: Counters = field(default_factory=Counters)
    inference: Mapping[str, InferenceCounters] = field(default_factory=dict)

    @property
    def utilization(self) -> float | None:
        """Utilization of the GPUs; of ranks on CPUs, the share of time spent in training steps."""
        if self.gpu_utilization_ratio is not None:
            return self.gpu_utilization_ratio
        return self.busy_ratio if self.cpu_ranks else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Observations for scaling.

    Attributes:
        memory: memory of the autoscaling policy; None: this process has not decided for the run.
        inference: memories of the policy of inference workers, by the name of their group.
        drained: IP addresses of workers whose node Ray reports as dead; None: not asked.
        unknown: a message about metrics that are missing and why; "" if none are.
        log_job: the job that writes decisions; None: there is none, or Ray did not answer.
    """

    memory: Memory | None = None
    inference: Mapping[str, InferenceMemory] = field(default_factory=dict)
    drained: frozenset[str] | None = None
    unknown: str = ""
    log_job: Job | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPod:
    """The pod that writes the history of a cluster.

    Attributes:
        message: why it failed or waits; "" if not known.
        is_going: True if it was deleted.
    """

    name: str
    uid: str
    phase: str
    message: str = ""
    is_going: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """The history of a cluster that only the API server has, fetched before its deletion.

    Attributes:
        events: events of the experiment, its cluster and its pods, oldest first.
        pods: the cluster's pods, without fields that nobody reads.
    """

    events: tuple[Document, ...] = ()
    pods: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refusal of an object by the API server; `is_invalid` if its content is the reason."""

    message: str
    is_invalid: bool


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything that one pass knows, besides the time.

    Attributes:
        document: the experiment in the API server.
        settings: the operator's settings.
        fresh_token: a fresh random token, used only if the experiment has none yet.
        readings: the specs that earlier passes parsed and hashed.
        accepted: the experiment that the present run last accepted, from its ConfigMap; None if
            there is no run, or no such ConfigMap.
        is_accepted_sealed: True if that ConfigMap has a valid seal of the operator.
        rendered: the spec that the RayCluster was rendered as; None if its seal is not valid.
        broken_seals: objects whose seal is not the operator's, or does not match their content, as
            «Kind name».
        ray_reachable: True if the head's Jobs API answered.
        ray_failure: why it did not answer; "" if it did, or if there is no head to ask.
        job: the job of the attempt in the status; None if Ray does not know it, or did not answer.
        progress: progress of a running job; None if its driver does not report any.
        children: our owned objects, without the RayCluster and its token, by name.
        foreign: objects of others that have the name of an owned object, as «Kind name».
        refusal: the API server's refusal of an object that this pass wanted to create.
        scaling: observations for scaling.
        history_pod: the history pod that the status names; None if it does not exist.
        happened: the history that this pod has to write, if the pod has yet to be created.
    """

    document: Mapping[str, Any]
    settings: OperatorSettings
    fresh_token: str = ""
    readings: Readings = field(default_factory=Readings)
    accepted: Mapping[str, Any] | None = None
    is_accepted_sealed: bool = False
    cluster: Cluster | None = None
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
    def groups(self) -> Groups:
        """The table of worker groups that its specs are read with."""
        return self.readings.groups

    @cached_property
    def owner(self) -> Owner:
        """The experiment as the owner of its objects."""
        return Owner.of(self.document)

    @property
    def generation(self) -> int:
        """Generation of the spec."""
        return int(self.document["metadata"].get("generation", 0))

    @property
    def deleted_at(self) -> datetime | None:
        """Time of the deletion request; None if there is none."""
        text = self.document["metadata"].get("deletionTimestamp")
        return parse_time(text) if text else None

    @cached_property
    def status(self) -> ExperimentStatus:
        """The status that earlier passes wrote."""
        return parse_status(self.document.get("status"))

    @property
    def head(self) -> Pod | None:
        """The head's pod; None if there is none."""
        return next((pod for pod in self.pods if pod.role == HEAD), None)

    def ready(self, role: Role) -> int:
        """Return the number of ready pods of a role."""
        return sum(pod.ready for pod in self.pods if pod.role == role)
