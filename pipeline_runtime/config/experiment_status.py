"""The status of a DatasetExperiment, which the operator records.

This is its only definition. The CRD (`make crd`) and the reference in docs/manifest.md (`make
steps`) are written from these models and their docstrings; the operator, its metrics and the
commands parse a stored status into them. Within v1alpha1 fields are only ever added. The models
accept the fields that newer operators write, so that the output of `kubectl get -o yaml` is a
manifest.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from pipeline_runtime.config.base import (
    MAX_SAFE_INTEGER,
    MAX_STRING_CHARS,
    Count,
    Label,
    Percent,
    SpecModel,
    check_unique_names,
)
from pipeline_runtime.config.cluster import MAX_INFERENCE_GROUPS, GroupName
from pipeline_runtime.config.dataset import ICEBERG_TABLE_PATTERN, SnapshotId

MAX_STATUS_METRICS = 16
# Many more tables than a pipeline joins.
MAX_STATUS_SNAPSHOTS = 16
MAX_STATUS_MODELS = 16
MAX_CURRENCY_CHARS = 16

SHA256_PATTERN = r"^[0-9a-f]{64}$"
# The API conventions ask for non-integers as strings: floats do not round-trip between clients.
DECIMAL_PATTERN = r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"

LargeCount = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
DecimalString = Annotated[str, StringConstraints(max_length=32, pattern=DECIMAL_PATTERN)]
StatusText = Annotated[str, StringConstraints(max_length=1024)]
# Bounded by a storage root, a URI below it, an experiment's name, and the separators.
ArtifactsUri = Annotated[str, StringConstraints(max_length=2 * MAX_STRING_CHARS + 64)]
InputName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
# Names of folders and files without spaces, quotes, backslashes and '='.
MODEL_NAME_PATTERN = r"^[!#-<>-\[\]-~]+$"
ModelName = Annotated[str, StringConstraints(max_length=128, pattern=MODEL_NAME_PATTERN)]
TableName = Annotated[str, StringConstraints(max_length=512, pattern=ICEBERG_TABLE_PATTERN)]
TimeText = Annotated[str, StringConstraints(max_length=64)]
Sha256 = Annotated[str, StringConstraints(pattern=SHA256_PATTERN)]


class StatusModel(SpecModel):
    """A part of the status; fields of newer operators are ignored, so that a downgrade works."""

    model_config = ConfigDict(extra="ignore")

    def change(self, **fields: object) -> Self:
        """Return a copy with changed fields, by their Python names; None clears a field."""
        known = type(self).model_fields
        if unknown := fields.keys() - known.keys():
            raise TypeError(f"{type(self).__name__} has no fields {sorted(unknown)}")
        cleared = {name for name, value in fields.items() if value is None}
        defaults = {name: known[name].default for name in cleared}
        copied = self.model_copy(update={**fields, **defaults})
        copied.model_fields_set.difference_update(cleared)
        return copied


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
    """A draining pod: it gets no new work, and ends once its present work is done."""

    name: StatusText
    """Name of its pod."""
    ip: Annotated[str, StringConstraints(max_length=64)] | None = None
    """IP address of the pod, if it has one."""
    time: TimeText
    """Time since which it is draining."""
    lost: bool = False
    """True if another pod replaces it, as when its node is lost."""


class WorkerStatus(StatusModel):
    """The numbers of data workers."""

    current_replicas: Count = 0
    """Pods that exist."""
    ready_replicas: Count = 0
    """Pods that are ready for work."""
    desired_replicas: Count | None = None
    """Desired pods."""
    draining: Annotated[tuple[DrainingStatus, ...], Field(max_length=32)] = ()
    """Pods that are draining."""
    draining_to: Count | None = None
    """Pods that remain then."""


class InferenceWorkerStatus(WorkerStatus):
    """The numbers of pods of a group of inference workers, and why."""

    name: GroupName
    """Name of the group."""
    last_scale_time: TimeText | None = None
    """Time when its desired number last changed."""
    reason: StatusText | None = None
    """Reason for the number, as one CamelCase word."""
    message: StatusText | None = None
    """Explanation, with the numbers of its time."""


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
    """Progress of the training, or of the table that the run writes.

    Non-integers are decimal strings. With `output` it has the first four fields and
    `lastUpdateTime`.
    """

    progress_percent: Percent | None = None
    """Share of the whole run that is done."""
    estimated_remaining_seconds: LargeCount | None = None
    """Estimated seconds until the end."""
    estimated_remaining: Annotated[str, StringConstraints(max_length=32)] | None = None
    """The same in one unit, such as `45m`, for a column of `kubectl get`."""
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
    """The table that the run writes.

    The numbers change at most every 30 seconds. The last ones are those of the driver's log.
    """

    rows: LargeCount = 0
    """Rows that are stored so far."""
    files: LargeCount = 0
    """Files of the table that are written so far."""
    bytes: LargeCount = 0
    """Size of these files."""
    partitions: Count | None = None
    """With `mode: OverwritePartitions`, partitions of the source that the table is to have."""
    complete_partitions: Count | None = None
    """Committed partitions of them, by this run or by earlier ones."""
    snapshot_id: SnapshotId | None = None
    """Snapshot of an Iceberg table that has the rows, once they are committed."""


class SnapshotStatus(StatusModel):
    """A snapshot of an Iceberg table that the run reads, as the dataset or as a side of a join.

    The driver reports them. The cache table of the step `materialize` is one of the tables.
    """

    catalog: Label
    """Catalog of the table."""
    table: TableName
    """The table, as `namespace.table`."""
    snapshot_id: SnapshotId
    """The snapshot, which all attempts of the run read."""


class ModelStatus(StatusModel):
    """A model that a step of the run calls. The driver reports it."""

    experiment: Label | None = None
    """Experiment that trained the model, if the manifest names it."""
    run: ModelName | None = None
    """Run that trained the model."""
    file: ModelName
    """The checkpoint's folder, or the file, by its name."""
    sha256: Sha256
    """SHA-256 of the checkpoint's state, or of the file; all attempts of the run call this one."""


