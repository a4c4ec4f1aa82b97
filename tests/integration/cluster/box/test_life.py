"""A box ends with its owner, and what a killed owner left is cleaned up by whoever comes next."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_commands import ROOT, TIMEOUT_SECONDS, run_cluster, wait_until
from facts import assert_told

from tools.cluster import registry
from tools.cluster.binaries import Binaries
from tools.cluster.box import Box, BoxError, ComponentError
from tools.cluster.components import HOST
from tools.cluster.control_plane import ControlPlane, pick_ports
from tools.cluster.registry import MARKER, find_processes
from tools.go_tools import cache_root

pytestmark = pytest.mark.slow  # the box itself changes rarely

# What controller-runtime's setup-envtest brings.
BROUGHT = {"etcd", "kube-apiserver", "kubectl"}
# Starts a box in the folder argv[1] and waits to be killed.
OWNER = """
import sys
from pathlib import Path
from tools.cluster.control_plane import ControlPlane
ControlPlane.start(Path(sys.argv[1]), detached=sys.argv[2] == "detached")
sys.stdin.read()
"""


@pytest.fixture
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this test's boxes from other runs on this machine, which would clean up behind it."""
    cache = tmp_path / "cache" / "lastmile"
    cache.mkdir(parents=True)
    (cache / "tools").symlink_to(cache_root())
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))


