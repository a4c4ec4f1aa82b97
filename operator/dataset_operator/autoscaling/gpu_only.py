"""The policy for trainers that report no counters: probes that are judged by GPU utilisation.

Below the target a few workers are added, and kept if utilisation rose by more than noise; the next
probe is twice as large. Above the target a few are removed, and brought back if utilisation fell. A
probe that failed is not repeated for half an hour, then for an hour, and so on. This is weaker than
`policy`: a probe costs the start of a pod and a window, and does not show how many workers are
missing. The same chain follows the recommendation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dataset_operator.autoscaling.chain import clamp, constrain
from dataset_operator.autoscaling.confidence import mean_of, squares_of
from dataset_operator.autoscaling.interface import (
    DESIRED_WITHIN_RANGE,
    METRICS_UNKNOWN,
    VALID_METRIC_FOUND,
    Decision,
    Rules,
    Verdict,
)
from dataset_operator.autoscaling.intervals import Memory, Move, note_recommendation
from dataset_operator.autoscaling.recommend import WINDOW_SECONDS
from dataset_operator.autoscaling.signals import FIRST_START_SECONDS, Sample

# Share of the workers that a probe adds or removes, at least one.
PROBE_SHARE = 0.1
# Factor and limit of the share after upward probes that helped.
_GROWTH = 2.0
_MAX_SHARE = 1.0
REPEAT_SECONDS = 1800.0
# A probe that failed again is repeated after twice as long, up to this time.
_MAX_REPEAT_SECONDS = 14400.0
# Two windows of utilisation differ beyond noise by this many standard errors.
_ERRORS = 2.0
_LEAST_CHANGE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A change that is tried at present."""

    before: int
    after: int
    began: float
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A probe that did not help, from this number of workers; not repeated before `until`."""

    workers: int
    count: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Memory of this policy, with that of the chain.

    Attributes:
        seen: (time, utilisation) of the last minutes.
        share: share of the workers that the next upward probe adds.
        failed_up, failed_down: the last probe of each direction that did not help.
    """

    chain: Memory
    seen: tuple[tuple[float, float], ...] = ()
    probe: Probe | None = None
    share: float = PROBE_SHARE
    failed_up: Failure | None = None
    failed_down: Failure | None = None


def decide_by_gpu(memory: GpuMemory, sample: Sample, rules: Rules) -> tuple[Decision, GpuMemory]:
    """Decide as `policy.decide` does, from `sample.gpu_utilization` alone."""
    memory = _take_in(memory, sample)
    before = memory.probe
    verdict, memory = _recommend(memory, sample, rules)
    is_undo = before is not None and memory.probe is None and verdict.workers == before.before
    now, current = sample.at, sample.desired
    chain = memory.chain
    window = max(rules.up.stabilization_seconds, rules.down.stabilization_seconds)
    chain = note_recommendation(chain, now, verdict.workers, window)
    workers, limited = clamp(verdict.workers, rules).workers, None
    if not is_undo:  # a failed probe is undone at once, since its windows are over
        workers, limited = constrain(verdict.workers, current, chain, rules, now)
    if workers != current:
        oldest = now - REPEAT_SECONDS
        moves = tuple(move for move in chain.moves if move.at > oldest)
        chain = replace(chain, moves=(*moves, Move(at=now, before=current, after=workers)))
    known = sample.gpu_utilization is not None
    active = Verdict(
        workers=current,
        reason=VALID_METRIC_FOUND if known else METRICS_UNKNOWN,
        message="GPU utilisation is measured" if known else "GPU utilisation is unknown",
    )
    decision = Decision(desired=workers, recommended=verdict, active=active, limited=limited)
    return decision, replace(memory, chain=chain)


def _take_in(memory: GpuMemory, sample: Sample) -> GpuMemory:
    if sample.gpu_utilization is None:
        return memory
    oldest = sample.at - 2 * WINDOW_SECONDS
    kept = tuple(seen for seen in memory.seen if seen[0] > oldest)
    return replace(memory, seen=(*kept, (sample.at, sample.gpu_utilization)))


