"""The cluster side of a spec: pods, autoscaling, image, code, environment, storage.

A laptop parses and checks these fields but does not act on them; `dataset_operator` does. The
rules for a user's pod template are in `pods.pod_template`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from pipeline_runtime.config.base import (
    MAX_LIST_ITEMS,
    PositiveInt,
    SpecModel,
    StoreUri,
    Text,
    Uri,
    check_one_of,
)
from pipeline_runtime.config.pods.pod_template import (
    check_env_name,
    check_template,
    is_gpu_resource,
)
from pipeline_runtime.config.quantities import Quantity, parse_quantity
from pipeline_runtime.config.texts.credentials import find_uri_credential, holds_secret

# The Ray project tests Ray with up to 2,000 nodes (docs.ray.io, large cluster practices).
MAX_DATA_WORKERS = 2000
MAX_TRAINERS = 1024
MAX_GPUS_PER_POD = 16  # the largest hosts on sale (p2.16xlarge, HGX pairs) have 16
# Spare data workers, as a share of those that the trainers need. The autoscaler keeps them, and
# `lastmile profile` plans for them.
HEADROOM = 0.075
# CPUs of a data worker whose manifest sets none, in the cluster and in plans for it.
DEFAULT_DATA_WORKER_CPUS = 4
# Inference workers score rows for many more data workers. The rules about the resources of more
# groups would exceed the cost budget of CEL.
MAX_INFERENCE_GROUPS = 4
MAX_INFERENCE_WORKERS = 512
DEFAULT_INFERENCE_WORKER_CPUS = 4
# Ray's resource of the nodes of a group is this and the group's name: one per process there.
INFERENCE_RESOURCE = "lastmile-inference-"
# Kubernetes' own bounds of an HPA's behaviour (autoscaling/v2, HPAScalingRules).
MAX_STABILIZATION_SECONDS = 3600
MAX_POLICY_PERIOD_SECONDS = 1800

# RFC 1123 subdomain, as Kubernetes names Secrets and ConfigMaps.
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
# Part of the names of pods, so much shorter than the 63 characters of a label.
GROUP_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
ENV_NAME_PATTERN = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"
DATA_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
IMAGE_PATTERN = r"^[^\p{Z}\t-\r\x{85}]+$"  # no white space

ObjectName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)
]
EnvName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=ENV_NAME_PATTERN)]
DataKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DATA_KEY_PATTERN)]
ImageName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=IMAGE_PATTERN)]
GroupName = Annotated[
    str, StringConstraints(min_length=1, max_length=24, pattern=GROUP_NAME_PATTERN)
]
Quantities = Annotated[dict[Text, Quantity], Field(max_length=32)]


class Resources(SpecModel):
    """Resources of one pod, except GPUs (see `gpusPerReplica`)."""

    requests: Quantities = Field(default_factory=dict)
    """Resources that a pod is guaranteed, by name."""
    limits: Quantities = Field(default_factory=dict)
    """Resources that a pod may use, by name; at least the request."""

    def rules(self) -> Iterator[tuple[str, str]]:
        for field in ("requests", "limits"):
            for name in filter(is_gpu_resource, getattr(self, field)):
                yield (
                    f"{field}.{name}",
                    "must not count GPUs; remove it and set trainers.gpusPerReplica",
                )
        for name in sorted(self.requests.keys() & self.limits.keys()):
            yield from self._check_within_limit(name)

    def _check_within_limit(self, name: str) -> Iterator[tuple[str, str]]:
        request, limit = self.requests[name], self.limits[name]
        requested, limited = parse_quantity(request), parse_quantity(limit)
        if requested is not None and limited is not None and requested > limited:
            yield f"requests.{name}", f"must be ≤ limits.{name} ({limit}), got {request}"


class PodGroup(SpecModel):
    """Pods of one role: the resources of each, and the user's additions to their template."""

    resources: Resources = Field(default_factory=Resources)
    template: dict[str, JsonValue] = Field(default_factory=dict)
    """A pod template, merged by name into Lastmile's; the container that runs Ray is called
    `ray`."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from check_template("template", self.template)

    def find_cpus(self) -> int | None:
        """Return the CPUs of one pod: its limit, else its request, rounded up like Ray."""
        for given in (self.resources.limits, self.resources.requests):
            cpus = parse_quantity(given["cpu"]) if "cpu" in given else None
            if cpus:
                return max(1, math.ceil(cpus))
        return None


class Head(PodGroup):
    """The Ray head, which runs neither training nor data work."""


class Trainers(PodGroup):
    """The pods that train; world size is `replicas` times max(1, `gpusPerReplica`)."""

    replicas: Annotated[int, Field(ge=1, le=MAX_TRAINERS)] = 1
    """Pods that train."""
    gpus_per_replica: Annotated[int, Field(ge=0, le=MAX_GPUS_PER_POD)] = 1
    """GPUs of each pod; 0 trains on CPUs."""

    @property
    def world_size(self) -> int:
        """Ranks of all pods together."""
        return self.replicas * max(1, self.gpus_per_replica)


class DataWorkers(PodGroup):
    """The CPU pods that do the last-mile work; the autoscaler sets their number."""

    min_replicas: Annotated[int, Field(ge=1, le=MAX_DATA_WORKERS)] = 1
    """Smallest number of pods."""
    max_replicas: Annotated[int, Field(ge=1, le=MAX_DATA_WORKERS)] = 50
    """Largest number of pods; at least `minReplicas`."""

    @property
    def num_readers(self) -> int:
        """Readers of one pod, one for each CPU."""
        return self.find_cpus() or DEFAULT_DATA_WORKER_CPUS

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from super().rules()
        yield from _check_bounds(self.min_replicas, self.max_replicas)


class InferenceWorkers(PodGroup):
    """A group of pods that only call models, for the steps `predict` that name it."""

    name: GroupName
    """Name of the group, which `predict.models[].workerGroup` refers to."""
    min_replicas: Annotated[int, Field(ge=1, le=MAX_INFERENCE_WORKERS)] = 1
    """Smallest number of pods."""
    max_replicas: Annotated[int, Field(ge=1, le=MAX_INFERENCE_WORKERS)] = 1
    """Largest number of pods, or of processes on a laptop; at least `minReplicas`."""
    target_completion_seconds: PositiveInt | None = None
    """Seconds from an attempt's start within which all rows should be scored, by as few pods as
    can; absent: as many pods as requests keep busy."""
    gpus_per_replica: Annotated[int, Field(ge=0, le=MAX_GPUS_PER_POD)] = 1
    """GPUs of each pod, which calls the models in one process per GPU; 0 uses CPUs."""
    progress_deadline_seconds: PositiveInt = 300
    """Seconds after which a process that has finished no batch is replaced."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from super().rules()
        yield from _check_bounds(self.min_replicas, self.max_replicas)


