"""A cluster that was there before, as kind's: nothing of ours is on it, nor any of kwok's nodes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_commands import ROOT

from tools.cluster.binaries import Binaries
from tools.cluster.control_plane import ControlPlane
from tools.cluster.startup import Settings

FOLDER = Path(__file__).parent
PLAYED = FOLDER / "test_losses.py"
ANYWHERE = f"{FOLDER / 'test_cli.py'}::test_submit_creates_changes_and_leaves_alone"


@pytest.fixture
def kubeconfig(parts: Binaries, tmp_path: Path) -> Iterator[Path]:
    """Of such a cluster, and not in a box's folder."""
    settings = Settings(num_nodes=0)
    with ControlPlane.start(tmp_path / "box", settings=settings, parts=parts) as box:
        copy = tmp_path / "kubeconfig"
        copy.write_bytes(box.kubeconfig.read_bytes())
        yield copy


def test_the_tests_install_the_crd_and_skip_what_the_cluster_cannot_play(kubeconfig: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", PLAYED, ANYWHERE],
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "USE_EXISTING_CLUSTER": "true"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    *_, left_out, end = done.stdout.splitlines()
    assert "3 of 4 tests: the existing cluster does not play pods" in left_out, done.stdout
    assert "1 passed, 3 skipped" in end