def _recommend(memory: GpuMemory, sample: Sample, rules: Rules) -> tuple[Verdict, GpuMemory]:
    current, now = sample.desired, sample.at
    if sample.gpu_utilization is None:
        verdict = Verdict(
            workers=current, reason=METRICS_UNKNOWN, message="GPU utilisation is unknown"
        )
        return verdict, memory
    if memory.probe is not None:
        return _judge_probe(memory, memory.probe, sample)
    values = [u for at, u in memory.seen]
    if len(values) < 3:
        return _hold(current, "too few readings of GPU utilisation yet"), memory
    mean = mean_of(values)
    if mean < rules.target_utilization - _error(values):
        if _is_barred(memory.failed_up, current, now):
            return _hold(current, "more workers did not raise GPU utilisation lately"), memory
        step = max(1, math.ceil(memory.share * current))
        return _begin(memory, sample, mean, min(current + step, rules.max_workers))
    if _is_barred(memory.failed_down, current, now):
        return _hold(current, "fewer workers lowered GPU utilisation lately"), memory
    step = max(1, math.ceil(PROBE_SHARE * current))
    return _begin(memory, sample, mean, max(current - step, rules.min_workers))


def _begin(memory: GpuMemory, sample: Sample, mean: float, after: int) -> tuple[Verdict, GpuMemory]:
    current = sample.desired
    if after == current:
        return _hold(current, f"GPUs are {mean:.0%} busy, and the spec's bound is reached"), memory
    probe = Probe(before=current, after=after, began=sample.at, utilization=mean)
    message = f"GPUs are {mean:.0%} busy: trying {after} workers instead of {current}"
    verdict = Verdict(workers=after, reason=DESIRED_WITHIN_RANGE, message=message)
    return verdict, replace(memory, probe=probe)


def _judge_probe(memory: GpuMemory, probe: Probe, sample: Sample) -> tuple[Verdict, GpuMemory]:
    """Keep or undo a probe after its workers were ready for two windows, or did not start."""
    now = sample.at
    start = sample.pods.start_seconds or FIRST_START_SECONDS
    if sample.desired != probe.after:  # the chain still limits it
        if now - probe.began > REPEAT_SECONDS:
            return _hold(sample.desired, "the rate limits did not allow a probe"), replace(
                memory, probe=None
            )
        return _hold(probe.after, "a probe waits for the rate limits"), memory
    since = memory.chain.moves[-1].at if memory.chain.moves else probe.began
    is_there = sample.pods.ready == probe.after
    wait = (start if probe.after > probe.before else 0.0) + 2 * WINDOW_SECONDS
    if now - since < wait:
        return _hold(probe.after, "a probe is running"), memory
    values = [u for at, u in memory.seen]
    change = mean_of(values) - probe.utilization
    noise = max(_LEAST_CHANGE, _error(values))
    memory = replace(memory, probe=None)
    if probe.after > probe.before and (change <= noise or not is_there):
        message = f"{probe.after} workers did not raise GPU utilisation ({change:+.1%})"
        verdict = Verdict(workers=probe.before, reason=DESIRED_WITHIN_RANGE, message=message)
        failed = _fail(memory.failed_up, probe.before, now)
        return verdict, replace(memory, failed_up=failed, share=PROBE_SHARE)
    if probe.after < probe.before and change < -noise:
        message = f"{probe.after} workers lowered GPU utilisation ({change:+.1%})"
        verdict = Verdict(workers=probe.before, reason=DESIRED_WITHIN_RANGE, message=message)
        failed = _fail(memory.failed_down, probe.before, now)
        return verdict, replace(memory, failed_down=failed, share=PROBE_SHARE)
    grown = min(_MAX_SHARE, _GROWTH * memory.share) if probe.after > probe.before else PROBE_SHARE
    message = f"{probe.after} workers are kept ({change:+.1%} utilisation)"
    return _hold(probe.after, message), replace(memory, share=grown)


def _fail(before: Failure | None, workers: int, now: float) -> Failure:
    count = before.count + 1 if before is not None and before.workers == workers else 1
    pause = min(_MAX_REPEAT_SECONDS, REPEAT_SECONDS * 2.0 ** (min(count, 8) - 1))
    return Failure(workers=workers, count=count, until=now + pause)


def _is_barred(failed: Failure | None, workers: int, now: float) -> bool:
    return failed is not None and failed.workers == workers and now < failed.until


def _error(values: list[float]) -> float:
    if len(values) < 2:
        return 1.0
    return _ERRORS * math.sqrt(squares_of(values) / (len(values) - 1) / len(values))


def _hold(workers: int, message: str) -> Verdict:
    return Verdict(workers=workers, reason=DESIRED_WITHIN_RANGE, message=message)
