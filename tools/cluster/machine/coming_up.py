"""The processes of a starting box: starts them, waits for them, and reports one that ends.

`startup.py` and `node_startup.py` define the order.
"""

import http.client
import ssl
import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

from tools.cluster.api_requests import Server
from tools.cluster.components import Component, Layout, Probe
from tools.cluster.errors import (
    BoxError,
    ComponentError,
    PortTakenError,
    RequestError,
    read_log,
)
from tools.cluster.machine.processes import is_listening, spawn

READY_TIMEOUT_SECONDS = 120.0  # 3 s on an idle machine; a busy one takes its time
POLL_SECONDS = 0.05
PORT_TAKEN = "address already in use"  # what Go says, whatever the component
T = TypeVar("T")


class Running:
    """The processes of one attempt, watched while they become ready."""

    def __init__(self, box_id: str, layout: Layout, address: str, *, detached: bool) -> None:
        self._box_id = box_id
        self._layout = layout
        self._address = address
        self._is_detached = detached
        self._tls = build_tls(layout)
        self._processes: dict[str, tuple[Component, subprocess.Popen[bytes]]] = {}
        self._waiting: list[Component] = []

    def server(self, port: int, *, is_tls: bool = True) -> Server:
        """Return the box's server on a port."""
        return Server(host=self._address, port=port, tls=self._tls if is_tls else None)

    def start(self, *components: Component) -> None:
        """Start components; `wait` waits for them."""
        for component in components:
            folder = self._layout.folder
            process = spawn(component, self._box_id, folder, detached=self._is_detached)
            self._processes[component.name] = (component, process)
            self._waiting.append(component)

    def wait(self) -> None:
        """Return once all started components are ready."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while self._waiting:
            self.check()
            self._waiting = [c for c in self._waiting if c.probe and not self._is_ready(c.probe)]
            if self._waiting and time.monotonic() > deadline:
                late = self._waiting[0]
                what = f"was not ready after {READY_TIMEOUT_SECONDS:.0f} s"
                raise ComponentError(late.name, what, late.log)
            time.sleep(POLL_SECONDS if self._waiting else 0)
        self.check()

    def wait_for(self, what: str, is_true: Callable[[], bool]) -> None:
        """Return once a condition is true that the components bring about."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while not self.during(is_true):
            self.check()
            if time.monotonic() > deadline:
                logs = self._layout.logs
                raise BoxError(f"waited {READY_TIMEOUT_SECONDS:.0f} s for {what}; see {logs}")
            time.sleep(POLL_SECONDS)

    def during(self, work: Callable[[], T]) -> T:
        """Do work that needs the processes; if it fails, report a process that has ended."""
        try:
            return work()
        except (RequestError, OSError, http.client.HTTPException):
            self.check()
            raise

    def check(self) -> None:
        """Raise if a process has ended."""
        for component, process in self._processes.values():
            code = process.poll()
            if code is not None:
                is_port_taken = PORT_TAKEN in read_log(component.log)
                error = PortTakenError if is_port_taken else ComponentError
                raise error(component.name, f"ended with code {code}", component.log)

    def _is_ready(self, probe: Probe) -> bool:
        is_ours = is_listening(self._box_id, probe.port)
        return is_ours and self.server(probe.port, is_tls=probe.is_tls).is_ready(probe.path)


def build_tls(layout: Layout) -> ssl.SSLContext:
    """Return the authority and the certificate of this process for a box's servers."""
    tls = ssl.create_default_context(cafile=layout.pki / "ca.crt")
    tls.load_cert_chain(layout.pki / "client.crt", layout.pki / "client.key")
    return tls
