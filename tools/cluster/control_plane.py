"""A control plane of upstream's own programs in a folder: no root, no containers, up in seconds.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, KubeRay, and kwok, which plays the
nodes and the pods on them. Any number run side by side, each on ports and in a folder of its own.

    with ControlPlane.start(folder) as box:
        box.kubectl("get", "nodes")

`binaries.py` says where the programs come from, `startup.py` in which order they start,
`registry.py` removes a box whose owner was killed.
"""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from tools.cluster.binaries import (
    CONTROL_PLANE_PROGRAMS,
    KUBECTL,
    Binaries,
    find_control_plane,
)
from tools.cluster.components import Layout, Ports
from tools.cluster.errors import BoxError, PortTakenError
from tools.cluster.machine.ports import pick_ports
from tools.cluster.machine.processes import kill_processes
from tools.cluster.machine.registry import Record
from tools.cluster.started import StartedBox
from tools.cluster.startup import Settings, Startup

START_ATTEMPTS = 4  # each with other ports; a port is lost about once in thousands of starts
COMPONENTS = tuple(program.name for program in CONTROL_PLANE_PROGRAMS if program != KUBECTL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane(StartedBox):
    """A control plane that runs."""

    COMPONENTS: ClassVar = COMPONENTS

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        settings: Settings | None = None,
        detached: bool = False,
        parts: Binaries | None = None,
        pick: Callable[[], Ports] = pick_ports,
    ) -> Self:
        """Bring a control plane up, after cleaning up behind runs that were killed.

        Args:
            folder: empty or not there yet; all of the box is in it.
            settings: its settings.
            detached: whether it outlives this process; otherwise it ends with it, even by kill -9.
            parts: its programs; by default the built ones.
            pick: returns the ports of an attempt.

        Raises:
            ToolError: the programs are not built.
            ComponentError: a component does not become ready; its log's end is in the message, the
                folder's logs are kept.
        """
        require_linux()
        parts = parts or find_control_plane()

        def start(record: Record) -> None:
            startup = Startup(
                box_id=record.id,
                layout=Layout(folder=Path(record.folder)),
                binaries=parts,
                settings=settings or Settings(),
                is_detached=detached,
            )
            _start_on_free_ports(startup, pick)

        return cls.bring_up(folder, parts[KUBECTL], start, detached=detached)


def _start_on_free_ports(startup: Startup, pick: Callable[[], Ports]) -> None:
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            startup.run(pick())
            return
        except PortTakenError:
            kill_processes(startup.box_id)
            if attempt == START_ATTEMPTS:
                raise
        for leftover in (startup.layout.etcd, startup.layout.logs, startup.layout.pki):
            shutil.rmtree(leftover, ignore_errors=True)


def require_linux() -> None:
    """Raise where no box can run.

    Raises:
        BoxError: this is another system.
    """
    if sys.platform != "linux":
        raise BoxError(f"a cluster in a box runs on Linux, got {sys.platform!r}: use kind or k3d")
