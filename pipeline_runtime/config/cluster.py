"""The cluster side of a spec: pods, autoscaling, image, code, environment, storage.

A laptop parses and checks it and acts on none of it; `dataset_operator` acts on it. What a user's
pod template may not say stands in `pod_template`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from pipeline_runtime.config.base import (
    MAX_LIST_ITEMS,
    PositiveInt,
    SpecModel,
    Text,
    Uri,
    check_one_of,
)
from pipeline_runtime.config.credentials import find_uri_credential, is_secret_env
from pipeline_runtime.config.pod_template import check_env_name, check_template, is_gpu_resource
from pipeline_runtime.config.quantities import Quantity, parse_quantity

# Ray itself is tested by its makers to 2,000 nodes (docs.ray.io, large cluster practices).
MAX_DATA_WORKERS = 2000
MAX_TRAINERS = 1024
MAX_GPUS_PER_POD = 16  # the largest hosts on sale (p2.16xlarge, HGX pairs) have 16
# Kubernetes' own bounds of an HPA's behaviour (autoscaling/v2, HPAScalingRules).
MAX_STABILIZATION_SECONDS = 3600
MAX_POLICY_PERIOD_SECONDS = 1800

# RFC 1123 subdomain, as Kubernetes names Secrets and ConfigMaps.
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
ENV_NAME_PATTERN = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"
DATA_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
IMAGE_PATTERN = r"^\S+$"

ObjectName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)
]
EnvName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=ENV_NAME_PATTERN)]
DataKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DATA_KEY_PATTERN)]
ImageName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=IMAGE_PATTERN)]
Quantities = Annotated[dict[Text, Quantity], Field(max_length=32)]


class Resources(SpecModel):
    """What one pod asks for and may use, GPUs apart (those are `gpusPerReplica`)."""

    requests: Quantities = Field(default_factory=dict)
    limits: Quantities = Field(default_factory=dict)

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
    """Pods of one role: what each may use, and the user's additions to their template."""

    resources: Resources = Field(default_factory=Resources)
    template: dict[str, JsonValue] = Field(default_factory=dict)

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from check_template("template", self.template)


class Head(PodGroup):
    """The Ray head: no training and no data work runs on it."""


class Trainers(PodGroup):
    """The pods that train; world size is `replicas` times max(1, `gpusPerReplica`)."""

    replicas: Annotated[int, Field(ge=1, le=MAX_TRAINERS)] = 1
    gpus_per_replica: Annotated[int, Field(ge=0, le=MAX_GPUS_PER_POD)] = 1


class DataWorkers(PodGroup):
    """The CPU pods that do the last-mile work; their number is the autoscaler's."""

    min_replicas: Annotated[int, Field(ge=1, le=MAX_DATA_WORKERS)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=MAX_DATA_WORKERS)] = 50

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from super().rules()
        if self.max_replicas < self.min_replicas:
            yield (
                "maxReplicas",
                f"must be ≥ minReplicas ({self.min_replicas}), got {self.max_replicas}",
            )


class ScalingPolicy(SpecModel):
    """How much the number of workers may change within a period, as the HPA words it."""

    type: Literal["Percent", "Workers"]
    value: PositiveInt
    period_seconds: Annotated[int, Field(ge=1, le=MAX_POLICY_PERIOD_SECONDS)]


class ScalingRules(SpecModel):
    """How one direction of scaling is held back; what is absent is the autoscaler's default."""

    stabilization_window_seconds: (
        Annotated[int, Field(ge=0, le=MAX_STABILIZATION_SECONDS)] | None
    ) = None
    policies: Annotated[tuple[ScalingPolicy, ...], Field(max_length=16)] = ()
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"

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


class Autoscaling(SpecModel):
    """When data workers are added and taken away."""

    target_gpu_utilization_percent: Annotated[int, Field(ge=1, le=100)] = 95
    scale_up: ScalingRules = Field(default_factory=ScalingRules)
    scale_down: ScalingRules = Field(default_factory=ScalingRules)


class ObjectReference(SpecModel):
    """An object of the experiment's namespace, by name."""

    name: ObjectName


class OptionalReference(ObjectReference):
    """An object of the namespace that may be absent if `optional` says so."""

    optional: bool | None = None


class KeyReference(OptionalReference):
    """One key of a Secret or ConfigMap."""

    key: DataKey


class FieldReference(SpecModel):
    """A field of the pod, such as metadata.name."""

    field_path: Text
    api_version: Text | None = None


class ResourceFieldReference(SpecModel):
    """A container's own request or limit, such as limits.cpu."""

    resource: Text
    container_name: Text | None = None
    divisor: Quantity | None = None


class EnvSource(SpecModel):
    """Where the value of a variable comes from: exactly one of these."""

    secret_key_ref: KeyReference | None = None
    config_map_key_ref: KeyReference | None = None
    field_ref: FieldReference | None = None
    resource_field_ref: ResourceFieldReference | None = None

    def rules(self) -> Iterator[tuple[str, str]]:
        names = ("secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef")
        given = [n for n, f in zip(names, type(self).model_fields, strict=True) if getattr(self, f)]
        if message := check_one_of(names, given):
            yield "", message


class EnvVar(SpecModel):
    """One environment variable; a secret comes from a Secret, never from `value`."""

    name: EnvName
    value: Annotated[str, StringConstraints(max_length=32_768)] | None = None
    value_from: EnvSource | None = None

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.value is not None and self.value_from is not None:
            yield "valueFrom", "must not come with value, got both; keep one"
        if message := check_env_name(self.name):
            yield "name", message
        if self.value and self._holds_secret(self.value):
            yield (
                "value",
                f"must not hold a secret, got a value for {self.name}; use valueFrom.secretKeyRef",
            )

    def _holds_secret(self, value: str) -> bool:
        # GOOGLE_APPLICATION_CREDENTIALS=/var/run/… names a file that a volume brings.
        named = is_secret_env(self.name) and not value.startswith("/")
        return named or find_uri_credential(value) is not None


class EnvFromSource(SpecModel):
    """All keys of a Secret or ConfigMap as variables."""

    prefix: Annotated[str, StringConstraints(max_length=256)] | None = None
    secret_ref: OptionalReference | None = None
    config_map_ref: OptionalReference | None = None

    def rules(self) -> Iterator[tuple[str, str]]:
        choices = {"secretRef": self.secret_ref, "configMapRef": self.config_map_ref}
        given = [name for name, value in choices.items() if value is not None]
        if message := check_one_of(tuple(choices), given):
            yield "", message


class Code(SpecModel):
    """The user's own modules: a folder or zip, and packages to install beside it."""

    working_dir: Uri | None = None
    pip: Annotated[tuple[Text, ...], Field(max_length=MAX_LIST_ITEMS)] = ()

    def rules(self) -> Iterator[tuple[str, str]]:
        for index, requirement in enumerate(self.pip):
            if credential := find_uri_credential(requirement):
                yield (
                    f"pip[{index}]",
                    f"must not carry credentials, got {credential}; configure the index in the "
                    "image, or through env with valueFrom",
                )


class Storage(SpecModel):
    """Where URIs without a scheme start, and the Secret with the keys to it."""

    root: Uri | None = None
    secret_ref: ObjectReference | None = None


Env = Annotated[tuple[EnvVar, ...], Field(max_length=MAX_LIST_ITEMS)]
EnvFrom = Annotated[tuple[EnvFromSource, ...], Field(max_length=MAX_LIST_ITEMS)]
PullSecrets = Annotated[tuple[ObjectReference, ...], Field(max_length=MAX_LIST_ITEMS)]
