"""The DatasetExperiment as a whole: metadata, spec, and the names of its API.

Metadata and spec mirror `crds/datasetexperiments.yaml`; within v1alpha1 fields are only ever added.
Metadata accepts the fields that the API server writes, so that the output of `kubectl get -o yaml`
is a manifest too. `config.experiment_status` has the status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, StringConstraints
from pydantic.alias_generators import to_camel

from pipeline_runtime.config.base import (
    ConsumerModel,
    Count,
    Label,
    PositiveInt,
    SpecModel,
    check_unique_names,
    rule_error,
)
from pipeline_runtime.config.cluster import (
    MAX_INFERENCE_GROUPS,
    Autoscaling,
    Code,
    DataWorkers,
    Env,
    EnvFrom,
    Head,
    ImageName,
    InferenceWorkers,
    PullSecrets,
    Storage,
    Trainers,
)
from pipeline_runtime.config.dataset import Catalog, Dataset
from pipeline_runtime.config.experiment_status import ExperimentStatus
from pipeline_runtime.config.output import Output
from pipeline_runtime.config.steps import PipelineOptions, Step
from pipeline_runtime.config.training import Artifacts, Training

GROUP = "experiments.lastmile.dev"
VERSION = "v1alpha1"
KIND = "DatasetExperiment"
API_VERSION = f"{GROUP}/{VERSION}"

# Names of Pods and Services derive from it: 63 less "-data-workers-" and KubeRay's suffix.
MAX_NAME_CHARS = 40
MAX_STEPS = 256
MAX_CATALOGS = 32

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"  # RFC 1035 label, as Services are named

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)
]
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=317)]
_LABEL_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


class Metadata(SpecModel):
    """The object's metadata: the fields that users set, and those that the API server adds."""

    name: Name
    namespace: Label | None = None
    labels: dict[LabelName, str] | None = None
    annotations: dict[LabelName, str] | None = None
    # Set by the API server or by other tools; accepted so that kubectl's output is a manifest.
    generate_name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    self_link: str | None = None
    finalizers: tuple[str, ...] | None = None
    owner_references: tuple[JsonValue, ...] | None = None
    managed_fields: tuple[JsonValue, ...] | None = None

    def rules(self) -> Iterator[tuple[str, str]]:
        for field in ("labels", "annotations"):
            for key in getattr(self, field) or ():
                if not _LABEL_PART.fullmatch(key.rpartition("/")[2]):
                    yield (
                        f"{field}.{key}",
                        f"must be a name of letters, digits, '-', '_' and '.', got {key[:80]!r}",
                    )
        for key, value in (self.labels or {}).items():
            if value and not _LABEL_PART.fullmatch(value):
                yield (
                    f"labels.{key}",
                    "must have at most 63 letters, digits, '-', '_' and '.', and begin and end "
                    f"with a letter or digit, got {value[:80]!r}",
                )


