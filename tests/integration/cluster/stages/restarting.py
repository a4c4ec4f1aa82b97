"""A control plane of a test's own, whose store, API server and KubeRay die and come again."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reconcile_stage import DEADLINE_SECONDS, POLL_SECONDS

from tools.cluster.binaries import Binaries
from tools.cluster.box import KubectlError
from tools.cluster.components import Component
from tools.cluster.control_plane import ControlPlane
from tools.cluster.registry import spawn
from tools.cluster.startup import Settings

CRDS = Path(__file__).parents[4] / "crds"
ETCD, API_SERVER, KUBERAY = "etcd", "kube-apiserver", "kuberay"


@contextmanager
def running_box(folder: Path, parts: Binaries) -> Iterator[ControlPlane]:
    """Run a control plane whose faults disturb no other test."""
    settings = Settings(crds=tuple(sorted(CRDS.glob("*.yaml"))))
    box = ControlPlane.start(folder, settings=settings, parts=parts)
    try:
        yield box
    finally:
        box.stop()


def kill(box: ControlPlane, name: str) -> Component:
    """Kill a component, and return it for `start` once it has let go of its ports."""
    pid = box.processes()[name]
    assert pid is not None, box.processes()
    command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    os.kill(pid, signal.SIGKILL)
    # All its threads have ended then, and its sockets are closed; `box` reaps it.
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return Component(
        name=name, command=tuple(command), log=box.layout.logs / f"{name}.log", probe=None
    )


def start(box: ControlPlane, component: Component) -> None:
    spawn(component, box.record.id, box.layout.folder, detached=False)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not await is_so():
            await asyncio.sleep(POLL_SECONDS)


async def answers(box: ControlPlane) -> bool:
    """Return whether the API server, and the store behind it, are ready."""
    try:
        return "ok" in await asyncio.to_thread(box.kubectl, "get", "--raw", "/readyz")
    except KubectlError:
        return False