def _check_bounds(least: int, most: int) -> Iterator[tuple[str, str]]:
    """Yield the broken rule of `minReplicas` and `maxReplicas`, if they are the wrong way round."""
    if most < least:
        yield "maxReplicas", f"must be ≥ minReplicas ({least}), got {most}"


class ScalingPolicy(SpecModel):
    """A bound on the change of the number of workers within a period, as in an HPA."""

    type: Literal["Percent", "Workers"]
    """Unit of `value`: a percentage of the workers, or workers."""
    value: PositiveInt
    """Largest change of the number of workers within the period."""
    period_seconds: Annotated[int, Field(ge=1, le=MAX_POLICY_PERIOD_SECONDS)]
    """Length of the period, in seconds."""


class ScalingRules(SpecModel):
    """Bounds on scaling in one direction; an absent field has the autoscaler's default."""

    stabilization_window_seconds: (
        Annotated[int, Field(ge=0, le=MAX_STABILIZATION_SECONDS)] | None
    ) = None
    """Seconds within which the most conservative recommendation counts; the autoscaler's default if
    absent."""
    policies: Annotated[tuple[ScalingPolicy, ...], Field(max_length=16)] = ()
    """Limits on the rate; if empty, none on scaling up, and a quarter in five minutes on scaling
    down."""
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    """Apply the policy that allows the largest (`Max`) or smallest (`Min`) change, or none
    (`Disabled`)."""

    def rules(self) -> Iterator[tuple[str, str]]:
        seen: dict[tuple[str, int], int] = {}
        for index, policy in enumerate(self.policies):
            first = seen.setdefault((policy.type, policy.period_seconds), index)
            if first != index:
                yield (
                    f"policies[{index}]",
                    f"must differ from policies[{first}] in type or periodSeconds, got "
                    f"{policy.type} over {policy.period_seconds} s twice; remove one",
                )


ScalingSignal = Literal["Rows", "GpuUtilization"]


class Autoscaling(SpecModel):
    """Rules for adding and removing data workers."""

    target_gpu_utilization_percent: Annotated[int, Field(ge=1, le=100)] = 95
    """Target utilization of the GPUs."""
    signal: ScalingSignal = "Rows"
    """Signal that sets the number of workers: rows consumed and produced or, for trainers that
    report no rows, the GPUs' utilization."""
    scale_up: ScalingRules = Field(default_factory=ScalingRules)
    """Rules for adding workers."""
    scale_down: ScalingRules = Field(default_factory=ScalingRules)
    """Rules for removing workers."""


