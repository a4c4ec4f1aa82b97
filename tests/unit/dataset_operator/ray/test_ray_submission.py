"""The submission of a driver: the experiment, the user's code, one command."""

import io
import json
import shlex
import zipfile
from typing import Any

import pytest

from dataset_operator.plan.outcome import Submit
from dataset_operator.ray.jobs import parse_job
from dataset_operator.ray.submission import EXPERIMENT_FILE, build_job, build_package

RUN = ("--run-id", "0f3c6c1e-2")


def build_submit(resume: bool = False, **spec: Any) -> Submit:
    experiment = {"metadata": {"name": "clicks"}, "spec": {"dataset": {}, **spec}}
    return Submit(submission_id="clicks-uid-1", experiment=experiment, run_id=RUN[1], resume=resume)


def test_the_same_experiment_gives_the_same_package() -> None:
    first, again = (
        build_package(build_submit(suspend=False)),
        build_package(build_submit(suspend=False)),
    )
    other = build_package(build_submit(suspend=True))
    assert first == again
    assert first[0] != other[0]


def test_the_package_holds_the_experiment() -> None:
    _, content = build_package(build_submit())
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        assert package.namelist() == [EXPERIMENT_FILE]
        assert json.loads(package.read(EXPERIMENT_FILE)) == build_submit().experiment


@pytest.mark.parametrize(
    ("code", "runtime_env"),
    [
        ({}, {}),
        ({"workingDir": "s3://code/my.zip"}, {"py_modules": ["s3://code/my.zip"]}),
        ({"workingDir": "/opt/my_code"}, {}),  # a folder in the image, where the driver finds it
        ({"pip": ["left-pad==1.0"]}, {"pip": ["left-pad==1.0"]}),
    ],
)
def test_the_runtime_env_has_the_users_code(
    code: dict[str, Any], runtime_env: dict[str, Any]
) -> None:
    job = build_job(build_submit(code=code), "_ray_pkg_1.zip", None)
    variables = {"RAY_JOB_STOP_WAIT_TIME_S": "120", "LASTMILE_ACCEPTED": "1"}
    ours = {"working_dir": "gcs://_ray_pkg_1.zip", "env_vars": variables}
    assert job["runtime_env"] == ours | runtime_env


@pytest.mark.parametrize(
    ("root", "resume", "options"),
    [
        (None, False, [*RUN]),
        ("s3://bucket/a team/", False, ["--storage-root", "s3://bucket/a team/", *RUN]),
        (None, True, [*RUN, "--resume"]),
    ],
)
def test_the_command_has_run_id_storage_root_and_resume(
    root: str | None, resume: bool, options: list[str]
) -> None:
    job = build_job(build_submit(resume=resume), "_ray_pkg_1.zip", root)
    command = shlex.split(job["entrypoint"])
    assert command[:4] == ["exec", "python3", "-m", "pipeline_runtime"]
    assert command[4:] == ["run", "-f", EXPERIMENT_FILE, "--address", "auto", *options]


@pytest.mark.parametrize(
    ("message", "exit_code", "out_of_memory"),
    [
        ("ray.exceptions.OutOfMemoryError: Task was killed", 1, True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", 1, True),
        ("Memory cgroup out of memory: oom-kill", 1, True),
        ("exit code -9", -9, True),
        ("cannot be written: make room and run again", 1, False),  # «room» is no OOM
        (None, None, False),
    ],
)
def test_out_of_memory_is_distinguished_from_other_failures(
    message: str | None, exit_code: int | None, out_of_memory: bool
) -> None:
    answer = {"status": "FAILED", "message": message, "driver_exit_code": exit_code, "type": "x"}
    job = parse_job(json.dumps(answer).encode())
    assert (job.out_of_memory, job.exit_code) == (out_of_memory, exit_code)
