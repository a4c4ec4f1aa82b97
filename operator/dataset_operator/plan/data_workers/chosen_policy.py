"""Selects the autoscaling policy of a run: the one that its spec names, never another.

The policy by rows needs the runtime's counters. The policy by GPU utilization alone is for trainers
that report no counters. The operator never switches by itself: missing counters may be an outage,
in which the number must not change, and look the same as a trainer that never reports any.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from dataset_operator.autoscaling import Decision, Memory, Rules, Sample, decide
from dataset_operator.autoscaling.gpu_only import GpuMemory, decide_by_gpu
from dataset_operator.autoscaling.interface import (
    DESIRED_WITHIN_RANGE,
    VALID_METRIC_FOUND,
    Verdict,
)
from dataset_operator.autoscaling.recommend import WINDOW_SECONDS
from dataset_operator.autoscaling.saved import restore, restore_gpu, save, save_gpu
from pipeline_runtime.config import ScalingSignal, ScalingStatus

# For so long after a GPU is first busy, utilization shows how the attempt starts, not its demand.
SETTLE_SECONDS = 180.0
_ADVICE = "; for trainers that never report any, use spec.autoscaling.signal GpuUtilization"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPolicyMemory(Memory):
    """Memory of the policy by GPU utilization, in addition to that of every policy.

    Attributes:
        attempt: the attempt that `busy_since` and `gpu` are about.
        busy_since: when this operator process first observed a busy GPU in the attempt.
        gpu: the tried changes and their effect; None before the first decision.
    """

    attempt: int = 0
    busy_since: float | None = None
    gpu: GpuMemory | None = None


def decide_by(
    signal: ScalingSignal, memory: Memory, sample: Sample, rules: Rules
) -> tuple[Decision, Memory]:
    """Decide like `autoscaling.decide`, by the policy of the signal; take either's memory."""
    if signal == "GpuUtilization":
        return _decide_by_gpus(_take_over(memory, sample), sample, rules)
    decision, memory = decide(memory, sample, rules)
    if sample.trainer is None and sample.gpu_utilization is not None:
        active = replace(decision.active, message=decision.active.message + _ADVICE)
        decision = replace(decision, active=active)
    return decision, memory


def _take_over(memory: Memory, sample: Sample) -> GpuPolicyMemory:
    """Return the memory; of another attempt or policy, only the part that all policies share."""
    if isinstance(memory, GpuPolicyMemory) and memory.attempt == sample.attempt:
        return memory
    common = {field.name: getattr(memory, field.name) for field in fields(Memory)}
    return GpuPolicyMemory(**common, attempt=sample.attempt)


def _decide_by_gpus(
    memory: GpuPolicyMemory, sample: Sample, rules: Rules
) -> tuple[Decision, GpuPolicyMemory]:
    if sample.gpu_utilization and memory.busy_since is None:
        memory = replace(memory, busy_since=sample.at)
    memory = replace(memory, decided_at=sample.at)
    if sample.gpu_utilization is not None:
        memory = replace(memory, last=sample)  # an outage of the signal is measured from here
        if memory.busy_since is None or sample.at - memory.busy_since < SETTLE_SECONDS:
            return _wait(sample), _take_in(memory, sample)
    gpu = memory.gpu or GpuMemory(chain=memory)
    decision, gpu = decide_by_gpu(replace(gpu, chain=replace(memory, gpu=None)), sample, rules)
    chain = gpu.chain
    assert isinstance(chain, GpuPolicyMemory)
    # The memory itself is the chain; a second copy inside it would grow with every decision.
    return decision, replace(chain, gpu=replace(gpu, chain=Memory(since=chain.since)))


def _take_in(memory: GpuPolicyMemory, sample: Sample) -> GpuPolicyMemory:
    """Keep the readings of the wait, so that a restored probe is not judged by a single one."""
    gpu, utilization = memory.gpu, sample.gpu_utilization
    if gpu is None or gpu.probe is None or utilization is None:
        return memory
    kept = tuple(seen for seen in gpu.seen if seen[0] > sample.at - 2 * WINDOW_SECONDS)
    return replace(memory, gpu=replace(gpu, seen=(*kept, (sample.at, utilization))))


def _wait(sample: Sample) -> Decision:
    message = f"GPUs of attempt {sample.attempt} have been busy less than {SETTLE_SECONDS:.0f} s"
    hold = Verdict(workers=sample.desired, reason=DESIRED_WITHIN_RANGE, message=message)
    return Decision(
        desired=sample.desired,
        recommended=hold,
        active=replace(hold, reason=VALID_METRIC_FOUND),
    )


def save_memory(memory: Memory) -> ScalingStatus:
    """Build the part of a policy's memory that an experiment's status stores."""
    saved = save(memory)
    if isinstance(memory, GpuPolicyMemory) and memory.gpu is not None:
        return saved.change(gpu=save_gpu(memory.gpu, memory.attempt))
    return saved


def restore_memory(saved: ScalingStatus, now: float, seen: float, attempt: int) -> Memory:
    """Restore a policy's memory from a status; GPU probes only if they are of this attempt.

    Args:
        seen: when the previous operator process was last known to run.
    """
    memory, gpu = restore(saved, now, seen), saved.gpu
    if gpu is None or gpu.attempt != attempt:
        return memory
    common = {field.name: getattr(memory, field.name) for field in fields(Memory)}
    tried = restore_gpu(gpu, Memory(since=memory.since))
    return GpuPolicyMemory(**common, attempt=attempt, gpu=tried)
