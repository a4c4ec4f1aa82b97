"""The table of a cluster's worker groups: their pods, who scales them, and what their loss means.

A row, a `WorkerGroup`, describes one kind of group. `resolve_groups` applies the rows to a spec,
and returns the groups that the spec's cluster has. Builders, plan and telemetry read these values,
and do not ask which group they have. A field of the spec may list several groups, each with a name.

The head is not in `GROUPS`: KubeRay declares it apart from worker groups, a cluster has exactly
one, nothing scales it, and a new head is recognised by its uid. Its pod has everything else that
the pods of a group have, so `HEAD_GROUP` describes it with the same fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pydantic.alias_generators import to_snake

from dataset_operator.api import (
    DATA_SUBCLUSTER,
    DATA_WORKERS,
    HEAD,
    INFERENCE,
    INFERENCE_SUBCLUSTER,
    RAY_SUBCLUSTER_LABEL,
    TRAINERS,
    TRAINING_SUBCLUSTER,
    Role,
)
from pipeline_runtime.config import (
    DEFAULT_DATA_WORKER_CPUS,
    INFERENCE_RESOURCE,
    MAX_INFERENCE_GROUPS,
    ExperimentSpec,
    ExperimentStatus,
    InferenceWorkerStatus,
    PodGroup,
    Resources,
    WorkerStatus,
)

# Fixed: the spec's number; an edit takes effect with the next cluster.
# Policy: an autoscaling policy chooses the number within the spec's bounds, also during a run.
Scaler = Literal["Fixed", "Policy"]
# None: pods are deleted with their cluster only.
# ByRay: Ray gives the pods no more work, and the operator deletes them once they have none. The
# rules in `plan/draining` do so.
Draining = Literal["None", "ByRay"]
# FailsAttempt: the driver cannot go on without the pod.
# CostsUnits: other pods repeat the units of work that the pod had leased.
Loss = Literal["FailsAttempt", "CostsUnits"]
# Fields of `status.usage`.
GPU_SECONDS = "gpuSeconds"
DATA_WORKER_SECONDS = "dataWorkerSeconds"
INFERENCE_WORKER_SECONDS = "inferenceWorkerSeconds"


class Bounds(NamedTuple):
    """The smallest, the initial and the largest number of a group's pods."""

    least: int
    first: int
    most: int

    def clamp(self, wanted: int) -> int:
        """Return the number within the bounds that is nearest to the wanted one."""
        return min(max(wanted, self.least), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """The pods that a spec wants in a group.

    Attributes:
        section: the part of the spec with their resources and template.
        gpus: GPUs of each pod.
        num_cpus: CPUs of each pod that Ray may give to tasks; None: all CPUs of the pod.
        ray_resources: further resources of each pod, by which the runtime places its actors.
        num_needed: pods that must be ready before the driver is submitted.
        num_kept: pods that evictions must leave, if the group has a disruption budget.
        name: distinguishes groups of a field that is a list; "" for any other field.
    """

    section: PodGroup
    bounds: Bounds
    gpus: int = 0
    num_cpus: int | None = None
    ray_resources: Mapping[str, int] = field(default_factory=dict)
    num_needed: int
    num_kept: int
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """A row of the table: one kind of group.

    Attributes:
        role: the label of its pods and KubeRay's name of the group. A group of a list has the
            list's role, a dash and its own name.
        spec_field: its field of the spec, and of the status if a policy scales it.
        noun: one of its pods, in messages.
        find: returns the pods that a spec wants; none if its cluster does not have the group.
        default_resources: of pods for which neither a spec nor the operator's settings set any.
        labels: Ray's labels of its nodes, by which the runtime places its actors and tasks.
        scaled_by, drains, loss: see `Scaler`, `Draining` and `Loss`.
        has_budget: True if a PodDisruptionBudget limits evictions.
        usage: the field of `status.usage` with the seconds of its pods; None: only their GPUs
            count.
        numbers: model of its numbers in the status; for a field that is a list, it has a `name`.
        is_list: True if the field lists groups, each with a name.
        live_fields: fields of the section that change a running cluster without replacing it.
        is_default: True if a spec has the group without naming it.
    """

    role: Role
    spec_field: str
    noun: str
    find: Callable[[ExperimentSpec], Sequence[PodSet]]
    default_resources: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    scaled_by: Scaler = "Fixed"
    drains: Draining = "None"
    loss: Loss = "FailsAttempt"
    has_budget: bool = True
    usage: str | None = None
    numbers: type[WorkerStatus] = WorkerStatus
    is_list: bool = False
    live_fields: frozenset[str] = frozenset()
    is_default: bool = False

    @property
    def attribute(self) -> str:
        """The name of its field in Python."""
        return to_snake(self.spec_field)

    def list_numbers(self, status: ExperimentStatus) -> tuple[WorkerStatus, ...]:
        """Return the numbers of its groups in a status; it has them if a policy scales them."""
        found = getattr(status, self.attribute)
        return tuple(found) if self.is_list else (found,) if found else ()

    def write_numbers(self, numbers: Sequence[WorkerStatus]) -> dict[str, object]:
        """Return its field of the status with the numbers of its groups; None if there are none."""
        whole = tuple(numbers) if self.is_list else next(iter(numbers), None)
        return {self.attribute: whole or None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of one cluster: a row, and the pods that the spec wants in it."""

    kind: WorkerGroup
    pods: PodSet

    @property
    def role(self) -> Role:
        """The label of its pods, and KubeRay's name of the group."""
        return f"{self.kind.role}-{self.pods.name}" if self.pods.name else self.kind.role

    def find_numbers(self, status: ExperimentStatus) -> WorkerStatus:
        """Return its numbers in a status that has them; those of no pods if they are not known."""
        name = {"name": self.pods.name} if self.kind.is_list else {}
        known = self.kind.list_numbers(status)
        found = (one for one in known if getattr(one, "name", "") == self.pods.name)
        return next(found, None) or self.kind.numbers.model_validate(name)

    def write_numbers(self, status: ExperimentStatus, numbers: WorkerStatus) -> dict[str, object]:
        """Return its field of a status with other numbers for the group."""
        known = {getattr(one, "name", ""): one for one in self.kind.list_numbers(status)}
        all_numbers = tuple({**known, self.pods.name: numbers}.values())
        # A status may have groups that the spec no longer has; it holds so many in all.
        return self.kind.write_numbers(all_numbers[-MAX_INFERENCE_GROUPS:])

    def find_scale_time(self, status: ExperimentStatus) -> str | None:
        """Return when its number last changed; None if that is not known."""
        found: str | None = getattr(self._find_scaled(status), "last_scale_time", None)
        return found

    def mark_scaled(self, status: ExperimentStatus, time: str) -> dict[str, object]:
        """Return the changed fields of a status once the group's number has changed."""
        scaled = self._find_scaled(status)
        if isinstance(scaled, ExperimentStatus):
            return {"last_scale_time": time}
        return self.write_numbers(status, scaled.change(last_scale_time=time))

    def _find_scaled(self, status: ExperimentStatus) -> ExperimentStatus | WorkerStatus:
        """Return the part of a status with the time of its last change."""
        return self.find_numbers(status) if self.kind.is_list else status


def _find_head(spec: ExperimentSpec) -> Sequence[PodSet]:
    return (PodSet(section=spec.head, bounds=Bounds(1, 1, 1), num_needed=1, num_kept=1),)


def _find_trainers(spec: ExperimentSpec) -> Sequence[PodSet]:
    """Return one logical CPU per rank, so that Ray runs no data work on trainers."""
    number, gpus = spec.num_trainers, spec.trainers.gpus_per_replica
    pods = PodSet(
        section=spec.trainers,
        bounds=Bounds(number, number, number),
        gpus=gpus,
        num_cpus=max(1, gpus),
        num_needed=number,
        num_kept=number,
    )
    return (pods,) if number else ()


def _find_data_workers(spec: ExperimentSpec) -> Sequence[PodSet]:
    """Return pods of which one is enough to begin; of the smallest number, one may be evicted."""
    workers = spec.data_workers
    pods = PodSet(
        section=workers,
        bounds=Bounds(workers.min_replicas, workers.min_replicas, workers.max_replicas),
        num_needed=1,
        num_kept=workers.min_replicas - 1,
    )
    return (pods,)


def _find_inference_workers(spec: ExperimentSpec) -> Sequence[PodSet]:
    """Return pods that run no tasks of Ray, only the processes that ask for their resource."""
    return tuple(
        PodSet(
            name=group.name,
            section=group,
            bounds=Bounds(group.min_replicas, group.min_replicas, group.max_replicas),
            gpus=group.gpus_per_replica,
            num_cpus=0,
            ray_resources={f"{INFERENCE_RESOURCE}{group.name}": max(1, group.gpus_per_replica)},
            num_needed=1,
            num_kept=group.min_replicas - 1,
        )
        for group in spec.inference_workers
    )


_DATA_WORKER: dict[str, int | str] = {"cpu": str(DEFAULT_DATA_WORKER_CPUS), "memory": "8Gi"}

HEAD_GROUP = WorkerGroup(
    role=HEAD,
    spec_field="head",
    noun="head",
    find=_find_head,
    default_resources=Resources(requests={"cpu": "1", "memory": "4Gi"}, limits={"memory": "4Gi"}),
    is_default=True,
)
GROUPS: tuple[WorkerGroup, ...] = (
    WorkerGroup(
        role=TRAINERS,
        spec_field="trainers",
        noun="trainer",
        find=_find_trainers,
        default_resources=Resources(
            requests={"cpu": "4", "memory": "16Gi"}, limits={"memory": "16Gi"}
        ),
        labels={RAY_SUBCLUSTER_LABEL: TRAINING_SUBCLUSTER},
        is_default=True,
    ),
    WorkerGroup(
        role=DATA_WORKERS,
        spec_field="dataWorkers",
        noun="data worker",
        find=_find_data_workers,
        default_resources=Resources(requests=_DATA_WORKER, limits=_DATA_WORKER),
        labels={RAY_SUBCLUSTER_LABEL: DATA_SUBCLUSTER},
        scaled_by="Policy",
        drains="ByRay",
        loss="CostsUnits",
        usage=DATA_WORKER_SECONDS,
        live_fields=frozenset({"minReplicas", "maxReplicas"}),
        is_default=True,
    ),
    WorkerGroup(
        role=INFERENCE,
        spec_field="inferenceWorkers",
        noun="inference worker",
        find=_find_inference_workers,
        default_resources=Resources(
            requests={"cpu": "4", "memory": "16Gi"}, limits={"memory": "16Gi"}
        ),
        labels={RAY_SUBCLUSTER_LABEL: INFERENCE_SUBCLUSTER},
        scaled_by="Policy",
        drains="ByRay",
        loss="CostsUnits",
        usage=INFERENCE_WORKER_SECONDS,
        numbers=InferenceWorkerStatus,
        is_list=True,
        live_fields=frozenset({"minReplicas", "maxReplicas", "targetCompletionSeconds"}),
    ),
)
Groups = Sequence[WorkerGroup]


# --- the groups of a spec -------------------------------------------------------------------------


def resolve_groups(spec: ExperimentSpec, groups: Groups = GROUPS) -> tuple[Group, ...]:
    """Return the worker groups of a spec's cluster, in the order of the table."""
    return tuple(Group(kind=kind, pods=pods) for kind in groups for pods in kind.find(spec))


def resolve_roles(spec: ExperimentSpec, groups: Groups = GROUPS) -> tuple[Group, ...]:
    """Return the head and the worker groups of a spec's cluster."""
    return resolve_groups(spec, (HEAD_GROUP, *groups))


def find_scaled_bounds(spec: ExperimentSpec, groups: Groups = GROUPS) -> dict[Role, Bounds]:
    """Return the bounds of each group that a policy scales."""
    found = resolve_groups(spec, list_scaled(groups))
    return {group.role: group.pods.bounds for group in found}


def count_needed(spec: ExperimentSpec, groups: Groups = GROUPS) -> dict[Role, int]:
    """Return the number of pods of each role that must be ready before the driver is submitted."""
    return {group.role: group.pods.num_needed for group in resolve_roles(spec, groups)}


def sum_usage(seconds: Mapping[Role, int], groups: Iterable[Group]) -> dict[str, int]:
    """Return the pod seconds of each role as fields of `status.usage`, without those that are 0."""
    sums: dict[str, int] = {}
    for group in groups:
        held = seconds.get(group.role, 0)
        if gpus := held * group.pods.gpus:
            sums[GPU_SECONDS] = sums.get(GPU_SECONDS, 0) + gpus
        if group.kind.usage and held:
            sums[group.kind.usage] = sums.get(group.kind.usage, 0) + held
    return sums


# --- rows of the table ----------------------------------------------------------------------------


def list_scaled(groups: Groups = GROUPS) -> tuple[WorkerGroup, ...]:
    """Return the rows of groups that a policy scales."""
    return tuple(kind for kind in groups if kind.scaled_by == "Policy")


def find_kind(role: Role, groups: Groups = GROUPS) -> WorkerGroup | None:
    """Return the row of a pod's role; None if it is of none, since anybody may label a pod."""
    for kind in (HEAD_GROUP, *groups):
        if role.startswith(f"{kind.role}-") if kind.is_list else role == kind.role:
            return kind
    return None


def locate_section(role: Role, groups: Groups = GROUPS) -> str:
    """Return the path of a role's section below the spec.

    Example:
        >>> locate_section("data-workers")
        'dataWorkers'
    """
    kind = find_kind(role, groups)
    assert kind is not None
    name = role.removeprefix(f"{kind.role}-")
    return f"{kind.spec_field}[{name}]" if kind.is_list else kind.spec_field
