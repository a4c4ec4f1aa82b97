"""The DatasetExperiment: its models, and how a manifest is read, checked and identified.

Both packages import from here; this imports neither ray nor torch. Reading runs from left to right:
`reading.manifest` (files) → `texts.yaml_documents` → `reading.overrides` (--set) →
`reading.validation` (models) → `reading.wording`.
"""

from pipeline_runtime.config.base import MAX_SAFE_INTEGER, RuleSet, SpecModel, StoreUri
from pipeline_runtime.config.cluster import (
    DEFAULT_DATA_WORKER_CPUS,
    HEADROOM,
    Autoscaling,
    Code,
    DataWorkers,
    EnvFromSource,
    EnvVar,
    Head,
    ObjectReference,
    PodGroup,
    Resources,
    ScalingPolicy,
    ScalingRules,
    ScalingSignal,
    Storage,
    Trainers,
)
from pipeline_runtime.config.dataset import (
    Catalog,
    Dataset,
    IcebergSource,
    ParquetSource,
    S3Options,
    SourceChoice,
)
from pipeline_runtime.config.experiment import (
    API_VERSION,
    GROUP,
    KIND,
    VERSION,
    DatasetExperiment,
    ExperimentSpec,
    Metadata,
)
from pipeline_runtime.config.experiment_status import (
    MAX_STATUS_SNAPSHOTS,
    AccountedStatus,
    Condition,
    DecisionInputStatus,
    DecisionStatus,
    DrainingStatus,
    ExperimentStatus,
    HistoryStatus,
    MaterializationStatus,
    MetricStatus,
    OutputStatus,
    ScaleRequestStatus,
    ScalingStatus,
    SnapshotStatus,
    StatusModel,
    SubmissionStatus,
    TrainerStatus,
    UsageStatus,
    WorkerStatus,
)
from pipeline_runtime.config.identity.location import locate_artifacts
from pipeline_runtime.config.identity.run_hash import (
    compare_configs,
    diff_configs,
    hash_config,
    hash_parts,
    run_config,
    run_hash,
    seed_group,
    upgrade_config,
)
from pipeline_runtime.config.output import IcebergTarget, Output, ParquetTarget
from pipeline_runtime.config.pods.pod_template import (
    RAY_CONTAINER,
    check_template_security,
    is_template,
)
from pipeline_runtime.config.quantities import parse_quantity
from pipeline_runtime.config.reading.free_fields import has_same_free_fields, is_too_large
from pipeline_runtime.config.reading.manifest import LoadedManifest, load_manifests, parse_manifests
from pipeline_runtime.config.reading.overrides import apply_overrides, complete_override
from pipeline_runtime.config.reading.validation import (
    ACCEPTED_VARIABLE,
    parse_experiment,
    parse_stored,
)
from pipeline_runtime.config.reading.wording import locate_error
from pipeline_runtime.config.steps import PipelineOptions, Step
from pipeline_runtime.config.texts.distribution import DISTRIBUTION
from pipeline_runtime.config.texts.plain_text import clean
from pipeline_runtime.config.texts.yaml_documents import format_path, read_documents
from pipeline_runtime.config.training import (
    Artifacts,
    CheckpointPolicy,
    Evaluation,
    Shuffle,
    Training,
)
from pipeline_runtime.errors import ManifestError, Problem

__all__ = [
    "ACCEPTED_VARIABLE",
    "API_VERSION",
    "DEFAULT_DATA_WORKER_CPUS",
    "DISTRIBUTION",
    "GROUP",
    "HEADROOM",
    "KIND",
    "MAX_SAFE_INTEGER",
    "MAX_STATUS_SNAPSHOTS",
    "RAY_CONTAINER",
    "VERSION",
    "AccountedStatus",
    "Artifacts",
    "Autoscaling",
    "Catalog",
    "CheckpointPolicy",
    "Code",
    "Condition",
    "DataWorkers",
    "Dataset",
    "DatasetExperiment",
    "DecisionInputStatus",
    "DecisionStatus",
    "DrainingStatus",
    "EnvFromSource",
    "EnvVar",
    "Evaluation",
    "ExperimentSpec",
    "ExperimentStatus",
    "Head",
    "HistoryStatus",
    "IcebergSource",
    "IcebergTarget",
    "LoadedManifest",
    "ManifestError",
    "MaterializationStatus",
    "Metadata",
    "MetricStatus",
    "ObjectReference",
    "Output",
    "OutputStatus",
    "ParquetSource",
    "ParquetTarget",
    "PipelineOptions",
    "PodGroup",
    "Problem",
    "Resources",
    "RuleSet",
    "S3Options",
    "ScaleRequestStatus",
    "ScalingPolicy",
    "ScalingRules",
    "ScalingSignal",
    "ScalingStatus",
    "Shuffle",
    "SnapshotStatus",
    "SourceChoice",
    "SpecModel",
    "StatusModel",
    "Step",
    "Storage",
    "StoreUri",
    "SubmissionStatus",
    "TrainerStatus",
    "Trainers",
    "Training",
    "UsageStatus",
    "WorkerStatus",
    "apply_overrides",
    "check_template_security",
    "clean",
    "compare_configs",
    "complete_override",
    "diff_configs",
    "format_path",
    "has_same_free_fields",
    "hash_config",
    "hash_parts",
    "is_template",
    "is_too_large",
    "load_manifests",
    "locate_artifacts",
    "locate_error",
    "parse_experiment",
    "parse_manifests",
    "parse_quantity",
    "parse_stored",
    "read_documents",
    "run_config",
    "run_hash",
    "seed_group",
    "upgrade_config",
]
