"""Snapshots of a trainer, as it reports them to the monitor."""

from dataclasses import asdict
from typing import Any

from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.monitor import RankSnapshot


def build_snapshot(rank: int = 0, usage: WorkerUsage | None = None, **fields: Any) -> RankSnapshot:
    """Build the snapshot of a trainer after its first step, of one row.

    Args:
        usage: the use of its readers; None: the engine reports none.
        fields: those that differ from the usual ones.
    """
    usual: dict[str, Any] = {
        "seconds": 1.0,
        "epoch": 0,
        "step": 1,
        "samples": 1,
        "attempt_samples": 1,
        "batch_bytes": 1,
        "checksum": {},
        "waited": asdict(Waited()),
        "counts": (),
        "evaluation_counts": (),
        "queue_length": 0,
        "first_batch_at": None,
        "last_step_seconds": 0.1,
        "dropped_rows": 0,
        "padded_rows": 0,
        "checkpoints": 0,
        "checkpoint_failures": 0,
        "last_checkpoint": None,
        "device": "cpu",
        "metrics": {},
        "workers": usage.figures() if usage else {},
    }
    return RankSnapshot(rank=rank, **usual | fields)
