"""Shared part of `ControlPlane` and `FullNode`: the start of a box and its actions."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tools.cluster.components import Layout
from tools.cluster.errors import ComponentError, NotRunningError
from tools.cluster.kubectl import Kubectl
from tools.cluster.machine import registry
from tools.cluster.machine.processes import find_processes
from tools.cluster.machine.registry import Record
from tools.cluster.startup import build_kubectl, write_bin

KEPT = ("logs",)  # what `stop` leaves on request


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedBox:
    """A box that runs.

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
        """Return the box that `start` makes of a folder, after cleaning up behind killed runs.

        Args:
            folder: empty or not there yet.
            kubectl: the program.
            start: returns once the box of a record is ready; if it fails, all but the logs is
                removed.
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
            NotRunningError: there is none, or not all of it runs.
        """
        record = registry.find_record(folder)
        if record is None:
            raise NotRunningError(f"no cluster runs in {folder}: start one by `make cluster-up`")
        layout = Layout(folder=Path(record.folder))
        box = cls(record=record, kubectl=build_kubectl(layout, layout.bin / "kubectl"))
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
        return {name: found.get(name) for name in self.COMPONENTS}

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
