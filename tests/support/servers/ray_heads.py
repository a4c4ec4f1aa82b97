"""Heads of Ray for the tests: started once for a folder of tests, and checked after each module."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from loopback import free_ports

RAY = Path(sys.executable).with_name("ray")
FORKED_WORKERS = Path(__file__).with_name("forked_workers")
START_ATTEMPTS = 4
START_SECONDS = 120.0  # 10 to 20 on an idle machine
STOP_SECONDS = 60.0
LEFTOVER_SECONDS = 90.0  # until Ray has noticed that a driver or a node is gone
# When Ray is told to end, it would wait half a minute for actors that tests left behind.
NO_DRAIN = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
# Ray Data and Ray Train make these once for all drivers of a cluster, and detach them. The
# PlacementGroupCleaner is that of one run, and at times outlives a driver that was killed.
KEPT_ACTORS = {
    "ActorLocationTracker",
    "AutoscalingRequester",
    "PlacementGroupCleaner",
    "TrainStateActor",
    "_AutoscalingCoordinatorActor",
    "_StatsActor",
    "_StatsSummaryActor",
    "_UsageCollectionActor",
}
NUM_CPUS = 4
OBJECT_STORE_BYTES = 400_000_000
NODE_OBJECT_STORE_BYTES = 200_000_000


def fork_workers(folder: Path) -> dict[str, str]:
    """Return variables by which a Ray starts its workers as forks; see `forked_workers`.

    Args:
        folder: for sockets, on a short path; when it is deleted the processes there end.
    """
    path = filter(None, (str(FORKED_WORKERS), os.environ.get("PYTHONPATH")))
    return {"PYTHONPATH": os.pathsep.join(path), "LASTMILE_FORKS": str(folder)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRay:
    """A running `ray start --head`, which wants a token.

    Attributes:
        gcs: port of its global control store.
        dashboard: port of its dashboard, which serves the Jobs API.
        metrics: port of its node's Prometheus metrics.
        folder: where it keeps sockets and logs.
    """

    token: str
    gcs: int
    dashboard: int
    metrics: int
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of its processes, and of those that talk to it."""
        path = os.pathsep.join([str(RAY.parent), os.environ["PATH"]])
        ours = {
            "PATH": path,  # jobs call this Python, and `lastmile`
            "RAY_ADDRESS": "",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        return os.environ | ours | fork_workers(self.folder)

    @property
    def driver_env(self) -> dict[str, str]:
        """Return the environment of a driver whose `--address auto` is this Ray."""
        return self.env | {"RAY_ADDRESS": f"127.0.0.1:{self.gcs}"}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard}"

    def find_leftovers(self) -> list[str]:
        """Return what is left: nodes beside the head, placement groups, actors and jobs."""
        nodes, actors, jobs = self._list("nodes"), self._list("actors"), self._get("/api/jobs/")
        groups = self._list("placement_groups", but="REMOVED")
        return [
            *(f"node {node['node_id']}" for node in nodes if not node["is_head_node"]),
            *(f"placement group {group['placement_group_id']}" for group in groups),
            *(name for actor in actors if (name := actor["class_name"]) not in KEPT_ACTORS),
            *(f"job {job['job_id']}" for job in jobs if job["status"] in ("PENDING", "RUNNING")),
        ]

    def check_nothing_is_left(self) -> None:
        """Fail the module that just ran if it left something for the next."""
        deadline = time.monotonic() + LEFTOVER_SECONDS
        while left := self.find_leftovers():
            assert time.monotonic() < deadline, f"tests left {left} on the Ray cluster"
            time.sleep(0.2)

    def _list(self, kind: str, *, but: str = "DEAD") -> list[dict[str, Any]]:
        """Return the objects of a kind in any state but one (https://docs.ray.io, State API)."""
        query = {"filter_keys": "state", "filter_predicates": "!=", "filter_values": but}
        answer = self._get(f"/api/v0/{kind}?{urlencode(query)}")
        found: list[dict[str, Any]] = answer["data"]["result"]["result"]
        return found

    def _get(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return json.load(answer)


@contextmanager
def running_head() -> Iterator[RealRay]:
    """Run a Ray of the pinned version on free ports, in a session of processes of its own."""
    # Not in pytest's folder: Ray's sockets live there, whose paths may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="lm-", dir="/tmp"))
    gcs, dashboard, agent, metrics = free_ports(4)
    ray = RealRay(
        token=secrets.token_hex(16), gcs=gcs, dashboard=dashboard, metrics=metrics, folder=folder
    )
    command = [str(RAY), "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    command += [f"--port={gcs}", f"--dashboard-port={dashboard}", f"--temp-dir={folder}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"]
    command += [f"--num-cpus={NUM_CPUS}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    command += ["--include-log-monitor=False"]
    try:
        process = _start(command, ray.env | NO_DRAIN, folder / "start.log")
        try:
            yield ray
        finally:
            stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_node(ray: RealRay, log: Path, *, num_cpus: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run another node of the cluster on this machine, and stop it at the end if it still runs."""
    agent, metrics = free_ports(2)
    command = [str(RAY), "start", f"--address=127.0.0.1:{ray.gcs}", "--block"]
    command += [f"--num-cpus={num_cpus}", "--node-ip-address=127.0.0.1"]
    command += [f"--object-store-memory={NODE_OBJECT_STORE_BYTES}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"]
    process = _start(command, ray.env, log)
    try:
        yield process
    finally:
        stop(process)


def _start(command: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a node and return once it is up.

    Ray gives a node 30 seconds to register and then ends it (ray/_private/node.py), which can be
    too short beside other tests: start it again.
    """
    for attempt in range(1, START_ATTEMPTS + 1):
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=env, stdout=output, stderr=output, start_new_session=True
            )
        try:
            _wait_until_started(process, log)
            return process
        except BaseException:
            kill(process)
            if attempt == START_ATTEMPTS or b"timed out during startup" not in log.read_bytes():
                raise
    raise AssertionError("the last attempt returns or raises")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a node by its process id, and then the rest of its session."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_SECONDS)
    kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session of a node at once, as when its machine is lost."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait_until_started(head: subprocess.Popen[bytes], log: Path) -> None:
    """Return once `ray start --block` reports that it is up.

    Raises:
        AssertionError: it ended, or never came up; the message is its log.
    """
    deadline = time.monotonic() + START_SECONDS
    while b"Ray runtime started" not in log.read_bytes():
        assert head.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
