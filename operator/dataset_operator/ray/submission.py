"""Builds the driver's job: a package with the experiment, the user's code, and one command.

The experiment travels as a file in a zip that the head stores, since a string in a process's
environment is limited to 128 KiB (execve, MAX_ARG_STRLEN). The zip is the job's working directory.
The user's own code is a separate folder on the module path, so the two cannot collide.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import zipfile
from typing import Any

from dataset_operator.plan.ending import STOP_SECONDS
from dataset_operator.plan.outcome import Submit
from pipeline_runtime.config import ACCEPTED_VARIABLE

EXPERIMENT_FILE = "experiment.json"
_PREFIX = "_ray_pkg_"  # as Ray names packages by their content (packaging.py, RAY_PKG_PREFIX)
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip, fixed to get equal bytes
# The time that a stopped driver has for its checkpoint; Ray's default is to kill it after three
# seconds (job_supervisor.py).
_STOP_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"


def build_package(submit: Submit) -> tuple[str, bytes]:
    """Build the zip with the experiment; return its name, a digest of the content, and its bytes.

    The same experiment gives the same bytes, so a repeated upload changes nothing.
    """
    content = io.BytesIO()
    info = zipfile.ZipInfo(EXPERIMENT_FILE, date_time=_ZIP_TIME)
    info.external_attr = 0o444 << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(content, "w") as package:
        package.writestr(info, json.dumps(submit.experiment, sort_keys=True))
    data = content.getvalue()
    return f"{_PREFIX}{hashlib.sha1(data, usedforsecurity=False).hexdigest()}.zip", data


def build_job(submit: Submit, package: str, storage_root: str | None) -> dict[str, Any]:
    """Build the body of a submission.

    Args:
        package: the name of the uploaded package.
        storage_root: the base of URIs without a scheme, unless the spec sets one; None: no base.
    """
    code = submit.experiment["spec"].get("code", {})
    runtime_env: dict[str, Any] = {
        "working_dir": f"gcs://{package}",
        "env_vars": {_STOP_VARIABLE: str(int(STOP_SECONDS)), ACCEPTED_VARIABLE: "1"},
    }
    # A path without a scheme is a folder in the image, which the driver finds by itself.
    if "://" in (modules := code.get("workingDir") or ""):
        runtime_env["py_modules"] = [modules]
    if code.get("pip"):
        runtime_env["pip"] = list(code["pip"])
    return {
        "submission_id": submit.submission_id,
        "entrypoint": _build_command(submit, storage_root),
        "runtime_env": runtime_env,
    }


def _build_command(submit: Submit, storage_root: str | None) -> str:
    """Build the shell command; `exec` makes Ray's stop signal reach the driver, not a shell."""
    # Not the `lastmile` script: with `pip` this is the Python of Ray's virtual environment.
    command = ["exec", "python3", "-m", "pipeline_runtime", "run", "-f", EXPERIMENT_FILE]
    command += ["--address", "auto"]
    command += ["--storage-root", storage_root] if storage_root else []
    command += ["--run-id", submit.run_id]
    command += ["--resume"] if submit.resume else []
    return shlex.join(command)
