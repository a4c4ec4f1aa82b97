"""The DatasetExperiment as a whole: metadata, spec, status, and the names of its API.

Spec and status mirror `crds/datasetexperiments.yaml`; within v1alpha1 fields are only ever added.
Metadata and status take what the API server and newer operators write, so that the output of
`kubectl get -o yaml` is a manifest too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, StringConstraints

from pipeline_runtime.config.base import (
    MAX_INT64,
    MAX_STRING_CHARS,
    Count,
    Percent,
    PositiveInt,
    SpecModel,
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
from pipeline_runtime.config.dataset import Dataset
from pipeline_runtime.config.steps import PipelineOptions, Step
from pipeline_runtime.config.training import Artifacts, Training

GROUP = "experiments.lastmile.dev"
VERSION = "v1alpha1"
KIND = "DatasetExperiment"
API_VERSION = f"{GROUP}/{VERSION}"

# Pods and Services derive theirs from it: 63 less "-data-workers-" and what KubeRay appends.
MAX_NAME_CHARS = 40
MAX_STEPS = 256
MAX_STATUS_METRICS = 16
MAX_CURRENCY_CHARS = 16

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"  # RFC 1035 label, as Services are named
NAMESPACE_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
# Non-integers in status, as the API conventions ask: floats do not round-trip between clients.
DECIMAL_PATTERN = r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)
]
Namespace = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=NAMESPACE_PATTERN)
]
Count64 = Annotated[int, Field(ge=0, le=MAX_INT64)]
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=317)]
DecimalString = Annotated[str, StringConstraints(max_length=32, pattern=DECIMAL_PATTERN)]
StatusText = Annotated[str, StringConstraints(max_length=1024)]
# A storage root, a URI below it and an experiment's name, with what joins them.
ArtifactsUri = Annotated[str, StringConstraints(max_length=2 * MAX_STRING_CHARS + 64)]
InputName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
TimeText = Annotated[str, StringConstraints(max_length=64)]
_LABEL_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


class Metadata(SpecModel):
    """The object's metadata: what a person sets, and what the API server adds to it."""

    name: Name
    namespace: Namespace | None = None
    labels: dict[LabelName, str] | None = None
    annotations: dict[LabelName, str] | None = None
    # Set by the API server or by other tools; read so that its own output can be fed back.
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
    """What a person asks for: the data side, which a laptop runs too, and the cluster side."""

    suspend: bool = False
    """True releases the cluster; the run goes on from its checkpoint when it is false again."""
    update_policy: Literal["AfterRun", "Restart"] = "AfterRun"
    """An edit of a running experiment waits for its end (`AfterRun`) or stops it and starts anew
    (`Restart`)."""
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
    dataset: Dataset
    pipeline: Annotated[tuple[Step, ...], Field(max_length=MAX_STEPS)] = ()
    """Steps in order, at most 256, each a mapping with one key."""
    pipeline_options: PipelineOptions = Field(default_factory=PipelineOptions)
    training: Training = Field(default_factory=Training)
    trainers: Trainers = Field(default_factory=Trainers)
    data_workers: DataWorkers = Field(default_factory=DataWorkers)
    head: Head = Field(default_factory=Head)
    autoscaling: Autoscaling = Field(default_factory=Autoscaling)
    artifacts: Artifacts = Field(default_factory=Artifacts)
    backoff_limit: Count = 2
    """Failures before the experiment is `Failed`."""
    active_deadline_seconds: PositiveInt | None = None
    """The whole experiment may take so long, waiting included."""
    pre_running_deadline_seconds: PositiveInt | None = None
    """It may wait so long before training starts; less than `activeDeadlineSeconds`."""
    ttl_seconds_after_finished: Count | None = None
    """A finished experiment is deleted after so long."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from self._check_env_names()
        yield from self._check_deadlines()
        if self.training.shuffle.unit == "request" and not self.dataset.request_key:
            yield (
                "training.shuffle.unit",
                "must come with dataset.requestKey to be 'request', got none; add it",
            )

    def _check_env_names(self) -> Iterator[tuple[str, str]]:
        seen: dict[str, int] = {}
        for index, variable in enumerate(self.env):
            first = seen.setdefault(variable.name, index)
            if first != index:
                yield (
                    f"env[{index}].name",
                    f"must be unique, got {variable.name!r} in env[{first}] too; remove one",
                )

    def _check_deadlines(self) -> Iterator[tuple[str, str]]:
        whole, start = self.active_deadline_seconds, self.pre_running_deadline_seconds
        if whole is not None and start is not None and start >= whole:
            yield (
                "preRunningDeadlineSeconds",
                f"must be < activeDeadlineSeconds ({whole}), which counts that too, got {start}",
            )


class StatusModel(SpecModel):
    """A part of the status; fields of newer operators are ignored, so that a downgrade works."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusModel):
    """One condition, as metav1.Condition."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=316)]
    """Name of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds; `Unknown` where that cannot be told."""
    observed_generation: Count64 | None = None
    """The spec that it is about."""
    last_transition_time: Annotated[str, StringConstraints(max_length=64)]
    """When `status` changed."""
    reason: Annotated[str, StringConstraints(max_length=1024)]
    """Why, as one CamelCase word."""
    message: Annotated[str, StringConstraints(max_length=32_768)] = ""
    """Why, as a sentence with the numbers."""


class DrainingStatus(StatusModel):
    """A data worker that is to go: it gets no more work, and ends once its own is done."""

    name: StatusText
    """Its pod."""
    ip: Annotated[str, StringConstraints(max_length=64)] | None = None
    """Its address, by which Ray knows it, if it has one."""
    time: TimeText
    """Since when."""
    lost: bool = False
    """It ends by itself, or cannot, as its node is lost; another takes its place."""


class WorkerStatus(StatusModel):
    """How many data workers there are, are ready, and are wanted."""

    current_replicas: Count = 0
    """Pods that there are."""
    ready_replicas: Count = 0
    """Pods that work."""
    desired_replicas: Count = 0
    """Pods that are wanted."""
    draining: Annotated[tuple[DrainingStatus, ...], Field(max_length=32)] = ()
    """Pods that are being taken away."""
    draining_to: Count | None = None
    """How many stay when these have gone."""


class RecommendationStatus(StatusModel):
    """A number of workers that the signals asked for, until the next one."""

    time: TimeText
    """Since when."""
    replicas: Count
    """How many."""


class MoveStatus(StatusModel):
    """A change of the number of workers."""

    time: TimeText
    """When it was seen."""
    before: Count
    """How many were asked for."""
    after: Count
    """How many are asked for since."""


class KneeStatus(StatusModel):
    """A number of workers beyond which no more rows came."""

    replicas: Count
    """The least that brings nearly all."""
    until: TimeText
    """When a few more are tried."""
    rows_per_second: DecimalString
    """What they brought."""
    times: Count = 1
    """How often it was found, one time after another."""


class ProbeStatus(StatusModel):
    """Another number of workers that is tried, to see what it does to the GPUs."""

    time: TimeText
    """Since when."""
    before: Count
    """How many there were."""
    after: Count
    """How many are tried."""
    utilization: DecimalString
    """How busy the GPUs were before, 0 to 1."""


class ProbeFailureStatus(StatusModel):
    """A try that did not help."""

    replicas: Count
    """From so many workers."""
    times: Count
    """How often, one time after another."""
    until: TimeText
    """Until when it is not tried again."""


class GpuLawStatus(StatusModel):
    """What was tried where the number follows the GPUs alone."""

    attempt: Count
    """Whose GPUs."""
    share_percent: Count = 10
    """By so much more the next try is, in percent of the workers."""
    probe: ProbeStatus | None = None
    """What is being tried."""
    failed_up: ProbeFailureStatus | None = None
    """The last try of more that did not help."""
    failed_down: ProbeFailureStatus | None = None
    """The last try of fewer that did not."""


class DecisionStatus(StatusModel):
    """A decision that changed the number of workers."""

    time: TimeText
    """When it was made."""
    before: Count
    """How many were asked for."""
    after: Count
    """How many are asked for since."""
    reason: StatusText
    """Why, as one CamelCase word."""
    message: StatusText = ""
    """Why, with the numbers."""
    attempt: Count = 0
    """Whose trainers asked for it."""
    log: StatusText | None = None
    """`Pending` or `Failed` until it stands in the run's artifacts."""
    inputs: Annotated[dict[InputName, DecimalString], Field(max_length=32)] = Field(
        default_factory=dict
    )
    """What it rests on, by name, until it stands there."""