class MaterializationStatus(StatusModel):
    """The cache table of the step `materialize`.

    The driver reports it. The condition `Materialized` says what it means for the run.
    """

    catalog: Label
    """Catalog of the table."""
    table: TableName
    """The table, as `namespace.table`."""
    state: Literal["Hit", "Partial", "Miss"]
    """`Hit` if the table had all rows when the latest attempt began, `Miss` if it had none."""
    partitions: Count
    """Partitions of the source that the run needs."""
    complete_partitions: Count
    """Partitions of them whose rows the table has."""
    snapshot_id: SnapshotId | None = None
    """Snapshot of the table that the attempt reads or found; absent while rows are computed."""


class AccountedGroupStatus(StatusModel):
    """Pods of a group of a list that held a node at that time."""

    name: Label
    """Role of its pods, `inference-` and the group's name."""
    replicas: Count = 0
    """Number of the pods."""
    gpus_per_replica: Count = 0
    """GPUs of each pod."""


class AccountedStatus(StatusModel):
    """Time up to which usage is counted, and the pods that held a node then."""

    time: TimeText
    """Time up to which usage is counted."""
    trainers: Count = 0
    """Trainers."""
    gpus_per_trainer: Count = 0
    """GPUs of each trainer."""
    data_workers: Count = 0
    """Data workers."""
    groups: Annotated[
        tuple[AccountedGroupStatus, ...],
        Field(max_length=MAX_INFERENCE_GROUPS),
        AfterValidator(check_unique_names),
    ] = ()
    """Groups of `inferenceWorkers`."""
    gpu_idle_remainder_seconds: DecimalString = "0"
    """Idle GPU seconds that `gpuIdleSeconds` does not have yet."""


class UsageStatus(StatusModel):
    """Resources that all attempts of the present run used; the head does not count.

    A pod counts from when it has a node until it has left it, ready or not. The sums are written
    with other changes, and at least once a minute while pods are held. Pods that ended while no
    operator looked for more than two minutes are not counted from then on.

    The idle share is `gpuIdleSeconds` divided by `gpuMeasuredSeconds`. A GPU is idle for the share
    of time that its utilisation leaves; if that is unknown, in which trainers waited for data.
    """

    gpu_seconds: LargeCount = 0
    """GPUs of trainers and inference workers times seconds."""
    gpu_measured_seconds: LargeCount = 0
    """GPU seconds for which it is known whether the GPUs worked."""
    gpu_idle_seconds: LargeCount = 0
    """Measured GPU seconds in which the GPUs did not work."""
    data_worker_seconds: LargeCount = 0
    """Data workers times seconds."""
    inference_worker_seconds: LargeCount = 0
    """Inference workers times seconds."""
    cost: DecimalString | None = None
    """Cost of all GPUs and of data workers, at the prices in the operator's settings."""
    currency: Annotated[str, StringConstraints(max_length=MAX_CURRENCY_CHARS)] | None = None
    """Currency of the cost."""
    accounted: AccountedStatus | None = None


class ScaleRequestStatus(StatusModel):
    """The last request for a number of data workers that was applied or refused.

    `lastmile scale` makes such requests.
    """

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
    """Submission id of the attempt in Ray."""
    head_pod_uid: StatusText
    """The head pod that it was submitted to; another head means that the cluster was lost."""
    time: TimeText
    """Time of the submission."""
    stop_time: TimeText | None = None
    """Time when it was asked to stop; its end is then no failure."""


class HistoryStatus(StatusModel):
    """State of storing the last cluster's events, decisions and last status.

    docs/operating/history.md describes what is stored.
    """

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
    """`Accepted`, `ClusterReady`, `Training` (with `output`: `Writing`), `Materialized` (with the
    step `materialize`), `ScalingActive`, `ScalingLimited`, `Suspended`, `Complete`, `Failed`."""
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
    """GPUs of all trainers together; 0 with `output`."""
    data_workers: WorkerStatus | None = None
    inference_workers: Annotated[
        tuple[InferenceWorkerStatus, ...],
        Field(max_length=MAX_INFERENCE_GROUPS),
        AfterValidator(check_unique_names),
    ] = ()
    """Pods of each group of inference workers."""
    last_scale_time: Annotated[str, StringConstraints(max_length=64)] | None = None
    """Time when the desired number last changed."""
    scale_request: ScaleRequestStatus | None = None
    scaling: ScalingStatus | None = None
    trainer: TrainerStatus | None = None
    output: OutputStatus | None = None
    snapshots: Annotated[tuple[SnapshotStatus, ...], Field(max_length=MAX_STATUS_SNAPSHOTS)] = ()
    """Snapshots of the Iceberg tables that the run reads, at most 16; `snapshots.json` in the run's
    folder has all."""
    models: Annotated[tuple[ModelStatus, ...], Field(max_length=MAX_STATUS_MODELS)] = ()
    """Models that the run's steps call, at most 16; `snapshots.json` in the run's folder has
    all."""
    materialization: MaterializationStatus | None = None
    usage: UsageStatus | None = None
    history: HistoryStatus | None = None

    def find(self, kind: str) -> Condition | None:
        """Return the condition of a type; None if there is none."""
        return next((known for known in self.conditions if known.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Return whether a condition exists and is true."""
        found = self.find(kind)
        return found is not None and found.status == "True"
