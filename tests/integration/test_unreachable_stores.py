"""A store that does not answer ends a command within half a minute, and the error names it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from facts import assert_told

from pipeline_runtime.cli import main

EXIT_SOURCE = 3
LIMIT_SECONDS = 30.0


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    pq.write_table(pa.table({"x": [1, 2], "y": [0, 1]}), "here.parquet")
    return tmp_path


def write_manifest(*, table: str, artifacts: str, side: str | None = None) -> None:
    document: dict[str, Any] = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "away"},
        "spec": {
            "dataset": {"parquet": {"uri": table}},
            "artifacts": {"uri": artifacts},
            "output": {"parquet": {"uri": "out/"}},
        },
    }
    if side is not None:
        document["spec"]["pipeline"] = [{"antiJoin": {"parquet": {"uri": side}, "keys": ["x"]}}]
    Path("m.yaml").write_text(yaml.safe_dump(document))


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, float]:
    """Run a command line; return its exit code, and how long it took."""
    monkeypatch.setattr(sys, "argv", ["lastmile", *arguments])
    began = time.monotonic()
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0), time.monotonic() - began


ENDPOINTS = {"no answer": "http://127.0.0.1:{port}", "no such name": "http://store.invalid:9000"}
PLACES = {
    "the table": ("explain", {"table": "s3://away/t/", "artifacts": "a/"}),
    "a side table": (
        "explain",
        {"table": "here.parquet", "side": "s3://away/t/", "artifacts": "a/"},
    ),
    "the artifacts": ("run", {"table": "here.parquet", "artifacts": "s3://away/t/"}),
}


@pytest.mark.parametrize(
    ("command", "places", "endpoint"),
    [
        pytest.param(
            *PLACES[place],
            ENDPOINTS[endpoint],
            id=f"{place}: {endpoint}",
            marks=[] if (place, endpoint) == ("the table", "no answer") else pytest.mark.slow,
        )
        for place in PLACES
        for endpoint in ENDPOINTS
    ],
)
def test_an_unreachable_store_ends_a_command_in_time(
    command: str,
    places: dict[str, str],
    endpoint: str,
    silent_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.format(port=silent_port))
    write_manifest(**places)
    code, seconds = call(monkeypatch, command, "-f", "m.yaml", "--storage-root", ".")
    assert code == EXIT_SOURCE
    assert seconds < LIMIT_SECONDS
    assert_told(capsys.readouterr().err, "… s3://away/t/")
    assert not Path("build").exists()


@pytest.mark.slow
def test_a_client_that_tries_for_minutes_is_left_behind(silent_port: int) -> None:
    write_manifest(table="gs://away/t/", artifacts="a/")
    began = time.monotonic()
    ended = subprocess.run(
        [Path(sys.executable).with_name("lastmile"), "explain", "-f", "m.yaml"],
        env={**os.environ, "CLOUD_STORAGE_EMULATOR_ENDPOINT": f"http://127.0.0.1:{silent_port}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == EXIT_SOURCE, ended
    assert time.monotonic() - began < LIMIT_SECONDS
    assert_told(ended.stderr, "… gs://away/t/")