class ScalingStatus(StatusModel):
    """What the autoscaler remembers, so that another operator goes on as this one."""

    since: TimeText
    """From when on recommendations are known."""
    verified_replicas: Count = 0
    """The most workers that were seen to help."""
    recommendations: Annotated[tuple[RecommendationStatus, ...], Field(max_length=32)] = ()
    """What was recommended in the longest window."""
    moves: Annotated[tuple[MoveStatus, ...], Field(max_length=16)] = ()
    """What changed in the longest period of a policy."""
    knee: KneeStatus | None = None
    """Where more workers stopped helping, if they did."""
    gpu: GpuLawStatus | None = None
    """What was tried, with `autoscaling.signal: GpuUtilization`."""
    decisions: Annotated[tuple[DecisionStatus, ...], Field(max_length=10)] = ()
    """The latest that changed the number; all are in the run's artifacts."""


class MetricStatus(StatusModel):
    """One of the trainer's own metrics, such as the loss."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    """Name of the metric, such as `loss`."""
    value: DecimalString
    """Its value, as a decimal string."""


class TrainerStatus(StatusModel):
    """How the training goes."""

    progress_percentage: Percent | None = None
    """Share of the whole training that is done."""
    estimated_remaining_seconds: Count64 | None = None
    """Seconds till the end, estimated."""
    samples_per_second: DecimalString | None = None
    """Rows taken by all trainers in a second."""
    gpu_utilization_percent: Percent | None = None
    """How busy the GPUs are, their mean."""
    production_wait_percent: Percent | None = None
    """Share of time the trainers waited for data."""
    metrics: Annotated[tuple[MetricStatus, ...], Field(max_length=MAX_STATUS_METRICS)] = ()
    """The trainer's own metrics, at most 16."""
    last_update_time: TimeText | None = None
    """When these last changed."""


