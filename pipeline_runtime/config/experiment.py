"""The DatasetExperiment as a whole: metadata, spec, status, and the names of its API.

Spec and status mirror `crds/datasetexperiments.yaml`; within v1alpha1 fields are only ever added.
Metadata and status accept the fields that the API server and newer operators write, so that the
output of `kubectl get -o yaml` is a manifest too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, StringConstraints
from pydantic.alias_generators import to_camel

from pipeline_runtime.config.base import (
    MAX_SAFE_INTEGER,
    MAX_STRING_CHARS,
    ConsumerModel,
    Count,
    Label,
    Percent,
    PositiveInt,
    SpecModel,
    check_unique_names,
    rule_error,
)
from pipeline_runtime.config.cluster import (
    Autoscaling,
    Code,
    DataWorkers,
    Env,
    EnvFrom,
    Head,
    ImageName,
    PullSecrets,
    Storage,
    Trainers,
)
from pipeline_runtime.config.dataset import Catalog, Dataset, IcebergSource
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
MAX_STATUS_METRICS = 16
MAX_CURRENCY_CHARS = 16

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"  # RFC 1035 label, as Services are named
SHA256_PATTERN = r"^[0-9a-f]{64}$"
# The API conventions ask for non-integers as strings: floats do not round-trip between clients.
DECIMAL_PATTERN = r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)
]
LargeCount = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=317)]
DecimalString = Annotated[str, StringConstraints(max_length=32, pattern=DECIMAL_PATTERN)]
StatusText = Annotated[str, StringConstraints(max_length=1024)]
# Bounded by a storage root, a URI below it, an experiment's name, and the separators.
ArtifactsUri = Annotated[str, StringConstraints(max_length=2 * MAX_STRING_CHARS + 64)]
InputName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
TimeText = Annotated[str, StringConstraints(max_length=64)]
Sha256 = Annotated[str, StringConstraints(pattern=SHA256_PATTERN)]
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
        given = {to_camel(name): getattr(self, name) for name in type(self).model_fields}
        return {name: each for name, each in given.items() if isinstance(each, ConsumerModel)}

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
        """The catalogs of the table and the side tables."""
        used = {source.catalog for _, source in self._find_iceberg()}
        return tuple(catalog for catalog in self.catalogs if catalog.name in used)

    def _find_iceberg(self) -> Iterator[tuple[str, IcebergSource]]:
        """Yield the path and source of each Iceberg table."""
        if self.dataset.iceberg:
            yield "dataset.iceberg", self.dataset.iceberg
        for index, step in enumerate(self.pipeline):
            for config in step.given():
                side_table = config.find_side_table()
                if side_table and side_table.iceberg:
                    yield f"pipeline[{index}].{config.kind()}.iceberg", side_table.iceberg

    def _check_catalogs(self) -> Iterator[tuple[str, str]]:
        names = [catalog.name for catalog in self.catalogs]
        for path, source in self._find_iceberg():
            if source.catalog not in names:
                yield (
                    f"{path}.catalog",
                    "must be the name of a catalog in spec.catalogs, got "
                    f"{str(source.catalog)[:80]!r}; add it there",
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


class StatusModel(SpecModel):
    """A part of the status; fields of newer operators are ignored, so that a downgrade works."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusModel):
    """One condition, like metav1.Condition."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=316)]
    """Name of the condition."""
    status: Literal["True", "False", "Unknown"]
    """`True` if the condition holds; `Unknown` if the operator cannot tell."""
    observed_generation: LargeCount | None = None
    """Generation of the spec that the condition describes."""
    last_transition_time: Annotated[str, StringConstraints(max_length=64)]
    """Time when `status` last changed."""
    reason: Annotated[str, StringConstraints(max_length=1024)]
    """Reason, as one CamelCase word."""
    message: Annotated[str, StringConstraints(max_length=32_768)]
    """Explanation, as a sentence with the numbers."""


class DrainingStatus(StatusModel):
    """A draining data worker: it gets no new work, and ends once its present work is done."""

    name: StatusText
    """Name of its pod."""
    ip: Annotated[str, StringConstraints(max_length=64)] | None = None
    """Address by which Ray knows the pod, if it has one."""
    time: TimeText
    """Time since which it is draining."""
    lost: bool = False
    """True if it ends by itself, or cannot end since its node is lost; another pod replaces it."""


class WorkerStatus(StatusModel):
    """The numbers of current, ready and desired data workers."""

    current_replicas: Count = 0
    """Pods that exist."""
    ready_replicas: Count = 0
    """Pods that are ready for work."""
    desired_replicas: Count = 0
    """Desired pods."""
    draining: Annotated[tuple[DrainingStatus, ...], Field(max_length=32)] = ()
    """Pods that are draining."""
    draining_to: Count | None = None
    """Number of pods that remain once these have ended."""


class RecommendationStatus(StatusModel):
    """A recommended number of workers, which holds until the next one."""

    time: TimeText
    """Time of the recommendation."""
    replicas: Count
    """Recommended workers."""


class MoveStatus(StatusModel):
    """A change of the number of workers."""

    time: TimeText
    """Time when the change was observed."""
    before: Count
    """Desired workers before the change."""
    after: Count
    """Desired workers after the change."""


class SaturationPointStatus(StatusModel):
    """The saturation point: a number of workers beyond which throughput did not rise."""

    replicas: Count
    """Fewest workers that reach nearly the full throughput."""
    until_time: TimeText
    """Time when a few more workers are tried."""
    rows_per_second: DecimalString
    """Throughput of these workers."""
    count: Count = 1
    """Number of consecutive times that it was found."""


class ProbeStatus(StatusModel):
    """A trial of another number of workers, to measure its effect on the GPUs."""

    time: TimeText
    """Time when the trial began."""
    before: Count
    """Workers before the trial."""
    after: Count
    """Workers during the trial."""
    utilization: DecimalString
    """Utilization of the GPUs before the trial, 0 to 1."""


class ProbeFailureStatus(StatusModel):
    """A trial that did not help."""

    replicas: Count
    """Number of workers that the trial started from."""
    count: Count
    """Number of consecutive failures."""
    until_time: TimeText
    """Time until which the trial is not repeated."""


class GpuTrialsStatus(StatusModel):
    """Trials of the autoscaling policy that follows the GPUs alone."""

    attempt: Count
    """Attempt whose GPUs were measured."""
    share_percent: Count = 10
    """Size of the next trial's change, in percent of the workers."""
    probe: ProbeStatus | None = None
    """The present trial."""
    failed_up: ProbeFailureStatus | None = None
    """The last failed trial of more workers."""
    failed_down: ProbeFailureStatus | None = None
    """The last failed trial of fewer workers."""


