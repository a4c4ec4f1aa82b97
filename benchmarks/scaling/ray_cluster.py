"""A Ray cluster on this machine: a head for the trainer and the pool, data nodes that join and
leave.

Each data node is a raylet of its own, started by `ray start` as on any machine, with a store of its
own and room for one reader, whose chunks reach the head's store through a socket.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from benchmarks.harness.errors import BenchmarkError
from pipeline_runtime.run.placement import DATA_SUBCLUSTER, SUBCLUSTER_LABEL
from pipeline_runtime.run.ray_connection import connected

DATA_LABELS = {SUBCLUSTER_LABEL: DATA_SUBCLUSTER}
_SERIAL_LABEL = "scaling-node"  # tells nodes apart
_RAY = str(Path(sys.executable).with_name("ray"))
_HOST = "127.0.0.1"
# The head's store holds twice the bytes that may be ahead of the trainer
# (reader_feed.CREDIT_BYTES); a node's, the two chunks that its reader is asked for, of 50 MB each.
_HEAD_STORE_BYTES, _NODE_STORE_BYTES = 1 << 30, 256 << 20
_START_SECONDS = 180.0  # 10 to 20 on an idle machine; eight at once on two cores take longer
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A data node; `serial` is its own for as long as the cluster lives."""

    serial: str
    process: subprocess.Popen[bytes]


class Cluster:
    """The data nodes of the head at `address`, which this process is connected to."""

    def __init__(self, address: str, folder: Path, stack: ExitStack) -> None:
        self.address, self._folder, self._stack = address, folder, stack
        self._num_started = 0
        self.nodes: list[Node] = []

    def add(self, count: int) -> None:
        """Start nodes, without waiting for them."""
        for _ in range(count):
            serial = str(self._num_started)
            process = _start_ray(
                self._folder / f"node-{serial}.log",
                f"--address={self.address}",
                # A folder of its own: in a shared one, nodes that start at once use the same
                # sockets.
                f"--temp-dir={self._folder / serial}",
                "--num-cpus=1",
                f"--object-store-memory={_NODE_STORE_BYTES}",
                f"--labels={SUBCLUSTER_LABEL}={DATA_SUBCLUSTER},{_SERIAL_LABEL}={serial}",
            )
            self._stack.callback(_kill, process)  # `ray start` outlives a drained raylet
            self._num_started += 1
            self.nodes.append(Node(serial=serial, process=process))

    def resize(self, count: int) -> None:
        """Start nodes and wait for them, or end the newest, until there are `count`."""
        for node in self.nodes[count:]:
            self.end(node)
        self.add(count - len(self.nodes))
        deadline = time.monotonic() + _START_SECONDS
        while (found := len(self.find_up())) < count:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"nodes: {count} started, {found} came up")
            time.sleep(_LOOK_SECONDS)

    def find_up(self) -> set[str]:
        """Return the serials of the nodes that are in the cluster."""
        return {node.serial for node in self.nodes} & _alive().keys()

    def end(self, node: Node) -> None:
        """Terminate a node."""
        self.nodes.remove(node)
        node.process.terminate()

    def kill(self, node: Node) -> None:
        """Kill all processes of a node, as when its machine is lost."""
        self.nodes.remove(node)
        _kill(node.process)


@contextmanager
def open_cluster() -> Iterator[Cluster]:
    """Start a head without data nodes, and connect this process, the trainer, to it."""
    # Otherwise Ray asks its nodes, but not this process, for a token in the user's home.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # Ray's sockets are there, and their paths may have 107 bytes at most.
    place = tempfile.TemporaryDirectory(prefix="lm-", dir="/tmp", ignore_cleanup_errors=True)
    with place as name, ExitStack() as stack:
        folder = Path(name)
        with socket.socket() as probe:
            probe.bind((_HOST, 0))
            address = f"{_HOST}:{probe.getsockname()[1]}"
        head = _start_ray(
            folder / "head.log",
            "--head",
            f"--port={address.partition(':')[2]}",
            "--num-cpus=0",
            f"--object-store-memory={_HEAD_STORE_BYTES}",
            f"--temp-dir={folder}",
            "--include-dashboard=False",
        )
        stack.callback(_kill, head)
        _wait_for_head(head, folder / "head.log")
        stack.enter_context(connected(address, 1, verbose=False))
        yield Cluster(address, folder, stack)


def _start_ray(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [_RAY, "start", "--block", f"--node-ip-address={_HOST}", *arguments]
    command += ["--include-log-monitor=False", "--dashboard-agent-listen-port=0"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )


def _wait_for_head(head: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while b"Ray runtime started" not in log.read_bytes():
        if head.poll() is not None or time.monotonic() > deadline:
            raise BenchmarkError(f"Ray's head does not come up:\n{log.read_text()}")
        time.sleep(_LOOK_SECONDS)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _alive() -> dict[str, str]:
    """Return Ray's ids of the data nodes that are up, by their serials."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    labelled = [node for node in nodes if node["Alive"] and _SERIAL_LABEL in node["Labels"]]
    return {node["Labels"][_SERIAL_LABEL]: node["NodeID"] for node in labelled}
