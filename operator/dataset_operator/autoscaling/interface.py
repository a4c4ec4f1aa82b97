"""The input and the output of the autoscaling policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipeline_runtime.config import HEADROOM

# Reasons, each one word: the HPA's where it has one (k8s.io/api/autoscaling/v2).
DESIRED_WITHIN_RANGE = "DesiredWithinRange"
TOO_MANY_REPLICAS = "TooManyReplicas"
TOO_FEW_REPLICAS = "TooFewReplicas"
SCALE_UP_LIMIT = "ScaleUpLimit"
SCALE_DOWN_LIMIT = "ScaleDownLimit"
SCALE_DOWN_STABILIZED = "ScaleDownStabilized"
SCALE_UP_STABILIZED = "ScaleUpStabilized"
SCALING_DISABLED = "ScalingDisabled"
VALID_METRIC_FOUND = "ValidMetricFound"
METRICS_UNKNOWN = "MetricsUnknown"
UNSCHEDULABLE = "Unschedulable"
SATURATION_POINT_REACHED = "SaturationPointReached"

Stage = Literal["Model", "Transfer", "Collate", "Ordering", "RankSkew", "Storage", "Inference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """`ScalingPolicy` of the manifest: the most that a number may change within a period."""

    type: Literal["Percent", "Workers"]
    value: int
    period_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """`ScalingRules` of the manifest, with defaults filled in."""

    stabilization_seconds: float
    limits: tuple[RateLimit, ...] = ()
    select: Literal["Max", "Min", "Disabled"] = "Max"


# The interval between two runs of the autoscaling policy.
PERIOD_SECONDS = 15.0
# The policy may run this much early, so a window that ends within this time counts as over.
EARLY_SECONDS = 2.0
# The HPA's default window before it removes pods: all recommendations within it must agree.
SCALE_DOWN_WINDOW_SECONDS = 300.0
# At most a quarter per window; dask's adaptive scaling limits each step likewise (`Adaptive`).
SCALE_DOWN_PERCENT = 25
UP = Direction(stabilization_seconds=0.0)
DOWN = Direction(
    stabilization_seconds=SCALE_DOWN_WINDOW_SECONDS,
    limits=(
        RateLimit(
            type="Percent", value=SCALE_DOWN_PERCENT, period_seconds=SCALE_DOWN_WINDOW_SECONDS
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of the autoscaling policy that a spec gives.

    Attributes:
        target_utilization: of the GPUs, 0 to 1. Advice names it, and GPU-only mode aims at it.
        headroom: spare workers, as a share of the required workers.
        is_ordered: True if `preserveOrder` is on, so that a late chunk delays those after it.
        field: the part of the spec with the bounds, in messages.
    """

    min_workers: int
    max_workers: int
    target_utilization: float = 0.95
    headroom: float = HEADROOM
    up: Direction = UP
    down: Direction = DOWN
    is_ordered: bool = False
    field: str = "dataWorkers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A number of workers, with its reason."""

    workers: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The stage that limits the trainers where more data workers would not help."""

    stage: Stage
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result of one run of the autoscaling policy.

    Attributes:
        desired: workers to request.
        recommended: the number that follows from the signals alone.
        active: whether the signals are known well enough to act on; if not, why.
        limited: the rule that made `desired` differ from the recommendation; None: no rule did.
        bottleneck: None if it is the number of workers, or is not known.
    """

    desired: int
    recommended: Verdict
    active: Verdict
    limited: Verdict | None = None
    bottleneck: Bottleneck | None = None
    inputs: dict[str, float] = field(default_factory=dict)
