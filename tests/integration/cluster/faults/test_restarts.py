"""The store, the API server and KubeRay are killed and come again: what ran goes on, once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_stage import comes, operated
from reconcile_stage import Stage
from restarting import API_SERVER, ETCD, KUBERAY, answers, kill, running_box, start, until

from dataset_operator.status import find_condition
from tools.cluster.binaries import Binaries
from tools.cluster.control_plane import ControlPlane


@pytest.fixture
def own_box(
    parts: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ControlPlane]:
    with running_box(tmp_path / "box", parts) as box:
        monkeypatch.setenv("KUBECONFIG", str(box.kubeconfig))
        yield box


async def message_of(stage: Stage, kind: str) -> str:
    found = find_condition(await stage.status(), kind)
    return str(found["message"]) if found else ""


@pytest.mark.slow
@pytest.mark.parametrize("names", [(ETCD,), (API_SERVER,), (ETCD, API_SERVER)], ids="+".join)
def test_what_trains_outlives_the_death_of(own_box: ControlPlane, names: tuple[str, ...]) -> None:
    async def story() -> None:
        async with operated(own_box, "default") as (stage, _):
            stage.apply()
            await comes(stage, "Training", "True", "Running")
            before, cluster = await stage.status(), await stage.ray_cluster()
            dead = [kill(own_box, name) for name in names]
            # The driver fails while nobody can be told.
            stage.ray.end(stage.only_job()["submission_id"], "FAILED", driver_exit_code=1)
            await asyncio.sleep(5.0)
            for component in dead:
                start(own_box, component)
            await until(lambda: answers(own_box))

            await until(lambda: has_attempts(stage, 2))
            await comes(stage, "Training", "True", "Running")
            after = await stage.status()
            assert (after["run"], after["failures"]) == (before["run"], 1)
            assert (await stage.ray_cluster())["metadata"]["uid"] == cluster["metadata"]["uid"]
            assert [job["status"] for job in stage.ray.jobs.values()] == ["FAILED", "RUNNING"]
            stage.ray.end(after["submission"]["id"], "SUCCEEDED")
            await comes(stage, "Complete", "True", "Succeeded")
            assert len(stage.ray.jobs) == 2

    async def has_attempts(stage: Stage, number: int) -> bool:
        return bool((await stage.status()).get("attempt") == number)

    asyncio.run(story())


@pytest.mark.slow
def test_kuberay_away_for_minutes_is_told_and_made_up_for(own_box: ControlPlane) -> None:
    async def story() -> None:
        async with operated(own_box, "default") as (stage, _):
            stage.apply()
            await comes(stage, "Training", "True", "Running")
            dead = kill(own_box, KUBERAY)

            # What runs goes on, and can be suspended: the garbage collector takes the pods.
            stage.apply(suspend=True)
            await comes(stage, "Suspended", "True", "SuspendedBySpec")
            await until(lambda: has_pods(0))
            stage.apply()

            async def is_told() -> bool:
                return "KubeRay" in await message_of(stage, "ClusterReady")

            await until(is_told)
            events = own_box.kubectl("get", "events", "-o", "jsonpath={.items[*].message}")
            assert "KubeRay" in events
            assert (await stage.status())["phase"] == "Pending"

            start(own_box, dead)
            await comes(stage, "Training", "True", "Running")
            status = await stage.status()
            assert (status["run"], status["attempt"], status["failures"]) == (1, 2, 0)

            dead = kill(own_box, KUBERAY)
            delete = ("delete", "dsexp", "--all", "--timeout=90s")
            await asyncio.to_thread(own_box.kubectl, *delete)
            await until(lambda: has_pods(0))
            start(own_box, dead)

    async def has_pods(number: int) -> bool:
        found = await asyncio.to_thread(own_box.kubectl, "get", "pods", "-o", "name")
        return len(found.split()) == number

    asyncio.run(story())