class ExperimentSpec(SpecModel):
    """The desired experiment: the data side, which a laptop runs too, and the cluster side."""

    suspend: bool = False
    """True releases the cluster; false again resumes the run from its checkpoint."""
    update_policy: Literal["AfterRun", "Restart"] = "AfterRun"
    """An edit of a running experiment waits for the end of the run (`AfterRun`), or stops it and
    starts a new one (`Restart`)."""
    image: ImageName | None = None
    """Runtime image; the operator's setting if absent."""
    image_pull_secrets: PullSecrets = ()
    """Secrets with the registry's credentials, by name."""
    code: Code = Field(default_factory=Code)
    env: Env = ()
    """Environment variables of all pods."""
    env_from: EnvFrom = ()
    """All keys of Secrets or ConfigMaps as variables."""
    storage: Storage = Field(default_factory=Storage)
    catalogs: Annotated[
        tuple[Catalog, ...], Field(max_length=MAX_CATALOGS), AfterValidator(check_unique_names)
    ] = ()
    """Iceberg catalogs, by name."""
    dataset: Dataset
    pipeline: Annotated[tuple[Step, ...], Field(max_length=MAX_STEPS)] = ()
    """Steps in order, at most 256, each with one kind and perhaps a name."""
    pipeline_options: PipelineOptions = Field(default_factory=PipelineOptions)
    training: Training = Field(default_factory=Training)
    output: Output | None = None
    trainers: Trainers = Field(default_factory=Trainers)
    data_workers: DataWorkers = Field(default_factory=DataWorkers)
    inference_workers: Annotated[
        tuple[InferenceWorkers, ...],
        Field(max_length=MAX_INFERENCE_GROUPS),
        AfterValidator(check_unique_names),
    ] = ()
    """Groups of pods that only call models, by name."""
    head: Head = Field(default_factory=Head)
    autoscaling: Autoscaling = Field(default_factory=Autoscaling)
    artifacts: Artifacts = Field(default_factory=Artifacts)
    backoff_limit: Count = 2
    """Failures before the experiment is `Failed`."""
    active_deadline_seconds: PositiveInt | None = None
    """Seconds that the whole experiment may take, waiting included."""
    pre_running_deadline_seconds: PositiveInt | None = None
    """Seconds that it may wait before training starts; less than `activeDeadlineSeconds`."""
    ttl_seconds_after_finished: Count | None = None
    """Seconds after which a finished experiment is deleted."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from _check_names("env", [variable.name for variable in self.env])
        yield from _check_names("pipeline", [step.name for step in self.pipeline])
        yield from self._check_catalogs()
        yield from self._check_deadlines()
        yield from self._check_consumer()
        yield from self._check_materialized()
        yield from self._check_measured()
        yield from self._check_worker_groups()
        if self.training.shuffle.unit == "Request" and not self.dataset.request_key:
            yield (
                "training.shuffle.unit",
                "must come with dataset.requestKey to be 'Request', got none; add it",
            )

    def _check_consumer(self) -> Iterator[tuple[str, str]]:
        names = list(self.find_consumers())
        for name in names[:1]:
            if "training" in self.model_fields_set:
                yield name, "must not come with training, got both; keep one of them"
            if "trainers" in self.model_fields_set:
                yield "trainers", f"must not come with {name}, which no trainer takes; remove it"
            if self.autoscaling.signal != "Rows":
                yield (
                    "autoscaling.signal",
                    f"must be Rows with {name}, which uses no GPU, got "
                    f"{self.autoscaling.signal}; remove it",
                )
        for name in names[1:]:
            yield name, f"must not come with {names[0]}, got both; keep one of them"

    @property
    def consumer(self) -> ConsumerModel | None:
        """The section that takes the rows in place of a training, if there is one."""
        return next(iter(self.find_consumers().values()), None)

    def find_consumers(self) -> dict[str, ConsumerModel]:
        """Return the sections that are given, by the name of their field."""
        given = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {to_camel(name): each for name, each in given if isinstance(each, ConsumerModel)}

    @property
    def num_trainers(self) -> int:
        """Number of trainers; none with a section that takes the rows in place of a training."""
        return 0 if self.consumer else self.trainers.replicas

    @property
    def num_gpus(self) -> int:
        """GPUs of all trainers together."""
        return self.num_trainers * self.trainers.gpus_per_replica

    @property
    def used_catalogs(self) -> tuple[Catalog, ...]:
        """The catalogs of the table, the side tables, the cache tables and the output."""
        used = {catalog for _, catalog in self._find_iceberg()}
        return tuple(catalog for catalog in self.catalogs if catalog.name in used)

    def _find_iceberg(self) -> Iterator[tuple[str, str]]:
        """Yield the path and the catalog of each Iceberg table."""
        if self.dataset.iceberg:
            yield "dataset.iceberg", self.dataset.iceberg.catalog
        for index, step in enumerate(self.pipeline):
            for config in step.given():
                if catalog := config.find_catalog():
                    yield f"pipeline[{index}].{config.kind()}.iceberg", catalog
        if self.output and self.output.iceberg:
            yield "output.iceberg", self.output.iceberg.catalog

    def _check_catalogs(self) -> Iterator[tuple[str, str]]:
        names = [catalog.name for catalog in self.catalogs]
        for path, catalog in self._find_iceberg():
            if catalog not in names:
                yield (
                    f"{path}.catalog",
                    "must be the name of a catalog in spec.catalogs, got "
                    f"{str(catalog)[:80]!r}; add it there",
                )

    def _check_materialized(self) -> Iterator[tuple[str, str]]:
        kinds = [config.kind() for step in self.pipeline for config in step.given()[:1]]
        places = [index for index, kind in enumerate(kinds) if kind == "materialize"]
        for index in places[1:]:
            first = f"pipeline[{places[0]}]"
            yield f"pipeline[{index}]", f"must not materialize again, as {first} does; remove one"
        if places and not self.dataset.row_key:
            yield "dataset.rowKey", "must come with a step materialize, got none; add it"

    def _check_measured(self) -> Iterator[tuple[str, str]]:
        configs = [config for step in self.pipeline for config in step.given()[:1]]
        for index, config in enumerate(configs):
            if (name := config.find_measured()) is None:
                continue
            is_counted = self.output is not None
            is_counted |= config.measures_training and self.consumer is None
            if not is_counted:
                consumers = "output or training" if config.measures_training else "output"
                yield (
                    f"pipeline[{index}]",
                    f"{name} must come with {consumers}, which counts each row once, got none; add "
                    f"output, or remove {name}",
                )
            elif self.output is not None and self.output.mode == "OverwritePartitions":
                yield (
                    f"pipeline[{index}]",
                    f"{name} must not come with output.mode OverwritePartitions, which writes "
                    "only the partitions that are missing; choose another mode",
                )

    def _check_worker_groups(self) -> Iterator[tuple[str, str]]:
        groups = [group.name for group in self.inference_workers]
        used = set()
        for index, step in enumerate(self.pipeline):
            for config in step.given():
                for field, name in config.find_worker_groups():
                    used.add(name)
                    if name not in groups:
                        yield (
                            f"pipeline[{index}].{config.kind()}.{field}",
                            "must be the name of a group in spec.inferenceWorkers, got "
                            f"{name!r}; add it there, or remove workerGroup",
                        )
        for index, name in enumerate(groups):
            if name not in used:
                yield (
                    f"inferenceWorkers[{index}].name",
                    f"must be the workerGroup of a model of a step predict, got {name!r}, which "
                    "none uses; remove the group, or set workerGroup",
                )

    def _check_deadlines(self) -> Iterator[tuple[str, str]]:
        whole, start = self.active_deadline_seconds, self.pre_running_deadline_seconds
        if whole is not None and start is not None and start >= whole:
            yield (
                "preRunningDeadlineSeconds",
                f"must be < activeDeadlineSeconds ({whole}), which counts that too, got {start}",
            )


def _check_names(field: str, names: Sequence[str | None]) -> Iterator[tuple[str, str]]:
    """Yield a broken rule for each item of a list that has the name of an earlier one."""
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        first = index if name is None else seen.setdefault(name, index)
        if first != index:
            yield (
                f"{field}[{index}].name",
                f"must be unique, got {name!r} in {field}[{first}] too; rename or remove one",
            )


def _check_api_version(value: str) -> str:
    if value != API_VERSION:
        raise rule_error(f"must be {API_VERSION!r}, got {value[:80]!r}; write that")
    return value


def _check_kind(value: str) -> str:
    if value != KIND:
        raise rule_error(f"must be {KIND!r}, got {value[:80]!r}; write that")
    return value


class DatasetExperiment(SpecModel):
    """One experiment: a training set, the steps that make it, and the training of a model."""

    api_version: Annotated[str, AfterValidator(_check_api_version)]
    kind: Annotated[str, AfterValidator(_check_kind)]
    metadata: Metadata
    spec: ExperimentSpec
    status: ExperimentStatus | None = None
