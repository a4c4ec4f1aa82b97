"""An operator for all namespaces needs no right over the cluster as a whole, its CRDs included."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from operator_stage import comes
from reconcile_stage import OPERATOR, stage_of
from restarting import running_box, until

from dataset_operator.kube.login import Login
from dataset_operator.serve import serving
from tools.cluster.binaries import Binaries
from tools.cluster.control_plane import ControlPlane


@pytest.fixture
def own_box(parts: Binaries, tmp_path: Path) -> Iterator[ControlPlane]:
    with running_box(tmp_path / "box", parts) as box:
        yield box


def log_in_as_operator(box: ControlPlane, folder: Path) -> Path:
    """A kubeconfig with the rights of the manifest's ClusterRole, which `stage_of` has applied."""
    box.kubectl("create", "serviceaccount", "operator")
    account = "--serviceaccount=default:operator"
    box.kubectl("create", "clusterrolebinding", "watches", f"--clusterrole={OPERATOR}", account)
    token = box.kubectl("create", "token", "operator").strip()
    document = yaml.safe_load(box.kubeconfig.read_text())
    for user in document["users"]:
        user["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.slow
def test_a_crd_that_goes_away_ends_the_operator_whose_next_sees_the_one_made_anew(
    own_box: ControlPlane, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with stage_of(own_box, "default") as stage:
            login = Login(kubeconfig=str(log_in_as_operator(own_box, tmp_path)))
            crd = "rayclusters.ray.io"
            document = json.loads(own_box.kubectl("get", "crd", crd, "-o", "json"))
            made = {key: document[key] for key in ("apiVersion", "kind", "spec")}
            made["metadata"] = {"name": crd}
            ended = asyncio.Event()

            async def has_ended() -> bool:
                return ended.is_set()

            async def has_another_attempt() -> bool:
                return bool((await stage.status())["attempt"] == 2)

            async def watch_until_it_ends() -> None:
                async with serving(stage.reconciler, log_in=login.connection, stop=ended):
                    stage.apply()
                    await comes(stage, "Training", "True", "Running")
                    own_box.kubectl("delete", "crd", crd)
                    await until(has_ended)

            with pytest.raises(Exception, match="404 page not found"):
                await watch_until_it_ends()
            assert "customresourcedefinitions" not in caplog.text  # nor was it refused them
            own_box.kubectl("create", "-f", "-", stdin=json.dumps(made))
            await until(lambda: stage.reconciler.kube.is_served("RayCluster"))
            async with serving(stage.reconciler, log_in=login.connection):
                await until(has_another_attempt)
                await comes(stage, "Training", "True", "Running")

    asyncio.run(story())
