"""What the metrics say of the feed's readers: nothing if nothing is known, 0 if none is left."""

from dataclasses import asdict

import pytest
from prometheus_client import CollectorRegistry

from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.metrics import RunCollector
from pipeline_runtime.monitor import RankSnapshot


def snapshot(usage: WorkerUsage) -> RankSnapshot:
    return RankSnapshot(
        rank=0,
        seconds=1.0,
        epoch=0,
        step=1,
        samples=1,
        attempt_samples=1,
        batch_bytes=1,
        checksum={},
        waited=asdict(Waited()),
        counts=(),
        evaluation_counts=(),
        queue_length=0,
        seconds_to_first_batch=None,
        last_step_seconds=0.1,
        dropped_rows=0,
        padded_rows=0,
        checkpoints=0,
        checkpoint_failures=0,
        last_checkpoint=None,
        device="cpu",
        metrics={},
        workers=asdict(usage),
    )


@pytest.mark.parametrize(
    ("usage", "ready", "read"),
    [
        pytest.param(WorkerUsage(), None, None, id="an engine that does not tell"),
        pytest.param(WorkerUsage(ready=2, read=1.5), 2, 1.5, id="two readers"),
        pytest.param(WorkerUsage(ready=0, read=1.5), 0, 1.5, id="all of them lost"),
    ],
)
def test_readers_are_told_once_they_are_known(
    usage: WorkerUsage, ready: float | None, read: float | None
) -> None:
    collector, registry = RunCollector([]), CollectorRegistry()
    collector.update({0: snapshot(usage)}, None)
    registry.register(collector)
    assert registry.get_sample_value("lastmile_ready_readers", {"rank": "0"}) == ready
    labels = {"rank": "0", "state": "read"}
    assert registry.get_sample_value("lastmile_worker_seconds_total", labels) == read
