"""A run's history on a real S3 server: written by the commands of the pods, read by people's."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs as pafs
from s3_server import S3Server, files_below

from pipeline_runtime.history.closing import prune_history

DEADLINE_SECONDS = 60.0
EXPERIMENT = "lake/team/experiments/clicks"
URI = f"s3://{EXPERIMENT}/"


@pytest.fixture
def keys(s3_server: S3Server) -> dict[str, str]:
    return s3_server.env


@pytest.fixture
def s3(s3_server: S3Server) -> Iterator[pafs.S3FileSystem]:
    with s3_server.bucket("lake") as found:
        yield found


def start(keys: dict[str, str], *command: str) -> subprocess.Popen[str]:
    whole = [sys.executable, "-m", "pipeline_runtime", *command]
    pipe = subprocess.PIPE
    return subprocess.Popen(whole, env=os.environ | keys, stdout=pipe, stderr=pipe, text=True)


def reads(keys: dict[str, str], *command: str, code: int = 0) -> str:
    process = start(keys, *command)
    out, error = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == code, error
    assert "Traceback" not in error
    return out if code == 0 else error


def test_logs_are_kept_while_they_grow_and_when_the_pod_ends_and_read_back(
    s3: pafs.S3FileSystem, keys: dict[str, str], tmp_path: Path
) -> None:
    logs = tmp_path / "ray" / "session_1" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("one\n")
    target = f"{URI}history/0f3c6c1e-1/logs/clicks-head"
    sidecar = start(keys, "keep-logs", "--from", str(tmp_path / "ray"), "--to", target, "--every=1")
    kept = f"{EXPERIMENT}/history/0f3c6c1e-1/logs/clicks-head/session_1/raylet.out"
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while kept not in files_below(s3, EXPERIMENT):
            assert time.monotonic() < deadline, "nothing was copied"
            time.sleep(0.2)
        with (logs / "raylet.out").open("a") as file:
            file.write("the last\n")
        (logs / "worker.err").write_text("Killed\n")
    finally:
        sidecar.send_signal(signal.SIGTERM)
    _, error = sidecar.communicate(timeout=DEADLINE_SECONDS)
    assert (sidecar.returncode, error) == (0, "")

    whole = ("logs", "clicks", "--from", URI)
    listed = reads(keys, *whole, "--pods").splitlines()
    assert [line.split() for line in listed[1:]] == [
        ["clicks-head", "session_1/raylet.out", "13"],
        ["clicks-head", "session_1/worker.err", "7"],
    ]
    one = reads(keys, *whole, "--pod", "clicks-head", "--file", "raylet.out")
    assert one == "one\nthe last\n"


def test_events_are_kept_and_described_and_old_history_goes_alone(
    s3: pafs.S3FileSystem,
    keys: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = {
        "type": "Warning",
        "reason": "OOMKilled",
        "message": "the head wanted memory",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "metadata": {"uid": "e1", "resourceVersion": "1"},
    }
    experiment = {"metadata": {"name": "clicks", "namespace": "team", "uid": "0f3c6c1e"}}
    payload: dict[str, Any] = {
        "version": 1,
        "experiment": {**experiment, "spec": {}},
        "status": {"phase": "Failed", "run": 1, "attempt": 1},
        "events": [event],
    }
    file = tmp_path / "payload.json"
    file.write_text(json.dumps(payload))
    keep = ("keep-history", "--payload", str(file), "--artifacts", URI)
    assert "events.json" in reads(keys, *keep, "--run-id", "0f3c6c1e-1")
    described = reads(keys, "describe", "clicks", "--from", URI)
    assert "the head wanted memory" in described
    assert "team/clicks" in described

    checkpoint = f"{EXPERIMENT}/20260101T000000Z-0123456789abcdef-0f3c6c1e-1/checkpoints/step-1/r0"
    with s3.open_output_stream(checkpoint) as stream:
        stream.write(b"weights")
    before = files_below(s3, EXPERIMENT)
    younger = (*keep, "--run-id", "0f3c6c1e-2", "--keep-days", "1")
    assert "history/0f3c6c1e-1" not in reads(keys, *younger)  # it is of today, and stays
    assert before < files_below(s3, EXPERIMENT)
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    later = datetime.now(UTC) + timedelta(days=3)
    assert prune_history(URI, "0f3c6c1e-2", 1, later) == [f"{URI}history/0f3c6c1e-1"]
    left = files_below(s3, EXPERIMENT)
    assert checkpoint in left
    folders = {path.removeprefix(f"{EXPERIMENT}/").split("/")[0] for path in left}
    assert folders == {"history", checkpoint.split("/")[-4]}
    assert files_below(s3, f"{EXPERIMENT}/history/0f3c6c1e-1") == set()
    assert len(files_below(s3, f"{EXPERIMENT}/history/0f3c6c1e-2")) == 4


def test_who_has_no_keys_is_told_in_one_sentence(
    s3: pafs.S3FileSystem, keys: dict[str, str]
) -> None:
    wrong = keys | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    for command in (["logs", "clicks", "--pods"], ["describe", "clicks"]):
        error = reads(wrong, *command, "--from", URI, code=3)
        assert error.count("\n") == 1
        assert f"{URI}history" in error
        assert "credentials" in error
    assert "credentials" in reads(wrong, "report", URI, code=3)
