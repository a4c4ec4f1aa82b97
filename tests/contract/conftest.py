"""Two heads that must behave alike: a real `ray start --head`, and the stand-in for it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are no package: this makes `heads` importable for the modules beside it.
sys.path.insert(0, str(Path(__file__).parent))

from heads import RealRay
from loopback import free_ports
from ray_heads import NO_DRAIN, wait_until_started

RAY = Path(sys.executable).with_name("ray")
STOP_SECONDS = 60.0
TEST_SECONDS = 600  # the first test of a module starts the real head


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="package")
def real_ray() -> Iterator[RealRay]:
    """A Ray of the pinned version with a token, on free ports, in a session of its own."""
    # Not pytest's folder: Ray's sockets live there, whose paths may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="lm-", dir="/tmp"))
    ports = free_ports(4)
    ray = RealRay(token=secrets.token_hex(16), gcs=ports[0], dashboard=ports[1], folder=folder)
    command = [str(RAY), "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    command += [f"--port={ray.gcs}", f"--dashboard-port={ray.dashboard}", f"--temp-dir={folder}"]
    command += [f"--dashboard-agent-listen-port={ports[2]}", f"--metrics-export-port={ports[3]}"]
    command += ["--num-cpus=4", "--object-store-memory=200000000", "--include-log-monitor=False"]
    log = folder / "start.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=ray.env | NO_DRAIN, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_until_started(process, log)
        yield ray
    finally:
        _stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """By its id, and then whatever is left of its session."""
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
