"""A full node leaves nothing on the machine, and what a killed owner leaves is cleaned up."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_commands import ROOT, run_cluster, wait_until
from probe_pods import run_server

from tools.cluster import node_machine, registry
from tools.cluster.binaries import Binaries
from tools.cluster.box import BoxError
from tools.cluster.components import Layout
from tools.cluster.full_node import FullNode
from tools.cluster.registry import IN_POD, find_processes
from tools.cluster.startup import build_kubectl
from tools.go_tools import cache_root

pytestmark = pytest.mark.slow  # the node itself changes rarely

# Starts a full node in the folder argv[1] with the image argv[2] and waits to be killed.
OWNER = """
import sys
from pathlib import Path
from tools.cluster.full_node import FullNode
FullNode.start(Path(sys.argv[1]), images=[Path(sys.argv[2])])
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, node_parts: Binaries) -> Iterator[Path]:
    """Keep this test's nodes and images from those of other runs, which go on beside it."""
    assert node_parts.programs
    with tempfile.TemporaryDirectory(prefix="lastmile-life-") as folder:
        (Path(folder) / "lastmile").mkdir()
        (Path(folder) / "lastmile" / "tools").symlink_to(cache_root())
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        yield Path(folder)
        registry.sweep()  # where a test failed half-way


@contextmanager
def owner(folder: Path, image: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that owns a full node; it is killed at the end at the latest."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), str(image)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def find_traces(box_id: str, folder: Path) -> dict[str, object]:
    """Return what there is of a full node on this machine, by kind; nothing is left out."""
    interface = node_machine.INTERFACES / node_machine.interface_name(box_id)
    links = node_machine.LOG_LINKS.glob("*.log")
    found = {
        "processes": [process.component for process in find_processes(box_id)],
        "mounts": node_machine.find_mounts(folder),
        "control groups": node_machine.find_groups(box_id),
        "interface": interface.exists(),
        "log links": [link for link in links if str(link.readlink()).startswith(str(folder))],
        "addresses": [*node_machine.NETWORK_RESULTS.glob(f"*{box_id}*")],
        "folder": folder.exists(),
    }
    return {kind: value for kind, value in found.items() if value}


def running_components(box_id: str) -> set[str]:
    return {process.component for process in find_processes(box_id)}


def read_kernel_settings() -> dict[str, str]:
    return {name: (node_machine.KERNEL / name).read_text() for name in node_machine.KERNEL_SETTINGS}


def test_what_a_killed_owner_leaves_is_cleaned_up_by_the_next_start_but_for_the_images(
    own_cache: Path, probe_image: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = own_cache / "box"
    layout = Layout(folder=folder)
    with owner(folder, probe_image) as process:
        record = registry.find_record(folder)
        assert record is not None
        running = FullNode(record=record, kubectl=build_kubectl(layout, layout.bin / "kubectl"))
        run_server(running, "default", "web", "hello")
        assert {*find_traces(record.id, folder)} == {
            "processes",
            "mounts",
            "control groups",
            "interface",
            "log links",
            "addresses",
            "folder",
        }
        sockets = node_machine.find_shim_sockets(folder)
        assert all(socket.exists() for socket in sockets)
        process.send_signal(signal.SIGKILL)
    # What is bound to the owner ends with it; shims and containers do not.
    wait_until(lambda: not {*FullNode.COMPONENTS} & running_components(record.id))
    assert running_components(record.id) == {IN_POD, "containerd's child"}

    with FullNode.start(own_cache / "next", images=[probe_image]) as node:
        assert find_traces(record.id, folder) == {}
        run_server(node, "default", "web", "hello")

    assert sockets
    assert not any(socket.exists() for socket in sockets)
    assert capfd.readouterr().err.count(f"importing {probe_image}") == 1


def test_a_full_node_goes_up_tells_its_status_and_goes_down_without_a_trace(
    own_cache: Path, probe_image: Path
) -> None:
    folder, settings = own_cache / "box", read_kernel_settings()
    try:
        up = run_cluster("up", folder, "--node=full")
        assert up.returncode == 0, up.stderr
        status, kubeconfig = run_cluster("status", folder), run_cluster("kubeconfig", folder)
        node = FullNode.attach(folder)
        node.import_image(probe_image)
        run_server(node, "default", "web", "hello")
        simulated = run_cluster("up", folder)
        with pytest.raises(BoxError, match="images"):
            FullNode.start(own_cache / "second")
    finally:
        down = run_cluster("down", folder)

    assert status.stdout.count(" running, process ") >= len(FullNode.COMPONENTS)
    assert "box-node-0   Ready" in status.stdout
    assert kubeconfig.stdout == f"{folder}/kubeconfig\n"
    assert simulated.returncode == 1
    assert "simulated" in simulated.stderr
    assert down.returncode == 0, down.stderr
    assert find_traces(node.record.id, folder) == {}
    assert read_kernel_settings() == settings


def test_a_user_other_than_root_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(BoxError, match="root"):
        FullNode.start(tmp_path / "box")


def test_a_folder_too_deep_for_sockets_is_refused(own_cache: Path) -> None:
    with pytest.raises(BoxError, match=r"\b80\b"):
        FullNode.start(own_cache / ("x" * 80))