@contextmanager
def owner(folder: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that owns a box in `folder`; it is killed at the end at the latest."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), how],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def running(folder: Path) -> set[str]:
    """Return the components of the box in `folder` that run now."""
    record = registry.find_record(folder)
    return {found.component for found in find_processes(record.id)} if record else set()


def with_program(parts: Binaries, name: str, script: Path, text: str) -> Binaries:
    script.write_text(text)
    script.chmod(0o755)
    return replace(parts, programs={**parts.programs, name: script})


@pytest.fixture(scope="module")
def second(parts: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start a box beside the shared one, of programs brought along; it loses a port at first."""
    folder = tmp_path_factory.mktemp("second")
    for name in BROUGHT:
        (folder / name).symlink_to(parts.programs[name])
    with pytest.MonkeyPatch.context() as patch, socket.create_server((HOST, 0)) as other:
        patch.setenv("KUBEBUILDER_ASSETS", str(folder))
        taken = replace(pick_ports(), etcd=other.getsockname()[1])
        picks = iter([taken, pick_ports()])
        with ControlPlane.start(folder / "box", pick=lambda: next(picks)) as box:
            yield box


def test_two_boxes_side_by_side_know_nothing_of_each_other(
    box: Box, namespace: str, second: ControlPlane
) -> None:
    in_first = box.kubectl("get", "namespaces", "-o", "name").split()
    in_second = second.kubectl("get", "namespaces", "-o", "name").split()

    assert f"namespace/{namespace}" in in_first
    assert f"namespace/{namespace}" not in in_second


def test_a_box_takes_other_ports_when_one_was_taken_in_the_meantime(second: ControlPlane) -> None:
    assert second.kubectl("get", "--raw", "/readyz") == "ok"


def test_a_component_that_ends_later_is_told(second: ControlPlane) -> None:
    second.check()
    (kuberay,) = (f for f in find_processes(second.record.id) if f.component == "kuberay")
    os.kill(kuberay.pid, signal.SIGKILL)
    wait_until(lambda: second.processes()["kuberay"] is None)

    with pytest.raises(ComponentError, match="kuberay"):
        second.check()


def test_a_box_runs_the_programs_that_the_user_brings(second: ControlPlane) -> None:
    for name in BROUGHT & second.processes().keys():
        command = Path(f"/proc/{second.processes()[name]}/cmdline").read_bytes().split(b"\0")
        assert Path(command[0].decode()) == second.layout.folder.with_name(name)


def test_a_component_that_fails_is_named_with_the_end_of_its_log(
    parts: Binaries, tmp_path: Path
) -> None:
    script = "#!/bin/sh\necho first line\necho no such flag: --data-dir\nexit 3\n"
    broken = with_program(parts, "etcd", tmp_path / "broken-etcd", script)
    folder = tmp_path / "box"

    with pytest.raises(ComponentError, match=r"etcd .*\b3\b(.|\n)*no such flag") as told:
        ControlPlane.start(folder, parts=broken)

    assert told.value.component == "etcd"
    assert registry.find_record(folder) is None
    assert {path.name for path in folder.iterdir()} == {"logs", MARKER}


def test_the_remains_of_a_box_that_failed_do_not_keep_the_next_one_out(
    parts: Binaries, tmp_path: Path
) -> None:
    broken = with_program(parts, "etcd", tmp_path / "broken-etcd", "#!/bin/sh\nexit 3\n")
    for _ in range(2):
        with pytest.raises(ComponentError):
            ControlPlane.start(tmp_path / "box", parts=broken)


def test_a_folder_that_holds_something_is_left_alone(parts: Binaries, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")

    with pytest.raises(BoxError, match="empty"):
        ControlPlane.start(tmp_path, parts=parts)

    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.usefixtures("own_registry")
def test_a_box_ends_with_an_owner_that_is_killed(parts: Binaries, tmp_path: Path) -> None:
    folder = tmp_path / "box"
    with owner(folder, "bound") as process:
        wait_until(lambda: "kube-apiserver" in running(folder))
        record = registry.find_record(folder)
        process.send_signal(signal.SIGKILL)

    assert record is not None
    wait_until(lambda: not find_processes(record.id))
    assert folder.exists()  # nobody was left to remove it

    assert [swept.id for swept in registry.sweep() if swept.folder == str(folder)] == [record.id]
    assert not folder.exists()
    assert registry.find_record(folder) is None


@pytest.mark.usefixtures("own_registry")
def test_a_record_of_another_version_is_told_and_passed_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    registry.registry_root().mkdir()
    (registry.registry_root() / "old.json").write_text('{"version": 0}')

    assert registry.sweep() == []
    assert_told(capsys.readouterr().err, "… record … version … 1 … 0")


def test_a_box_whose_owner_lives_is_not_cleaned_up(box: Box, parts: Binaries) -> None:
    sweep = "from tools.cluster import registry; registry.sweep()"
    another = [sys.executable, "-c", sweep]
    subprocess.run(another, cwd=ROOT, check=True, timeout=TIMEOUT_SECONDS)

    assert box.kubectl("get", "--raw", "/readyz") == "ok"


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("how", ["down", "start"])
def test_what_a_killed_cluster_up_left_running_is_cleaned_up_by_the_next(
    how: str, parts: Binaries, tmp_path: Path
) -> None:
    folder = tmp_path / "box"
    with owner(folder, "detached") as process:
        wait_until(lambda: "kube-apiserver" in running(folder))
        process.send_signal(signal.SIGKILL)
    record = registry.find_record(folder)
    assert record is not None
    assert find_processes(record.id)  # detached: they outlive the one that started them

    if how == "down":
        assert run_cluster("down", tmp_path / "elsewhere").returncode == 0
    else:
        registry.sweep()  # what every start begins with

    assert not find_processes(record.id)
    assert not folder.exists()


@pytest.mark.usefixtures("own_registry")
def test_a_cluster_goes_up_once_tells_its_status_and_goes_down_without_a_trace(
    parts: Binaries, tmp_path: Path
) -> None:
    folder = tmp_path / "box"
    try:
        first, second = run_cluster("up", folder), run_cluster("up", folder)
        status, kubeconfig = run_cluster("status", folder), run_cluster("kubeconfig", folder)
        record = registry.find_record(folder)
    finally:
        down = run_cluster("down", folder)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout == second.stdout
    assert " is up" in second.stderr
    assert status.stdout.count(" running, process ") == 6
    assert status.stdout.count(" Ready ") == 3
    assert kubeconfig.stdout == f"{folder}/kubeconfig\n"
    assert down.returncode == 0, down.stderr
    assert record is not None
    assert not find_processes(record.id)
    assert not folder.exists()
    assert run_cluster("status", folder).returncode == 1
