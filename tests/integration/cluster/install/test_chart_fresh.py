"""The chart on a cluster that never had Lastmile, and is to have nothing of it left."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart_stage import CRD, Release, finalizers, play_hook, uninstalling
from commands import User, manifest
from helm_chart import CHART, Helm, HelmError

from dataset_operator.api import FINALIZER
from tools.cluster.binaries import Binaries
from tools.cluster.control_plane import ControlPlane
from tools.cluster.startup import Settings

RAY_CRD = "rayclusters.ray.io"


@pytest.fixture
def bare(parts: Binaries, tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane alone: no node runs a pod."""
    settings = Settings(num_nodes=0)
    with ControlPlane.start(tmp_path / "bare", settings=settings, parts=parts) as box:
        yield box


@pytest.mark.slow
def test_a_release_that_keeps_nothing_leaves_nothing(
    bare: ControlPlane, helm: str, tmp_path: Path
) -> None:
    found = Helm(program=helm, home=tmp_path / "helm", kubeconfig=bare.kubeconfig)
    release = Release(box=bare, helm=found, namespace="default")
    release.run("install", CHART, crds={"keep": False})
    user = User(box=bare, namespace="default")
    user.reads("submit", "-f", "-", stdin=manifest())
    patch = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
    user.kubectl("patch", "dsexp", "clicks", "--type=merge", "-p", patch)
    assert finalizers(bare, "default") == [FINALIZER]

    with pytest.raises(HelmError, match=r"crds\.keep"):
        release.run("upgrade", CHART, crds={"install": False})
    release.run("upgrade", CHART, crds={"keep": True})
    release.run("upgrade", CHART, crds={"install": False})
    release.run("upgrade", CHART, crds={"keep": False})
    assert user.reads("get", "clicks")

    with uninstalling(release) as process:
        assert "default/clicks: released" in play_hook(release, process, tmp_path)
        said, _ = process.communicate()
        assert process.returncode == 0, said
    bare.kubectl("wait", "--for=delete", f"crd/{CRD}", "--timeout=60s")

    late = user.reads("operator", "release-finalizers", "--all-namespaces")
    assert len(late.splitlines()) == 1  # nothing was left to release
    assert ": released" not in late

    bare.kubectl("delete", "crd", RAY_CRD)
    with pytest.raises(HelmError, match=rf"checks\.kuberay: .*{RAY_CRD}"):
        release.run("install", CHART)
    release.run("install", CHART, checks={"kuberay": False})
