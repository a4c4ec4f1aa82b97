"""Finds the stage that limits the trainers where more data workers would not help."""

from __future__ import annotations

from dataset_operator.autoscaling.estimates import Estimate
from dataset_operator.autoscaling.interface import Bottleneck, Rules, Stage
from dataset_operator.autoscaling.signals import Sample

# Ignore waits of a smaller share: the target is at most 2 % of the GPU time spent waiting.
MIN_PRODUCTION_SHARE = 0.02
# If readers are blocked on output for a larger share of their time, they are not the bottleneck.
MAX_BLOCKED_SHARE = 0.05
# By the runtime's name of a stage: its name in the API, the cause, and the advice.
_STAGES: dict[str, tuple[Stage, str, str]] = {
    "transfer": (
        "Transfer",
        "batches are on their way",
        "raise pipelineOptions.compression or the bandwidth",
    ),
    "batching": (
        "Collate",
        "the trainers cut batches",
        "turn pipelineOptions.debug.readyBatches on",
    ),
    "collate": (
        "Collate",
        "the trainers make tensors",
        "turn pipelineOptions.debug.readyBatches on, or give them more CPU",
    ),
    "ordering": (
        "Ordering",
        "one chunk is late and pipelineOptions.preserveOrder is on",
        "turn it off, or accept the wait",
    ),
    "rankSkew": (
        "RankSkew",
        "one rank is slower than the others",
        "look at its node and at the sizes of its batches",
    ),
}
_MODEL: tuple[Stage, str, str] = (
    "Model",
    "the training step itself takes it",
    "make the step faster",
)
_NO_HELP = "more data workers will not help"


def is_starved(estimate: Estimate) -> bool:
    """Return whether the trainers wait for rows, by the lower bound of the waits."""
    return estimate.production_low >= MIN_PRODUCTION_SHARE


def find_bottleneck(estimate: Estimate, rules: Rules, sample: Sample) -> Bottleneck | None:
    """Return the bottleneck; None if it is the number of data workers, or if there is none.

    Guards the traps in which more workers do not help: scenarios "GPU-bound model",
    "collate-bound", "rank skew" and "straggler in order".
    """
    if sample.elsewhere is not None:
        return sample.elsewhere
    if estimate.is_unbounded:
        return None  # no trainer waits
    if is_starved(estimate):
        return _find_blocking_stage(estimate, rules)
    stage, share = _largest_wait(estimate)
    if share >= MIN_PRODUCTION_SHARE:
        name, cause, advice = _STAGES.get(stage, _MODEL)
        message = f"trainers wait {share:.0%} of their time because {cause}: {advice}; {_NO_HELP}"
        return Bottleneck(stage=name, message=message)
    used = sample.gpu_utilization if sample.has_gpus else None
    if used is not None and used < rules.target_utilization:
        message = (
            f"GPUs are {used:.0%} busy (target {rules.target_utilization:.0%}) although rows are "
            f"ready: the training step leaves them idle; {_NO_HELP}"
        )
        return Bottleneck(stage="Model", message=message)
    return None


def _find_blocking_stage(estimate: Estimate, rules: Rules) -> Bottleneck | None:
    """Return the stage between readers with finished rows and trainers that wait for rows.

    None if the readers are hardly blocked: then more data workers help. Guards "straggler in
    order", where one slow worker makes all others wait.
    """
    if estimate.blocked_share <= MAX_BLOCKED_SHARE:
        return None
    stage, share = _largest_wait(estimate)
    if rules.is_ordered:
        stage = "ordering"
    elif share < MIN_PRODUCTION_SHARE or stage not in _STAGES:
        stage = "rankSkew"
    name, cause, advice = _STAGES[stage]
    message = (
        f"trainers wait {estimate.production_share:.0%} of their time for rows, and readers "
        f"{estimate.blocked_share:.0%} of theirs to hand rows over, because {cause}: {advice}"
    )
    return Bottleneck(stage=name, message=message)


def _largest_wait(estimate: Estimate) -> tuple[str, float]:
    if not estimate.waits:
        return "", 0.0
    stage = max(estimate.waits, key=lambda name: estimate.waits[name])
    return stage, estimate.waits[stage]