class DecisionInputStatus(StatusModel):
    """A number that a decision was made by."""

    name: InputName
    """Name of the number, such as `productionShare`."""
    value: DecimalString
    """The number."""


class DecisionStatus(StatusModel):
    """A decision that changed the number of workers."""

    time: TimeText
    """Time of the decision."""
    before: Count
    """Desired workers before the change."""
    after: Count
    """Desired workers after the change."""
    reason: StatusText
    """Reason, as one CamelCase word."""
    message: StatusText = ""
    """Explanation, with the numbers."""
    attempt: Count = 0
    """Attempt whose trainers the decision was made for."""
    log_state: StatusText | None = None
    """`Pending` or `Failed` until the decision is in the run's artifacts."""
    inputs: Annotated[
        tuple[DecisionInputStatus, ...], Field(max_length=32), AfterValidator(check_unique_names)
    ] = ()
    """Inputs of the decision, by name, until it is there."""


class ScalingStatus(StatusModel):
    """State of the autoscaler, from which another operator process continues."""

    since_time: TimeText
    """Time from which recommendations are known."""
    verified_replicas: Count = 0
    """Largest number of workers that was observed to help."""
    recommendations: Annotated[tuple[RecommendationStatus, ...], Field(max_length=32)] = ()
    """Recommendations within the longest window."""
    moves: Annotated[tuple[MoveStatus, ...], Field(max_length=16)] = ()
    """Changes within the longest period of a policy."""
    saturation_point: SaturationPointStatus | None = None
    """The saturation point, if one was found."""
    gpu: GpuTrialsStatus | None = None
    """Trials, with `autoscaling.signal: GpuUtilization`."""
    decisions: Annotated[tuple[DecisionStatus, ...], Field(max_length=10)] = ()
    """The latest decisions that changed the number; the run's artifacts hold all of them."""


class MetricStatus(StatusModel):
    """One of the trainer's own metrics, such as the loss."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    """Name of the metric, such as `loss`."""
    value: DecimalString
    """Value, as a decimal string."""


class TrainerStatus(StatusModel):
    """Progress of the training, or of the table that the run writes."""

    progress_percent: Percent | None = None
    """Share of the whole run that is done."""
    estimated_remaining_seconds: LargeCount | None = None
    """Estimated seconds until the end."""
    samples_per_second: DecimalString | None = None
    """Rows per second that all trainers together take, or that are stored."""
    gpu_utilization_percent: Percent | None = None
    """Mean utilization of the GPUs."""
    production_wait_percent: Percent | None = None
    """Share of time that the trainers waited for data."""
    metrics: Annotated[tuple[MetricStatus, ...], Field(max_length=MAX_STATUS_METRICS)] = ()
    """The trainer's own metrics, at most 16."""
    last_update_time: TimeText | None = None
    """Time when these values last changed."""


class OutputStatus(StatusModel):
    """The table that the run writes."""

    rows: LargeCount = 0
    """Rows that are stored so far."""
    files: LargeCount = 0
    """Files of the table that are written so far."""
    bytes: LargeCount = 0
    """Size of these files."""


