"""What of the memory survives the operator, as it stands in an experiment's status.

It changes only when a recommendation does, so a run that has what it needs writes nothing.
Intervals are not kept: counters are read anew within a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dataset_operator.autoscaling.history import Knee, Memory

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
# `status.scaling.recommendations` in the CRD; older ones are left out, the careful way.
MAX_RECOMMENDATIONS = 32

Document = dict[str, Any]


def save(memory: Memory) -> Document:
    """The part of the memory that is kept, whole seconds and three digits."""
    changes = memory.recommendations[-MAX_RECOMMENDATIONS:]
    saved: Document = {
        "since": _format(memory.since),
        "verifiedReplicas": memory.verified,
        "recommendations": [{"time": _format(at), "replicas": workers} for at, workers in changes],
    }
    if memory.knee is not None:
        saved["knee"] = {
            "replicas": memory.knee.workers,
            "until": _format(memory.knee.until),
            "rowsPerSecond": f"{memory.knee.rows_per_second:.0f}",
        }
    return saved


def restore(saved: Mapping[str, Any], now: float) -> Memory:
    """The memory of an operator that begins anew; what was recommended last holds until now."""
    listed = [(_parse(r["time"]), int(r["replicas"])) for r in saved.get("recommendations", ())]
    recommendations = [pair for pair in listed if pair[0] <= now]
    knee = saved.get("knee")
    return Memory(
        since=min(now, _parse(saved["since"])) if recommendations else now,
        verified=int(saved.get("verifiedReplicas", 0)),
        recommendations=tuple(recommendations),
        knee=None
        if knee is None
        else Knee(
            workers=int(knee["replicas"]),
            until=_parse(knee["until"]),
            rows_per_second=float(knee["rowsPerSecond"]),
        ),
    )


def _format(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(TIME_FORMAT)


def _parse(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
