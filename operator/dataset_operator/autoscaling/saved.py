"""The part of the memory that survives the operator, in an experiment's status.

It changes only with a recommendation, so a run with the workers it requires writes nothing.
Intervals are not saved, since counters give new ones within a minute. Guards "operator restart".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dataset_operator.autoscaling.gpu_only import PROBE_SHARE, Failure, GpuMemory, Probe
from dataset_operator.autoscaling.interface import SCALE_DOWN_WINDOW_SECONDS
from dataset_operator.autoscaling.intervals import Memory, Move, SaturationPoint

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
# Limits of `status.scaling.recommendations` and `.moves` in the CRD; older entries are dropped.
MAX_RECOMMENDATIONS = 32
MAX_MOVES = 16
# After a longer absence, the recommendations in between are unknown.
MAX_ABSENCE_SECONDS = SCALE_DOWN_WINDOW_SECONDS

Document = dict[str, Any]


def save(memory: Memory) -> Document:
    """Return the saved part of the memory, with whole seconds."""
    changes = memory.recommendations[-MAX_RECOMMENDATIONS:]
    is_cut = len(changes) < len(memory.recommendations)
    saved: Document = {
        "sinceTime": _format(changes[0][0] if is_cut else memory.since),
        "verifiedReplicas": memory.verified,
        "recommendations": [{"time": _format(at), "replicas": workers} for at, workers in changes],
    }
    if memory.moves:
        saved["moves"] = [
            {"time": _format(move.at), "before": move.before, "after": move.after}
            for move in memory.moves[-MAX_MOVES:]
        ]
    if memory.saturation is not None:
        saved["saturationPoint"] = {
            "replicas": memory.saturation.workers,
            "untilTime": _format(memory.saturation.until),
            "rowsPerSecond": f"{memory.saturation.rows_per_second:.0f}",
            "count": memory.saturation.count,
        }
    return saved


def restore(saved: Mapping[str, Any], now: float, seen: float) -> Memory:
    """Return the memory of an operator that starts; the last recommendation holds until now.

    Args:
        seen: time at which the previous operator was last active.
    """
    is_fresh = now - seen <= MAX_ABSENCE_SECONDS
    listed = [(_parse(r["time"]), int(r["replicas"])) for r in saved.get("recommendations", ())]
    recommendations = [pair for pair in listed if pair[0] <= now and is_fresh]
    point = saved.get("saturationPoint")
    return Memory(
        since=min(now, _parse(saved["sinceTime"])) if recommendations else now,
        verified=int(saved.get("verifiedReplicas", 0)),
        recommendations=tuple(recommendations),
        moves=tuple(
            Move(at=_parse(move["time"]), before=int(move["before"]), after=int(move["after"]))
            for move in saved.get("moves", ())
        ),
        saturation=None
        if point is None
        else SaturationPoint(
            workers=int(point["replicas"]),
            until=_parse(point["untilTime"]),
            rows_per_second=float(point["rowsPerSecond"]),
            count=int(point.get("count", 1)),
        ),
    )


def save_gpu(memory: GpuMemory) -> Document:
    """Return the saved probes of the GPU-only policy; they change when a probe begins or ends."""
    saved: Document = {"sharePercent": round(100.0 * memory.share)}
    if memory.probe is not None:
        saved["probe"] = {
            "time": _format(memory.probe.began),
            "before": memory.probe.before,
            "after": memory.probe.after,
            "utilization": f"{memory.probe.utilization:.4f}",
        }
    for name, failed in (("failedUp", memory.failed_up), ("failedDown", memory.failed_down)):
        if failed is not None:
            until = _format(failed.until)
            saved[name] = {"replicas": failed.workers, "count": failed.count, "untilTime": until}
    return saved


def restore_gpu(saved: Mapping[str, Any], chain: Memory) -> GpuMemory:
    """Return the memory of the GPU-only policy of an operator that starts."""
    probe = saved.get("probe")
    return GpuMemory(
        chain=chain,
        probe=None
        if probe is None
        else Probe(
            before=int(probe["before"]),
            after=int(probe["after"]),
            began=_parse(probe["time"]),
            utilization=float(probe["utilization"]),
        ),
        share=saved.get("sharePercent", 100.0 * PROBE_SHARE) / 100.0,
        failed_up=_restore_failure(saved.get("failedUp")),
        failed_down=_restore_failure(saved.get("failedDown")),
    )


def _restore_failure(saved: Mapping[str, Any] | None) -> Failure | None:
    if saved is None:
        return None
    return Failure(
        workers=int(saved["replicas"]), count=int(saved["count"]), until=_parse(saved["untilTime"])
    )


def _format(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(TIME_FORMAT)


def _parse(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
