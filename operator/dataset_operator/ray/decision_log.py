"""A job on the head that writes decisions of the autoscaler into a run's folder of the artifacts.

The head's pod has the credentials of the store, and the operator has not. The decisions travel in
the command: ten of them are a few KiB, of the 128 KiB that a string of a process may have.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from dataset_operator.plan.outcome import KeepLog


def build_log_job(log: KeepLog, storage_root: str | None) -> dict[str, Any]:
    """The body of its submission.

    Args:
        storage_root: where a URI of the artifacts without a scheme starts; None: nowhere.
    """
    command = ["exec", "python3", "-m", "pipeline_runtime", "keep-decisions"]
    command += ["--artifacts", log.artifacts_uri, "--run-id", log.run_id]
    command += ["--storage-root", storage_root] if storage_root else []
    text = json.dumps(log.decisions, sort_keys=True, separators=(",", ":"))
    return {
        "submission_id": log.submission_id,
        "entrypoint": shlex.join([*command, text]),
        "runtime_env": {},
    }
