"""A control plane of upstream's own programs in a folder: no root, no containers, up in seconds.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, KubeRay, and kwok, which plays the
nodes and the pods on them. Any number run side by side, each on ports and in a folder of its own.

    with ControlPlane.start(folder) as box:
        box.kubectl("get", "nodes")

`binaries.py` says where the programs come from, `startup.py` in which order they start,
`registry.py` what becomes of a box whose owner is killed.
"""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.cluster import registry
from tools.cluster.binaries import (
    CONTROL_PLANE_PROGRAMS,
    KUBECTL,
    Binaries,
    find_control_plane,
)
from tools.cluster.components import Layout, Ports
from tools.cluster.errors import BoxError, ComponentError, NotRunningError, PortTakenError
from tools.cluster.kubectl import Kubectl
from tools.cluster.ports import pick_ports
from tools.cluster.processes import find_processes, kill_processes
from tools.cluster.registry import Record
from tools.cluster.startup import Settings, Startup, build_kubectl, write_bin

START_ATTEMPTS = 4  # each with other ports; a port is lost about once in thousands of starts
KEPT = ("logs",)  # what `stop` leaves on request
COMPONENTS = tuple(program.name for program in CONTROL_PLANE_PROGRAMS if program != KUBECTL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """A control plane that runs.

    Attributes:
        record: what the registry knows of it.
        kubectl: runs kubectl as its administrator: `kubectl("get", "pods")` returns the output.
    """

    record: Record
    kubectl: Kubectl

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
            settings: what it is to be like.
            detached: whether it outlives this process; else it ends with it, kill -9 included.
            parts: what it is made of; what was built, by default.
            pick: gives the ports of an attempt.

        Raises:
            ToolError: the programs are not built.
            ComponentError: a component does not become ready; its log's end is in the message, the
                folder's logs are kept.
        """
        _require_linux()
        parts = parts or find_control_plane()
        registry.sweep()
        record = registry.register(folder)
        layout = Layout(folder=Path(record.folder))
        try:
            _start_on_free_ports(
                Startup(
                    box_id=record.id,
                    layout=layout,
                    binaries=parts,
                    settings=settings or Settings(),
                    is_detached=detached,
                ),
                pick,
            )
            write_bin(layout, parts[KUBECTL])
            if detached:
                record = registry.detach(record)
        except BaseException:
            registry.remove(record, keep=KEPT)
            raise
        return cls(record=record, kubectl=build_kubectl(layout, parts))

    @classmethod
    def attach(cls, folder: Path) -> Self:
        """Return the detached control plane that runs in `folder`.

        Raises:
            NotRunningError: there is none, or not all of it runs.
        """
        record = registry.find_record(folder)
        if record is None:
            raise NotRunningError(f"no cluster runs in {folder}: start one by `make cluster-up`")
        layout = Layout(folder=Path(record.folder))
        program = layout.bin / "kubectl"
        cache = layout.folder / "kubectl-cache"
        kubectl = Kubectl(program=program, kubeconfig=layout.kubeconfig, cache=cache)
        box = cls(record=record, kubectl=kubectl)
        down = [name for name, pid in box.processes().items() if pid is None]
        if down:
            raise NotRunningError(f"of the cluster in {folder}, {', '.join(down)} do not run")
        if not record.is_detached:
            raise NotRunningError(f"the cluster in {folder} is a test run's, or still starting")
        return box

    @property
    def layout(self) -> Layout:
        """The map of its folder."""
        return Layout(folder=Path(self.record.folder))

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig

    def processes(self) -> dict[str, int | None]:
        """Return the process id of every component, None for one that does not run."""
        found = {process.component: process.pid for process in find_processes(self.record.id)}
        return {name: found.get(name) for name in COMPONENTS}

    def check(self) -> None:
        """Make sure that all of it still runs.

        Raises:
            ComponentError: a component has ended; its log's end is in the message.
        """
        for name, pid in self.processes().items():
            if pid is None:
                raise ComponentError(name, "has ended", self.layout.logs / f"{name}.log")

    def stop(self, *, keep_logs: bool = False) -> None:
        """End all of its processes and delete its folder, but for the logs if they are kept."""
        registry.remove(self.record, keep=KEPT if keep_logs else ())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


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


def _require_linux() -> None:
    if sys.platform != "linux":
        raise BoxError(f"a cluster in a box runs on Linux, got {sys.platform!r}: use kind or k3d")
