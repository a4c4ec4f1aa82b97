"""The API server goes away for a minute: nothing that runs is harmed, and everything goes on."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from operator_stage import comes, operated
from restarting import running_box

from tools.cluster.binaries import Binaries
from tools.cluster.control_plane import ControlPlane

OUTAGE_SECONDS = 60.0


@pytest.fixture
def own_box(parts: Binaries, tmp_path: Path) -> Iterator[ControlPlane]:
    with running_box(tmp_path / "box", parts) as box:
        yield box


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that answers nobody and keeps every connection, as behind a network that is cut."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_an_api_server_that_is_away_for_a_minute_costs_nothing(
    own_box: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(own_box.kubeconfig))

    async def story() -> None:
        async with operated(own_box, "default") as (stage, _):
            stage.apply()
            await comes(stage, "Training", "True", "Running")
            before = await stage.status()
            api_server = own_box.processes()["kube-apiserver"]
            assert api_server is not None
            with stopped(api_server):
                await asyncio.sleep(OUTAGE_SECONDS)
                # The driver ends while nobody can be told.
                stage.ray.end(stage.only_job()["submission_id"], "SUCCEEDED")
            await comes(stage, "Complete", "True", "Succeeded")
            after = await stage.status()
            counters = ("run", "attempt", "failures")
            assert [after[field] for field in counters] == [before[field] for field in counters]
            assert len(stage.ray.jobs) == 1

    asyncio.run(story())