class AccountedStatus(StatusModel):
    """Time up to which usage is counted, and the resources held then, from which to continue."""

    time: TimeText
    """Time up to which usage is counted."""
    trainers: Count = 0
    """Trainers that held a node at that time."""
    gpus_per_trainer: Count = 0
    """GPUs of each trainer."""
    data_workers: Count = 0
    """Data workers that held a node at that time."""
    gpu_idle_remainder_seconds: DecimalString = "0"
    """Fraction of an idle GPU second that is not yet in `gpuIdleSeconds`."""


class UsageStatus(StatusModel):
    """Resources that all attempts of the present run used, each pod counted once it has a node."""

    gpu_seconds: LargeCount = 0
    """GPUs of trainers times seconds."""
    gpu_measured_seconds: LargeCount = 0
    """GPU seconds for which it is known whether the GPUs worked."""
    gpu_idle_seconds: LargeCount = 0
    """Measured GPU seconds in which the GPUs did not work."""
    data_worker_seconds: LargeCount = 0
    """Data workers times seconds."""
    cost: DecimalString | None = None
    """Cost of GPUs and data workers, at the prices in the operator's settings."""
    currency: Annotated[str, StringConstraints(max_length=MAX_CURRENCY_CHARS)] | None = None
    """Currency of the cost."""
    accounted: AccountedStatus | None = None


class ScaleRequestStatus(StatusModel):
    """The last request for a number of data workers that was applied or refused."""

    id: StatusText
    """Digest of the annotation with the request."""
    time: TimeText
    """Time when the request was applied or refused."""
    state: Literal["Applied", "Refused"]
    """`Applied` if the number became the requested one."""
    message: StatusText = ""
    """The number, or the reason for the refusal."""


class SubmissionStatus(StatusModel):
    """The submitted attempt that has not ended; recorded before Ray gets it."""

    id: StatusText
    """Ray's submission id."""
    head_pod_uid: StatusText
    """The head pod that it was submitted to; another head means that the cluster was lost."""
    time: TimeText
    """Time of the submission."""
    stop_time: TimeText | None = None
    """Time when it was asked to stop; its end is then no failure."""


class HistoryStatus(StatusModel):
    """State of storing the last cluster's events, decisions and last status."""

    state: StatusText | None = None
    """`Pending`, `Kept`, `Failed` or `Skipped`."""
    message: StatusText | None = None
    """Reason why the history is not kept."""
    ray_cluster_uid: StatusText | None = None
    """UID of the RayCluster that the history describes."""
    attempt: Count | None = None
    """The last attempt in the history."""
    time: TimeText | None = None
    """Time when the cluster was to be deleted."""
    pod_name: StatusText | None = None
    """Name of the pod that writes the history, as long as it exists."""


class ExperimentStatus(StatusModel):
    """State that the operator records. The conditions count; `phase` is for printing."""

    observed_generation: LargeCount | None = None
    """Generation of the spec that this status describes."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32)] = ()
    """`Accepted`, `ClusterReady`, `Training` (with `output`: `Writing`), `ScalingActive`,
    `ScalingLimited`, `Suspended`, `Complete`, `Failed`."""
    phase: StatusText | None = None
    """Summary for printing; the operator never reads it."""
    storage_root: StatusText | None = None
    """Base of the run's URIs without a scheme, as it was when the run began."""
    artifacts_uri: ArtifactsUri | None = None
    """Location of its runs' checkpoints, reports and logs; each run has a folder there."""
    ray_cluster_name: StatusText | None = None
    """The RayCluster that runs it."""
    run: Count | None = None
    """Number of the run; rises when a setting that identifies the run changes."""
    run_hash: StatusText | None = None
    """Hash of the settings that identify the run."""
    accepted_digests: Annotated[tuple[Sha256, ...], Field(min_length=1, max_length=2)] | None = None
    """SHA-256 digest of the spec that the run has accepted; two while the operator replaces it."""
    attempt: Count | None = None
    """Number of the attempt; rises with every submission."""
    failures: Count | None = None
    """Failed attempts of this run; counts against `backoffLimit`."""
    first_attempt: Count | None = None
    """The run's first attempt; later ones resume from a checkpoint."""
    submission: SubmissionStatus | None = None
    start_time: TimeText | None = None
    """Time when the run began or was last resumed; `activeDeadlineSeconds` counts from it."""
    training_start_time: TimeText | None = None
    """Time when a driver of this run first ran."""
    last_failure_time: TimeText | None = None
    """Time when an attempt last failed; the next one waits for the back-off."""
    unreachable_time: TimeText | None = None
    """Time since which a running head has not answered the operator."""
    completion_time: TimeText | None = None
    """Time when the run ended; `ttlSecondsAfterFinished` counts from it."""
    gpus: Count | None = None
    """GPUs of all trainers together."""
    data_workers: WorkerStatus | None = None
    last_scale_time: Annotated[str, StringConstraints(max_length=64)] | None = None
    """Time when the desired number last changed."""
    scale_request: ScaleRequestStatus | None = None
    scaling: ScalingStatus | None = None
    trainer: TrainerStatus | None = None
    output: OutputStatus | None = None
    usage: UsageStatus | None = None
    history: HistoryStatus | None = None


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
