"""Submitting leaves the process as it was."""

import os

import pytest

from pipeline_runtime.cli.jobs_api import submit
from pipeline_runtime.cli.run import RunFlags
from pipeline_runtime.errors import LastmileError


def test_the_address_wins_over_the_environment_and_leaves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = {"RAY_ADDRESS": "127.0.0.1:2", "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:3"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    flags = RunFlags(
        address="http://127.0.0.1:1",
        storage_root="s3://bucket",
        output=None,
        run_id=None,
        metrics_port=0,
        as_json=False,
        verbose=False,
    )
    with pytest.raises(LastmileError, match=r"--address http://127\.0\.0\.1:1: "):
        submit(flags.address, "{}", flags.storage_root, flags)

    assert environment.items() <= dict(os.environ).items()
