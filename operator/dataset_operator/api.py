"""Names that are visible outside: labels, roles, ports, reasons, the field manager.

Group, version and kind are in `pipeline_runtime.config`, since the runtime reads the manifest too.
"""

from __future__ import annotations

from pipeline_runtime.config import GROUP

FIELD_MANAGER = "lastmile-operator"

# A pod's role in its cluster, which is also the name of its worker group in KubeRay. `groups` has
# the table of all roles.
Role = str
HEAD: Role = "head"
TRAINERS: Role = "trainers"
DATA_WORKERS: Role = "data-workers"
INFERENCE: Role = "inference"

EXPERIMENT_LABEL = f"{GROUP}/experiment"
ROLE_LABEL = f"{GROUP}/role"
# On a history pod: the name of the cluster whose history it writes.
HISTORY_LABEL = f"{GROUP}/history"
HISTORY_ANNOTATION = f"{GROUP}/history"
RENDERER_ANNOTATION = f"{GROUP}/renderer-version"
# On a RayCluster: what it was rendered from, and the result, so that edits of either are detected.
CLUSTER_HASH_ANNOTATION = f"{GROUP}/cluster-hash"
RENDERED_ANNOTATION = f"{GROUP}/rendered"
TRAINERS_ANNOTATION = f"{GROUP}/trainers"  # REPLICASxGPUS, such as 2x8
# On objects whose content the operator reads back: see `sealing`.
SEAL_ANNOTATION = f"{GROUP}/seal"
# On an experiment: a requested number of data workers and an id of the request: 20/2026-01-01.
SCALE_ANNOTATION = f"{GROUP}/scale"
# Kueue's names: a cluster gets its experiment's queue, and may change its size (elastic jobs).
KUEUE_LABELS = "kueue.x-k8s.io/"
KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KUEUE_ELASTIC_ANNOTATION = "kueue.x-k8s.io/elastic-job"
# Set by KubeRay on every pod of a cluster.
RAY_CLUSTER_LABEL = "ray.io/cluster"
# The only Ray node label that also sets the budget of a Ray Data execution.
RAY_SUBCLUSTER_LABEL = "ray-subcluster"
DATA_SUBCLUSTER = "data"
TRAINING_SUBCLUSTER = "training"
INFERENCE_SUBCLUSTER = "inference"

RAY_API_VERSION = "ray.io/v1"
# KubeRay's condition of a cluster for which it cannot create or delete a pod.
REPLICA_FAILURE = "ReplicaFailure"
# The key of a cluster's token in its Secret, by which KubeRay finds it.
TOKEN_KEY = "auth_token"
CONFIG_KEY = "experiment.json"
RUN_KEY = "run"

GCS_PORT = 6379
RAY_METRICS_PORT = 8080
DASHBOARD_PORT = 8265
RUNTIME_METRICS_PORT = 9464
CLIENT_PORT = 10001

FINALIZER = f"{GROUP}/driver"

# The types of conditions, then their reasons and those of events.
ACCEPTED = "Accepted"
CLUSTER_READY = "ClusterReady"
TRAINING = "Training"
WRITING = "Writing"  # in place of Training, for an experiment that writes a table
MATERIALIZED = "Materialized"  # for an experiment with the step materialize
SCALING_ACTIVE = "ScalingActive"
SCALING_LIMITED = "ScalingLimited"
SUSPENDED = "Suspended"
COMPLETE = "Complete"
FAILED = "Failed"

VALID_SPEC = "ValidSpec"
INVALID_SPEC = "InvalidSpec"
UNKNOWN_FIELDS = "UnknownFields"
CHANGE_PENDING = "ChangePending"
CLUSTER_CREATING = "ClusterCreating"
CLUSTER_REFUSED = "ClusterRefused"
OWNED_OBJECT_REFUSED = "OwnedObjectRefused"
CLUSTER_CORRECTED = "ClusterCorrected"
NOT_CORRECTED = "NotCorrected"
SEAL_BROKEN = "SealBroken"
NAME_COLLISION = "NameCollision"
WAITING_FOR_PODS = "WaitingForPods"
WAITING_FOR_QUEUE = "WaitingForQueue"
PODS_READY = "PodsReady"
RAY_UNREACHABLE = "RayUnreachable"
CLUSTER_LOST = "ClusterLost"
RELEASED = "Released"
SUBMITTED = "Submitted"
RUNNING = "Running"
GPUS_MISSING = "GpusMissing"
CHECKPOINTS_DAMAGED = "CheckpointsDamaged"
HIT = "Hit"
COMPUTED = "Computed"
COMPUTING = "Computing"
INCOMPLETE = "Incomplete"
NOT_REPORTED = "NotReported"
RETRYING = "Retrying"
STOPPING = "Stopping"
SCALED = "Scaled"
SCALING_DISABLED = "ScalingDisabled"
SCALE_REQUESTED = "ScaleRequested"
SCALE_REFUSED = "ScaleRefused"
BOTTLENECK_ELSEWHERE = "BottleneckElsewhere"
SUSPENDED_BY_SPEC = "SuspendedBySpec"
RESUMED = "Resumed"
SUCCEEDED = "Succeeded"
JOB_FAILED = "JobFailed"
OUT_OF_MEMORY = "OutOfMemory"
NODE_LOST = "NodeLost"
BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
DEADLINE_EXCEEDED = "DeadlineExceeded"
PRE_RUNNING_DEADLINE_EXCEEDED = "PreRunningDeadlineExceeded"
CHECKPOINT_REFUSED = "CheckpointRefused"
OUTPUT_REFUSED = "OutputRefused"
NEW_RUN = "NewRun"
REOPENED = "Reopened"
HISTORY_FAILED = "HistoryFailed"
