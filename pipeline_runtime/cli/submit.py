"""Submit a run to a Ray cluster by its Jobs API, follow its log, and end as it ended.

The cluster's image must hold Lastmile, and the storage root must be one that its nodes can reach:
what is sent is the manifest alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ray.job_submission import JobStatus, JobSubmissionClient

from pipeline_runtime.cli.failures import EXIT_FAILED, EXIT_OK

_POLL_SECONDS = 1.0


def submit(address: str, manifest: str, storage_root: str, *, resume: bool) -> int:
    """Run a manifest on the cluster; returns the exit code of the run there."""
    client = JobSubmissionClient(address)
    with tempfile.TemporaryDirectory(prefix="lastmile-") as folder:
        (Path(folder) / "manifest.yaml").write_text(manifest)
        root = storage_root if "://" in storage_root else str(Path(storage_root).absolute())
        job = client.submit_job(
            entrypoint=f"lastmile run -f manifest.yaml --address auto --storage-root {root}"
            + (" --resume" if resume else ""),
            runtime_env={"working_dir": folder},
        )
    print(f"submitted {job} to {address}", file=sys.stderr)
    _follow(client, job)
    info = client.get_job_info(job)
    if info.status == JobStatus.SUCCEEDED:
        return EXIT_OK
    print(f"error: job {job} ended {info.status}: {info.message}", file=sys.stderr)
    return info.driver_exit_code or EXIT_FAILED


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
