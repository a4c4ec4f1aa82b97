"""What the tests that start a head of Ray share."""

import subprocess
import time
from pathlib import Path

START_SECONDS = 120.0  # 10 to 20 on an idle machine
# When it is told to end, Ray would wait half a minute for actors that tests left behind.
NO_DRAIN = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}


def wait_until_started(head: subprocess.Popen[bytes], log: Path) -> None:
    """Return once `ray start --block` says that it is up; fail with its log if it ends or never
    does.
    """
    deadline = time.monotonic() + START_SECONDS
    while b"Ray runtime started" not in log.read_bytes():
        assert head.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
