"""Submit a run to a Ray cluster by its Jobs API, follow its log, and end as it ended.

The cluster's image must hold Lastmile, and the storage root must be one that its nodes can reach:
what is sent is the manifest alone.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ray.job_submission import JobStatus, JobSubmissionClient

from pipeline_runtime.cli.failures import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from pipeline_runtime.config.texts.storage_uri import has_scheme
from pipeline_runtime.errors import LastmileError

if TYPE_CHECKING:  # it imports this module
    from pipeline_runtime.cli.run import RunFlags

_MANIFEST = "manifest.yaml"
_POLL_SECONDS = 1.0
_ADDRESS_VARIABLES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")


def submit(address: str, manifest: str, storage_root: str, flags: RunFlags) -> int:
    """Run a manifest on the cluster; returns the exit code of the run there.

    Raises LastmileError if no Jobs API answers at the address.
    """
    client = _connect(address)
    root = absolute_root(storage_root)
    name = "backfill" if flags.partitions else "run"
    command = ["lastmile", name, "-f", _MANIFEST, "--address", "auto", "--storage-root", root]
    command += ["--resume"] if flags.resume else []
    command += ["--run-id", flags.run_id] if flags.run_id else []
    command += [part for each in flags.partitions for part in ("--partition", each)]
    with tempfile.TemporaryDirectory(prefix="lastmile-") as folder:
        (Path(folder) / _MANIFEST).write_text(manifest)
        job = client.submit_job(entrypoint=shlex.join(command), runtime_env={"working_dir": folder})
    print(f"submitted {job} to {address}", file=sys.stderr)
    try:
        _follow(client, job)
    except KeyboardInterrupt:
        print(f"stopping job {job}", file=sys.stderr)
        client.stop_job(job)
        _follow(client, job)
        return EXIT_INTERRUPTED
    info = client.get_job_info(job)
    if info.status == JobStatus.SUCCEEDED:
        return EXIT_OK
    print(f"error: job {job} ended {info.status}: {info.message}", file=sys.stderr)
    return info.driver_exit_code or EXIT_FAILED


def absolute_root(storage_root: str) -> str:
    """Return a storage root that is the same in any working folder."""
    if has_scheme(storage_root):
        return storage_root
    return str(Path(storage_root).expanduser().absolute())


def _connect(address: str) -> JobSubmissionClient:
    try:
        with _without(_ADDRESS_VARIABLES):
            return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError) as error:
        raise LastmileError(
            f"--address {address}: must be the dashboard of a Ray cluster with a Jobs API "
            f"(ray[default]), got: {str(error).strip().splitlines()[0]}"
        ) from error


@contextmanager
def _without(names: Iterable[str]) -> Iterator[None]:
    """Hide environment variables that Ray lets win over the address that was asked for."""
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _follow(client: JobSubmissionClient, job: str) -> None:
    """Print the job's log as it grows, until the job has ended."""
    printed = 0
    while True:
        ended = client.get_job_status(job).is_terminal()
        log = client.get_job_logs(job)
        print(log[printed:], end="", flush=True)
        printed = len(log)
        if ended:
            return
        time.sleep(_POLL_SECONDS)
