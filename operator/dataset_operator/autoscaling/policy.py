"""One decision of the policy: a number of workers and its reasons, from a sample and the memory."""

from __future__ import annotations

from dataclasses import replace

from dataset_operator.autoscaling.bottleneck import find_bottleneck
from dataset_operator.autoscaling.chain import clamp, constrain
from dataset_operator.autoscaling.estimates import Estimate, estimate
from dataset_operator.autoscaling.interface import (
    METRICS_UNKNOWN,
    UNSCHEDULABLE,
    VALID_METRIC_FOUND,
    Bottleneck,
    Decision,
    Rules,
    Verdict,
)
from dataset_operator.autoscaling.intervals import Memory, note_recommendation, take_in
from dataset_operator.autoscaling.recommend import Known, recommend
from dataset_operator.autoscaling.saturation import judge
from dataset_operator.autoscaling.signals import Sample

# A refused request is repeated after 2 L, then after twice as long each time, up to this.
MAX_REFUSAL_SECONDS = 1800.0
_MAX_DOUBLINGS = 10


def decide(memory: Memory, sample: Sample, rules: Rules) -> tuple[Decision, Memory]:
    """Decide the number of workers from now on.

    Args:
        memory: returned by the previous decision, or `Memory(since=now)`.
        sample: the signals now.
    """
    memory = take_in(memory, sample)
    found = estimate(memory)
    memory = replace(memory, has_estimate=memory.has_estimate or found is not None)
    if found is not None and _is_known(sample):
        memory = judge(memory, sample, found)
    known = Known(memory=memory, sample=sample, rules=rules, estimate=found)
    verdict = recommend(known)
    memory = _remember(memory, known, verdict)
    desired, limited = _constrain(verdict, memory, sample, rules)
    decision = Decision(
        desired=desired,
        recommended=verdict,
        active=_judge_signals(sample, verdict),
        limited=limited,
        bottleneck=_find_elsewhere(found, sample, rules),
        inputs=_list_inputs(found, sample),
    )
    return decision, memory


def _is_known(sample: Sample) -> bool:
    return sample.trainer is not None and sample.workers is not None


def _constrain(
    verdict: Verdict, memory: Memory, sample: Sample, rules: Rules
) -> tuple[int, Verdict | None]:
    """Apply the chain; return the number, and the last rule that changed it.

    Pods beyond a ceiling did not start, so they are not requested for a while: scenarios "never
    scheduled" and "two on one quota".
    """
    current, now = sample.desired, sample.at
    if verdict.reason == METRICS_UNKNOWN:
        # Only the bounds of the spec apply, since a user may have changed them.
        last = clamp(current, rules)
        return last.workers, last if last.reason else None
    if verdict.reason == UNSCHEDULABLE:
        return verdict.workers, verdict  # removes only workers that do not exist
    if memory.saturation is not None and memory.saturation.undone_at == now:
        # A failed probe ends at once, not after a window (scenario "storage near demand").
        return clamp(verdict.workers, rules).workers, None
    wanted, ceiled = clamp(verdict.workers, rules).workers, None
    if memory.ceiling is not None and wanted > memory.ceiling[0]:
        wanted = max(memory.ceiling[0], min(current, wanted))
        message = f"{verdict.workers} wanted, but pods beyond {wanted} did not start lately"
        ceiled = Verdict(workers=wanted, reason=UNSCHEDULABLE, message=message)
    workers, limited = constrain(
        verdict.workers if ceiled is None else wanted, current, memory, rules, now
    )
    return workers, limited or ceiled


def _remember(memory: Memory, known: Known, verdict: Verdict) -> Memory:
    """Record the recommendation for the windows, and a refusal for a while.

    The pause after a refusal doubles each time, which saves moves in "never scheduled".
    """
    now = known.sample.at
    windows = [known.rules.up.stabilization_seconds, known.rules.down.stabilization_seconds]
    limits = (*known.rules.up.limits, *known.rules.down.limits)
    # Without an estimate nothing is recommended; a gap in the signals keeps the present number.
    is_blind = verdict.reason == METRICS_UNKNOWN or not memory.recommendations
    oldest_move = now - max([limit.period_seconds for limit in limits], default=0.0)
    if known.estimate is not None or verdict.workers != known.sample.desired or is_blind:
        wanted = clamp(verdict.workers, known.rules).workers
        memory = note_recommendation(memory, now, wanted, max(windows))
    memory = replace(memory, moves=tuple(move for move in memory.moves if move.at > oldest_move))
    if known.estimate is None and verdict.workers > known.sample.desired:
        memory = replace(memory, doubled_at=now)
    if verdict.reason == UNSCHEDULABLE:
        pause = 2.0 * known.start_seconds * 2.0 ** min(memory.refusals, _MAX_DOUBLINGS)
        ceiling = (verdict.workers, now + min(MAX_REFUSAL_SECONDS, pause))
        return replace(
            memory, ceiling=ceiling, refusals=memory.refusals + 1, refused_at=verdict.workers
        )
    if known.sample.pods.ready >= known.sample.desired > memory.refused_at:
        memory = replace(memory, refusals=0, refused_at=0)  # more than were refused
    if memory.ceiling is not None and now >= memory.ceiling[1]:
        return replace(memory, ceiling=None)
    return memory


def _judge_signals(sample: Sample, verdict: Verdict) -> Verdict:
    if _is_known(sample):
        return Verdict(
            workers=sample.desired,
            reason=VALID_METRIC_FOUND,
            message="demand and the throughput of a worker are measured",
        )
    return replace(verdict, reason=METRICS_UNKNOWN)


def _find_elsewhere(found: Estimate | None, sample: Sample, rules: Rules) -> Bottleneck | None:
    if found is None or not _is_known(sample):
        return None
    return find_bottleneck(found, rules, sample)


def _list_inputs(found: Estimate | None, sample: Sample) -> dict[str, float]:
    """Return the inputs of the decision by name, for the log."""
    pods = {"ready": float(sample.pods.ready), "stuck": float(sample.pods.stuck)}
    gpu = {} if sample.gpu_utilization is None else {"gpuUtilization": sample.gpu_utilization}
    if found is None:
        return pods | gpu
    if found.is_unbounded:
        rates = {
            "rowsPerSecond": found.rows_per_second,
            "workerRowsPerSecond": found.worker_rate,
            "readShare": found.read_share,
        }
        return {**pods, **rates}
    return {
        **pods,
        **gpu,
        "demandRowsPerSecond": found.demand,
        "workerRowsPerSecond": found.worker_rate,
        "requiredWorkers": found.required,
        "requiredWorkersLow": found.required_low,
        "requiredWorkersHigh": found.required_high,
        "productionShare": found.production_share,
        "blockedShare": found.blocked_share,
        "readShare": found.read_share,
    }
