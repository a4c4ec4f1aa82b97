"""A cluster that was there before, as kind's: nothing of ours is on it, nor any of kwok's nodes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_commands import ROOT
from commands import User

from tools.cluster.binaries import Binaries
from tools.cluster.control_plane import ControlPlane
from tools.cluster.startup import Settings

FOLDER = Path(__file__).parents[1]
PLAYED = FOLDER / "experiment" / "test_losses.py"
COMMANDS = FOLDER / "laptop" / "test_cluster_commands.py"
ANYWHERE = f"{COMMANDS}::test_submit_creates_changes_and_leaves_alone"


@pytest.fixture(scope="module")
def bare(parts: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Such a cluster: a control plane alone."""
    folder, settings = tmp_path_factory.mktemp("bare") / "box", Settings(num_nodes=0)
    with ControlPlane.start(folder, settings=settings, parts=parts) as box:
        yield box


@pytest.mark.slow
def test_without_the_crd_the_command_that_installs_it_is_told(bare: ControlPlane) -> None:
    user = User(box=bare, namespace="default")
    assert "kubectl apply --server-side -f crds/" in user.fails("get")
    started = user.fails("operator", "--dev", "--runtime-image", "none", "--port", "0")
    assert "kubectl apply --server-side -f crds/" in started


@pytest.mark.slow
def test_the_tests_install_the_crd_and_skip_what_the_cluster_cannot_play(
    bare: ControlPlane, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"  # not in the folder of a box
    kubeconfig.write_bytes(bare.kubeconfig.read_bytes())

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", PLAYED, ANYWHERE],
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "USE_EXISTING_CLUSTER": "true"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    *_, left_out, end = done.stdout.splitlines()
    assert "3 of 3 tests: " in left_out, done.stdout
    assert "1 passed, 3 skipped" in end, done.stdout
