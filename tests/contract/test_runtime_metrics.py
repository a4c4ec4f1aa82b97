"""The operator reads the metrics that the driver serves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import aiohttp
import pytest
from rank_snapshots import build_snapshot

from dataset_operator.api import RUNTIME_METRICS_PORT
from dataset_operator.observed import Progress
from dataset_operator.ray.runtime_metrics import read_progress
from dataset_operator.testing import PortsOf
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.chunk import StepCount
from pipeline_runtime.metrics import MetricsServer, RunCollector
from pipeline_runtime.monitor import RankSnapshot
from pipeline_runtime.run.training.pace import WINDOW_SECONDS, PaceMeter


def build_trainer(rank: int, seconds: float, rows: int, production: float) -> RankSnapshot:
    """Build a trainer that took every row it read, and waited `production` seconds for them."""
    waited = dict.fromkeys(("transfer", "batching", "collate", "paused"), 0.0)
    return build_snapshot(
        rank,
        seconds=seconds,
        step=rows // 10,
        samples=rows,
        attempt_samples=rows,
        waited=waited | {"production": production, "compute": seconds - production},
        counts=(StepCount(rows=rows, num_bytes=0, seconds=0.0),),
        device="cpu" if rank else "cuda:0",
        metrics={"loss": 0.5, "eval_auc": 0.75} if rank == 0 else {"loss": 9.0},
    )


def read(
    meter: PaceMeter, *readings: list[RankSnapshot], damaged_checkpoints: int = 0
) -> Progress | None:
    """Return the operator's view after these readings."""
    collector = RunCollector([(0, "read")], damaged_checkpoints)
    for ranks in readings:
        collector.update({rank.rank: rank for rank in ranks}, meter.measure(ranks))

    async def ask(port: int) -> Progress | None:
        async with aiohttp.ClientSession() as session:
            urls = {RUNTIME_METRICS_PORT: f"http://127.0.0.1:{port}"}
            return await read_progress(PortsOf(session=session, urls=urls))

    with closing(MetricsServer(collector, 0)) as server:
        return asyncio.run(ask(server.port))


def test_a_run_of_two_trainers_is_reported_as_one() -> None:
    first = [build_trainer(rank, 10.0, 100, 5.0) for rank in (0, 1)]
    second = [build_trainer(rank, 20.0, 300, 7.0) for rank in (0, 1)]
    assert read(PaceMeter(planned_rows=1000), first, second) == Progress(
        ratio=0.6,
        remaining_seconds=10.0,
        samples_per_second=40.0,
        production_wait_ratio=0.2,
        busy_ratio=0.8,
        cpu_ranks=1,
        metrics={"loss": 0.5, "eval_auc": 0.75},
    )


def test_damaged_checkpoints_reach_the_operator() -> None:
    progress = read(
        PaceMeter(planned_rows=1000), [build_trainer(0, 10.0, 100, 5.0)], damaged_checkpoints=2
    )
    assert progress is not None
    assert progress.damaged_checkpoints == 2


def test_pauses_do_not_lower_the_busy_share() -> None:
    first, last = build_trainer(0, 10.0, 100, 5.0), build_trainer(0, 30.0, 300, 10.0)
    last.waited["paused"] = 10.0
    last.waited["compute"] -= 10.0
    progress = read(PaceMeter(planned_rows=1000), [first], [last])
    assert progress is not None
    assert progress.busy_ratio == 0.5  # 5 of 10 seconds, after 10 of a pause


def test_rates_cover_the_last_minute() -> None:
    minute = WINDOW_SECONDS
    readings = [
        [build_trainer(0, seconds, rows, 0.0)]
        for seconds, rows in ((1.0, 10_000), (minute, 10_100), (2 * minute, 10_100 + 600))
    ]
    progress = read(PaceMeter(planned_rows=100_000), *readings)
    assert progress is not None
    assert progress.samples_per_second == 600 / minute


def test_a_first_reading_has_no_rates() -> None:
    resumed = [build_trainer(0, 5.0, 500, 1.0)]  # rows of earlier attempts are among them
    told = Progress(ratio=0.5, cpu_ranks=0, metrics={"loss": 0.5, "eval_auc": 0.75})
    assert read(PaceMeter(planned_rows=1000), resumed) == told
    assert read(PaceMeter(planned_rows=1000), [build_trainer(0, 5.0, 0, 1.0)]) is None
    assert read(PaceMeter(planned_rows=1000), []) is None


@contextmanager
def listening(host: str) -> Iterator[int]:
    """Occupy a port."""
    with socket.create_server((host, 0)) as taken:
        yield taken.getsockname()[1]


def test_on_a_laptop_metrics_are_served_on_loopback_on_a_free_port() -> None:
    with listening("127.0.0.1") as taken, closing(MetricsServer(RunCollector([]), taken)) as server:
        assert server.port != taken
        # If it was served on every address, this one would be taken.
        socket.create_server(("127.0.0.2", server.port)).close()


def test_in_a_pod_metrics_are_served_to_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTMILE_ROLE", "head")
    with closing(MetricsServer(RunCollector([]), 0)) as server:
        socket.create_connection(("127.0.0.2", server.port)).close()
    with listening("0.0.0.0") as taken, pytest.raises(LastmileError, match=f"port {taken}"):
        MetricsServer(RunCollector([]), taken)
