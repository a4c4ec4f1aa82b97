"""What the driver is given: its experiment in a package, the user's code, one command.

The experiment travels as a file in a zip that the head keeps, since a string of a process's
environment ends at 128 KiB (execve, MAX_ARG_STRLEN). The zip is the job's working directory; the
user's own code comes beside it on the module path, so neither is in the other's way.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import zipfile
from typing import Any

from dataset_operator.plan.decision import Submit
from dataset_operator.plan.ending import STOP_SECONDS
from pipeline_runtime.config import ACCEPTED_VARIABLE

EXPERIMENT_FILE = "experiment.json"
_PREFIX = "_ray_pkg_"  # as Ray names packages by their content (packaging.py, RAY_PKG_PREFIX)
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say: the same bytes every time
# A driver that is asked to stop has this long for its checkpoint; Ray would kill it after three
# seconds (job_supervisor.py).
_STOP_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"


def build_package(submit: Submit) -> tuple[str, bytes]:
    """The package with the experiment: a name made of its content, and a zip.

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
    """The body of a submission.

    Args:
        package: the name of the uploaded package.
        storage_root: where URIs without a scheme start, unless the spec says so; None: nowhere.
    """
    code = submit.experiment["spec"].get("code", {})
    runtime_env: dict[str, Any] = {
        "working_dir": f"gcs://{package}",
        "env_vars": {_STOP_VARIABLE: str(int(STOP_SECONDS)), ACCEPTED_VARIABLE: "1"},
    }
    # A path without a scheme is a folder of the image, which the driver finds by itself.
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
    """`exec`, so that Ray's signal to stop meets the driver and no shell around it."""
    # Not the `lastmile` script: with `pip` this is the Python of Ray's virtual environment.
    command = ["exec", "python3", "-m", "pipeline_runtime", "run", "-f", EXPERIMENT_FILE]
    command += ["--address", "auto"]
    command += ["--storage-root", storage_root] if storage_root else []
    command += ["--run-id", submit.run_id]
    command += ["--resume"] if submit.resume else []
    return shlex.join(command)
