"""A control plane of upstream's own programs in a folder: no root, no containers, up in seconds.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, KubeRay, and kwok, which simulates
nodes and the pods on them. Any number run side by side, each on ports and in a folder of its own.

    with ControlPlane.start(folder) as box:
        box.kubectl("get", "nodes")

`startup.py` starts the programs in their order, and `registry.py` removes a box whose owner was
killed. `full_node.py` has the other kind of `StartedBox`.
"""

import random
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tools.cluster import registry
from tools.cluster.binaries import CONTROL_PLANE_PROGRAMS, KUBECTL, Binaries, find_control_plane
from tools.cluster.box import (
    BoxError,
    ComponentError,
    Kubectl,
    Layout,
    NotRunningError,
    PortTakenError,
)
from tools.cluster.components import HOST, Ports
from tools.cluster.registry import Record, find_processes, kill_processes
from tools.cluster.startup import Settings, Startup, build_kubectl, write_bin

KEPT = ("logs",)  # the folders that `stop` keeps on request
START_ATTEMPTS = 4  # each with other ports; a port is lost about once in thousands of starts
COMPONENTS = tuple(program.name for program in CONTROL_PLANE_PROGRAMS if program != KUBECTL)
LOWEST_PORT = 10_240  # above the well-known services, except those of Kubernetes (10250…)
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
FALLBACK_EPHEMERAL = 32_768  # Linux's default lower end
ATTEMPTS = 1_000


def pick_ports() -> Ports:
    """Return ports on which no process listens.

    They are random ones below those that the kernel assigns to outgoing connections, which the next
    client gets as soon as they are free. `startup.py` notices a port that was taken meanwhile.
    """
    highest = _first_ephemeral() - 1
    taken: set[int] = set()
    picker = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = picker.randint(min(LOWEST_PORT, highest // 2), highest)
        if port not in taken and _is_free(port):
            taken.add(port)
        if len(taken) == len(fields(Ports)):
            return Ports(**dict(zip((field.name for field in fields(Ports)), taken, strict=True)))
    raise BoxError(f"no {len(fields(Ports))} free ports below {highest} in {ATTEMPTS} attempts")


def _first_ephemeral() -> int:
    try:
        return int(EPHEMERAL_PORTS.read_text().split()[0])
    except OSError:
        return FALLBACK_EPHEMERAL


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedBox:
    """A box that was started here and runs: a control plane or a full node.

    Attributes:
        COMPONENTS: the names of its processes.
        record: its record in the registry.
        kubectl: runs kubectl as its administrator: `kubectl("get", "pods")` returns the output.
    """

    COMPONENTS: ClassVar[tuple[str, ...]] = ()
    record: Record
    kubectl: Kubectl

    @classmethod
    def bring_up(
        cls, folder: Path, kubectl: Path, start: Callable[[Record], None], *, detached: bool
    ) -> Self:
        """Return the box that `start` starts in a folder, after removing those of killed runs.

        Args:
            folder: empty or missing.
            kubectl: the program.
            start: returns once the box of a record is ready; if it fails, everything except the
                logs is removed.
            detached: whether the box outlives this process.

        Raises:
            BoxError: the folder is not empty.
        """
        registry.sweep()
        record = registry.register(folder)
        layout = Layout(folder=Path(record.folder))
        try:
            start(record)
            write_bin(layout, kubectl)
            if detached:
                record = registry.detach(record)
        except BaseException:
            registry.remove(record, keep=KEPT)
            raise
        return cls(record=record, kubectl=build_kubectl(layout, kubectl))

    @classmethod
    def attach(cls, folder: Path) -> Self:
        """Return the detached box that runs in `folder`.

        Raises:
            NotRunningError: there is none, or a process of it does not run.
        """
        record = registry.find_record(folder)
        if record is None:
            raise NotRunningError(f"no cluster runs in {folder}: start one by `make cluster-up`")
        layout = Layout(folder=Path(record.folder))
        box = cls(record=record, kubectl=build_kubectl(layout, layout.bin / "kubectl"))
        down = [name for name, pid in box.processes().items() if pid is None]
        if down:
            raise NotRunningError(
                f"the cluster in {folder} is incomplete: {', '.join(down)} do not run"
            )
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
        return {name: found.get(name) for name in self.COMPONENTS}

    def check(self) -> None:
        """Raise if a component no longer runs.

        Raises:
            ComponentError: a component has ended; its log's end is in the message.
        """
        for name, pid in self.processes().items():
            if pid is None:
                raise ComponentError(name, "has ended", self.layout.logs / f"{name}.log")

    def stop(self, *, keep_logs: bool = False) -> None:
        """End all of its processes and delete its folder, except for the logs if they are kept."""
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
        """Start a control plane, after removing the boxes of killed runs.

        Args:
            folder: empty or missing; all files of the box are in it.
            settings: its settings.
            detached: whether it outlives this process; otherwise it ends with it, even by kill -9.
            parts: its programs; by default the built ones.
            pick: returns the ports of an attempt.

        Raises:
            ToolError: the programs are not built.
            ComponentError: a component does not become ready; the message has the end of its log,
                and the folder's logs are kept.
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
