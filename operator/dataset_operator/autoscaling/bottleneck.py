"""The cure test: would more workers help, and if not, what keeps the trainers from more rows?"""

from __future__ import annotations

from dataset_operator.autoscaling.decision import Bottleneck, Rules, Stage
from dataset_operator.autoscaling.estimates import Estimate
from dataset_operator.autoscaling.signals import Sample

# Waits of a smaller share are let be: the bar of the design, two in a hundred GPU seconds.
MIN_PRODUCTION_SHARE = 0.02
# Readers that hold more finished rows than this are not what the trainers wait for.
MAX_BLOCKED_SHARE = 0.05
# The runtime's names of stages, and for each what a person can do.
_STAGES: dict[str, tuple[Stage, str]] = {
    "transfer": ("Transfer", "moving batches: raise pipelineOptions.compression or bandwidth"),
    "batching": ("Collate", "cutting batches: set pipelineOptions.readyBatches"),
    "collate": ("Collate", "making tensors: set pipelineOptions.readyBatches, or more trainer CPU"),
    "ordering": ("Ordering", "a late piece in its place: shuffle.preserveOrder false would not"),
    "rankSkew": ("RankSkew", "the slowest rank: look at its node and at the sizes of its batches"),
}


def is_starved(estimate: Estimate) -> bool:
    """Whether the trainers wait for rows that no worker has made, beyond doubt."""
    return estimate.production_low >= MIN_PRODUCTION_SHARE


def find_bottleneck(estimate: Estimate, rules: Rules, sample: Sample) -> Bottleneck | None:
    """What else than the number of workers binds; None if that does, or nothing is amiss."""
    if is_starved(estimate):
        return _find_where_rows_are_held(estimate, rules)
    stage, share = _largest_wait(estimate)
    if share >= MIN_PRODUCTION_SHARE:
        name, advice = _STAGES.get(stage, ("Model", "the training step itself"))
        message = f"trainers spend {share:.0%} of their time on {advice}; more workers cure no such"
        return Bottleneck(stage=name, message=f"{message} wait")
    used = sample.gpu_utilization if sample.has_gpus else None
    if used is not None and used < rules.target_utilization:
        message = (
            f"GPUs are {used:.0%} busy (target {rules.target_utilization:.0%}) though "
            "rows are there: the model's own step leaves them idle; more workers cannot help"
        )
        return Bottleneck(stage="Model", message=message)
    return None


def _find_where_rows_are_held(estimate: Estimate, rules: Rules) -> Bottleneck | None:
    """Trainers wait while readers hold finished rows: something between them does."""
    if estimate.blocked_share <= MAX_BLOCKED_SHARE:
        return None
    stage, share = _largest_wait(estimate)
    if rules.is_ordered:
        name, advice = _STAGES["ordering"]
    elif share >= MIN_PRODUCTION_SHARE and stage in _STAGES:
        name, advice = _STAGES[stage]
    else:
        name, advice = _STAGES["rankSkew"]
    message = (
        f"trainers wait {estimate.production_share:.0%} of their time for rows, while readers are "
        f"kept {estimate.blocked_share:.0%} of theirs from handing over: {advice}"
    )
    return Bottleneck(stage=name, message=message)


def _largest_wait(estimate: Estimate) -> tuple[str, float]:
    if not estimate.waits:
        return "", 0.0
    stage = max(estimate.waits, key=lambda name: estimate.waits[name])
    return stage, estimate.waits[stage]
