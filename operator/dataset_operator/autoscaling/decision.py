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
KNEE_REACHED = "KneeReached"

# Rules that a benchmark can leave out, to measure what each one brings.
Rule = Literal["cure", "knee", "growth", "change"]
Stage = Literal["Model", "Transfer", "Collate", "Ordering", "RankSkew", "Storage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """`ScalingPolicy` of the manifest: at most so much change within a period."""

    type: Literal["Percent", "Workers"]
    value: int
    period_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """`ScalingRules` of the manifest, defaults filled in."""

    stabilization_seconds: float
    limits: tuple[RateLimit, ...] = ()
    select: Literal["Max", "Min", "Disabled"] = "Max"


# P of the design: how often the law is asked.
PERIOD_SECONDS = 15.0
# By how much sooner it may be: windows that are whole periods are over as well by then.
EARLY_SECONDS = 2.0
# The HPA's default window before it removes pods; in it every recommendation must agree.
SCALE_DOWN_WINDOW_SECONDS = 300.0
# By at most a quarter a window, as dask's adaptive scaling does a step (docs, `Adaptive`).
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
    """What a spec asks of its autoscaler.

    Attributes:
        target_utilization: of the GPUs, 0 to 1: the objective in advice, and of GPU-only mode.
        headroom: workers beyond those needed, as a share of them.
        is_ordered: `preserveOrder` is on: a late chunk delays those after it.
        left_out: rules that are off.
    """

    min_workers: int
    max_workers: int
    target_utilization: float = 0.95
    headroom: float = HEADROOM
    up: Direction = UP
    down: Direction = DOWN
    is_ordered: bool = False
    left_out: frozenset[Rule] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A number of workers, and why it is that."""

    workers: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What keeps the trainers from more rows, where more workers would not."""

    stage: Stage
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done about the workers of a run.

    Attributes:
        desired: workers to ask for.
        recommended: what the signals alone ask for.
        active: whether the signals are known well enough to act on, and why not.
        limited: by which rule `desired` is not what was recommended; None: by none.
        bottleneck: elsewhere than in the number of workers; None: it is not, or not known.
    """

    desired: int
    recommended: Verdict
    active: Verdict
    limited: Verdict | None = None
    bottleneck: Bottleneck | None = None
    inputs: dict[str, float] = field(default_factory=dict)
