"""The part of the memory that survives the operator, in an experiment's status.

It changes only with a recommendation, so a run with the workers it requires writes nothing.
Intervals are not saved, since counters give new ones within a minute. Guards "operator restart".
"""

from __future__ import annotations

from datetime import UTC, datetime

from dataset_operator.autoscaling.gpu_only import PROBE_SHARE, Failure, GpuMemory, Probe
from dataset_operator.autoscaling.interface import SCALE_DOWN_WINDOW_SECONDS
from dataset_operator.autoscaling.intervals import Memory, Move, SaturationPoint
from pipeline_runtime.config import (
    GpuTrialsStatus,
    MoveStatus,
    ProbeFailureStatus,
    ProbeStatus,
    RecommendationStatus,
    SaturationPointStatus,
    ScalingStatus,
)

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
# Limits of `status.scaling.recommendations` and `.moves` in the CRD; older entries are dropped.
MAX_RECOMMENDATIONS = 32
MAX_MOVES = 16
# After a longer absence, the recommendations in between are unknown.
MAX_ABSENCE_SECONDS = SCALE_DOWN_WINDOW_SECONDS


def save(memory: Memory) -> ScalingStatus:
    """Return the saved part of the memory, with whole seconds and rows."""
    changes = memory.recommendations[-MAX_RECOMMENDATIONS:]
    is_cut = len(changes) < len(memory.recommendations)
    saved = ScalingStatus(
        since_time=_format(changes[0][0] if is_cut else memory.since),
        verified_replicas=memory.verified,
        recommendations=tuple(
            RecommendationStatus(time=_format(at), replicas=workers) for at, workers in changes
        ),
    )
    moves = tuple(
        MoveStatus(time=_format(move.at), before=move.before, after=move.after)
        for move in memory.moves[-MAX_MOVES:]
    )
    point = memory.saturation and SaturationPointStatus(
        replicas=memory.saturation.workers,
        until_time=_format(memory.saturation.until),
        rows_per_second=f"{memory.saturation.rows_per_second:.0f}",
        count=memory.saturation.count,
    )
    return saved.change(moves=moves or None, saturation_point=point)


def restore(saved: ScalingStatus, now: float, seen: float) -> Memory:
    """Restore the memory of an operator that starts; the last recommendation holds until now.

    Args:
        seen: when the previous operator process was last known to run.
    """
    is_fresh = now - seen <= MAX_ABSENCE_SECONDS
    listed = [(_parse(kept.time), kept.replicas) for kept in saved.recommendations]
    recommendations = [pair for pair in listed if pair[0] <= now and is_fresh]
    point = saved.saturation_point
    return Memory(
        since=min(now, _parse(saved.since_time)) if recommendations else now,
        verified=saved.verified_replicas,
        recommendations=tuple(recommendations),
        moves=tuple(
            Move(at=_parse(move.time), before=move.before, after=move.after) for move in saved.moves
        ),
        saturation=None
        if point is None
        else SaturationPoint(
            workers=point.replicas,
            until=_parse(point.until_time),
            rows_per_second=float(point.rows_per_second),
            count=point.count,
        ),
    )


def save_gpu(memory: GpuMemory, attempt: int) -> GpuTrialsStatus:
    """Build the trials of the policy by GPUs, which change only when a trial begins or ends."""
    probe = memory.probe and ProbeStatus(
        time=_format(memory.probe.began),
        before=memory.probe.before,
        after=memory.probe.after,
        utilization=f"{memory.probe.utilization:.4f}",
    )
    return GpuTrialsStatus(attempt=attempt, share_percent=round(100.0 * memory.share)).change(
        probe=probe,
        failed_up=_save_failure(memory.failed_up),
        failed_down=_save_failure(memory.failed_down),
    )


def restore_gpu(saved: GpuTrialsStatus, chain: Memory) -> GpuMemory:
    """Restore the trials, for an operator that starts."""
    probe = saved.probe
    is_known = "share_percent" in saved.model_fields_set
    return GpuMemory(
        chain=chain,
        probe=None
        if probe is None
        else Probe(
            before=probe.before,
            after=probe.after,
            began=_parse(probe.time),
            utilization=float(probe.utilization),
        ),
        share=saved.share_percent / 100.0 if is_known else PROBE_SHARE,
        failed_up=_restore_failure(saved.failed_up),
        failed_down=_restore_failure(saved.failed_down),
    )


def _save_failure(failed: Failure | None) -> ProbeFailureStatus | None:
    if failed is None:
        return None
    until = _format(failed.until)
    return ProbeFailureStatus(replicas=failed.workers, count=failed.count, until_time=until)


def _restore_failure(saved: ProbeFailureStatus | None) -> Failure | None:
    if saved is None:
        return None
    return Failure(workers=saved.replicas, count=saved.count, until=_parse(saved.until_time))


def _format(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(TIME_FORMAT)


def _parse(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