class ObjectReference(SpecModel):
    """An object of the experiment's namespace, by name."""

    name: ObjectName
    """Name of the object, in the experiment's namespace."""


class OptionalReference(ObjectReference):
    """An object of the experiment's namespace that may be absent if `optional` is true."""

    optional: bool | None = None
    """True if it may be absent."""


class KeyReference(OptionalReference):
    """One key of a Secret or ConfigMap."""

    key: DataKey
    """Key within the object's data."""


class FieldReference(SpecModel):
    """A field of the pod, such as metadata.name."""

    field_path: Text
    """Such as `metadata.name`."""
    api_version: Text | None = None
    """Version of the path's schema."""


class ResourceFieldReference(SpecModel):
    """A container's own request or limit, such as limits.cpu."""

    resource: Text
    """Such as `limits.cpu`."""
    container_name: Text | None = None
    """The pod's own container if absent."""
    divisor: Quantity | None = None
    """Unit of the value, as a quantity."""


class EnvSource(SpecModel):
    """Source of a variable's value: exactly one of these."""

    secret_key_ref: KeyReference | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""
    field_ref: FieldReference | None = None
    """A field of the pod."""
    resource_field_ref: ResourceFieldReference | None = None
    """A request or limit of a container."""

    def rules(self) -> Iterator[tuple[str, str]]:
        names = ("secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef")
        given = [n for n, f in zip(names, type(self).model_fields, strict=True) if getattr(self, f)]
        if message := check_one_of(names, given):
            yield "", message


class EnvVar(SpecModel):
    """One environment variable; a secret comes from a Secret, never from `value`."""

    name: EnvName
    """Name of the variable; variables of Ray and Lastmile are refused."""
    value: Annotated[str, StringConstraints(max_length=32_768)] | None = None
    """Value, quoted if it is a number or boolean; a secret comes from a Secret."""
    value_from: EnvSource | None = None
    """Source of the value."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.value is not None and self.value_from is not None:
            yield "valueFrom", "must not come with value, got both; keep one"
        if message := check_env_name(self.name):
            yield "name", message
        if self.value and holds_secret(self.name, self.value):
            yield (
                "value",
                f"must not hold a secret, got a value for {self.name}; use valueFrom.secretKeyRef",
            )


class EnvFromSource(SpecModel):
    """All keys of a Secret or ConfigMap as variables."""

    prefix: Annotated[str, StringConstraints(max_length=256)] | None = None
    """Prefix of each variable's name, before the key."""
    secret_ref: OptionalReference | None = None
    """A Secret: `name`, `optional`."""
    config_map_ref: OptionalReference | None = None
    """A ConfigMap: `name`, `optional`."""

    def rules(self) -> Iterator[tuple[str, str]]:
        choices = {"secretRef": self.secret_ref, "configMapRef": self.config_map_ref}
        given = [name for name, value in choices.items() if value is not None]
        if message := check_one_of(tuple(choices), given):
            yield "", message


class Code(SpecModel):
    """The user's own modules: a folder or zip, and packages to install beside it."""

    working_dir: Uri | None = None
    """A folder or zip with the user's modules; `lastmile submit` fills it in."""
    pip: Annotated[tuple[Text, ...], Field(max_length=MAX_LIST_ITEMS)] = ()
    """Packages to install beside it; no credentials in their URLs."""

    def rules(self) -> Iterator[tuple[str, str]]:
        for index, requirement in enumerate(self.pip):
            if credential := find_uri_credential(requirement):
                yield (
                    f"pip[{index}]",
                    f"must not carry credentials, got {credential}; configure the index in the "
                    "image, or through env with valueFrom",
                )


class Storage(SpecModel):
    """The base of URIs without a scheme, and the Secret with its keys."""

    root: StoreUri | None = None
    """Base of URIs without a scheme; the operator's setting or `--storage-root` if absent. On a
    laptop, a relative path starts at the manifest's folder. It cannot be changed."""
    secret_ref: ObjectReference | None = None
    """The Secret with the keys of the storage: `name`."""


Env = Annotated[tuple[EnvVar, ...], Field(max_length=MAX_LIST_ITEMS)]
EnvFrom = Annotated[tuple[EnvFromSource, ...], Field(max_length=MAX_LIST_ITEMS)]
PullSecrets = Annotated[tuple[ObjectReference, ...], Field(max_length=MAX_LIST_ITEMS)]
