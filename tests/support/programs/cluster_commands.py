"""The commands behind `make cluster-…`, as the tests of both kinds of box run them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 240  # for what takes ten; under the limit for a test


def run_cluster(
    command: str, folder: Path, *more: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run what `make cluster-COMMAND` runs, without the user's own cluster."""
    unset = {"KUBECONFIG", "USE_EXISTING_CLUSTER"}
    env = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-m", "tools.cluster", command, "--folder", str(folder), *more],
        env={**env, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for something that is bound to happen; the time limit of the test ends the wait."""
    while not is_true():
        time.sleep(0.05)