class AccountedStatus(StatusModel):
    """Until when usage is added up, and what was held then, for whoever goes on from there."""

    time: TimeText
    """Up to when."""
    trainers: Count = 0
    """Trainers that held a node then."""
    gpus_per_trainer: Count = 0
    """GPUs of each."""
    data_workers: Count = 0
    """Data workers that did."""
    idle_rest: DecimalString = "0"
    """The part of an idle GPU second that does not stand in `gpuIdleSeconds` yet."""


class UsageStatus(StatusModel):
    """What the present run has used so far, over all attempts, from when a pod was given a node."""

    gpu_seconds: Count64 = 0
    """GPUs of trainers times seconds."""
    gpu_measured_seconds: Count64 = 0
    """Of these, those in which it was known whether the GPUs worked."""
    gpu_idle_seconds: Count64 = 0
    """Of the measured ones, those in which they did not."""
    data_worker_seconds: Count64 = 0
    """Data workers times seconds."""
    cost: DecimalString | None = None
    """Of GPUs and data workers, by the prices in the operator's settings."""
    currency: Annotated[str, StringConstraints(max_length=MAX_CURRENCY_CHARS)] | None = None
    """Of the cost."""
    accounted: AccountedStatus | None = None


class ScaleRequestStatus(StatusModel):
    """The last request of a number of data workers that was carried out or refused."""

    id: StatusText
    """Digest of the annotation that asked for it."""
    time: TimeText
    """When that was."""
    state: Literal["Applied", "Refused"]
    """Whether the number became what was asked for."""
    message: StatusText = ""
    """The number, or why it was refused."""


class SubmissionStatus(StatusModel):
    """The attempt that was submitted and has not ended, written down before Ray hears of it."""

    id: StatusText
    """Ray's submission id."""
    head_pod_uid: StatusText
    """The head that it was submitted to: under another one the cluster was lost."""
    time: TimeText
    """When it was submitted."""
    stop_time: TimeText | None = None
    """When it was asked to stop; that it then ends is no failure."""


class HistoryStatus(StatusModel):
    """Whether events, decisions and the last status are in the store, of the last cluster."""

    state: StatusText | None = None
    """`Pending`, `Kept`, `Failed` or `Skipped`."""
    message: StatusText | None = None
    """Why it is not kept."""
    cluster_uid: StatusText | None = None
    """Of the RayCluster that it is about."""
    attempt: Count | None = None
    """The last attempt that it tells of."""
    time: TimeText | None = None
    """When the cluster was to go."""
    pod: StatusText | None = None
    """The pod that writes it, until it is gone."""


class ExperimentStatus(StatusModel):
    """What the operator saw and did. `phase` is for printing; the conditions are the state."""

    observed_generation: Count64 | None = None
    """The spec that this is about."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=32)] = ()
    """`Accepted`, `ClusterReady`, `Training`, `ScalingActive`, `ScalingLimited`, `Suspended`,
    `Complete`, `Failed`."""
    phase: StatusText | None = None
    """For printing; never read."""
    storage_root: StatusText | None = None
    """Where the run's URIs without a scheme start, as it began."""
    artifacts_uri: ArtifactsUri | None = None
    """Where its runs leave checkpoints, reports and logs, each in a folder of its own."""
    ray_cluster_name: StatusText | None = None
    """The RayCluster that runs it."""
    run: Count | None = None
    """Rises with every change of what is trained."""
    run_hash: StatusText | None = None
    """Identity of what is trained."""
    attempt: Count | None = None
    """Rises with every submission."""
    failures: Count | None = None
    """Failed attempts of this run; counts against `backoffLimit`."""
    first_attempt: Count | None = None
    """The run's first attempt; later ones resume from a checkpoint."""
    submission: SubmissionStatus | None = None
    start_time: TimeText | None = None
    """When the run began, or was last resumed; `activeDeadlineSeconds` counts from then."""
    training_start_time: TimeText | None = None
    """When a driver of this run first ran."""
    last_failure_time: TimeText | None = None
    """When an attempt last failed; the next waits for the back-off."""
    unreachable_time: TimeText | None = None
    """Since when a head that is up has not answered the operator."""
    completion_time: TimeText | None = None
    """When the run ended; `ttlSecondsAfterFinished` counts from then."""
    gpus: Count | None = None
    """GPUs that the trainers have, all together."""
    data_workers: WorkerStatus | None = None
    last_scale_time: Annotated[str, StringConstraints(max_length=64)] | None = None
    """When the wanted number last changed."""
    scale_request: ScaleRequestStatus | None = None
    scaling: ScalingStatus | None = None
    trainer: TrainerStatus | None = None
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
    """One experiment: a training set, how it is made, and how a model is trained from it."""

    api_version: Annotated[str, AfterValidator(_check_api_version)]
    kind: Annotated[str, AfterValidator(_check_kind)]
    metadata: Metadata
    spec: ExperimentSpec
    status: ExperimentStatus | None = None
