"""Runs on a real S3 server are listed, located, compared and deleted as local ones are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs as pafs
from s3_server import S3Server, files_below
from stored_runs import StoredRun, write_stored_run
from typer.testing import CliRunner

from pipeline_runtime.cli import app
from pipeline_runtime.errors import SourceError
from pipeline_runtime.runs.locate import locate_run

BUCKET = "shelf"
ROOT = f"s3://{BUCKET}/experiments"
SEEDS = 3
BASE = StoredRun()
BETTER = StoredRun(name="better", quality=1.3, keep_percent=50)


@pytest.fixture
def s3(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pafs.S3FileSystem]:
    """A bucket with three runs of each of two experiments; this process has its keys."""
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    for run in (BASE, BETTER):
        for seed in range(SEEDS):
            write_stored_run(tmp_path / "experiments", replace(run, seed=seed, start=seed))
    with s3_server.bucket(BUCKET) as s3:
        pafs.copy_files(str(tmp_path), BUCKET, destination_filesystem=s3)
        yield s3


def call(*command: str) -> Any:
    result = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.usefixtures("s3")
def test_runs_are_listed_and_located() -> None:
    found = call("runs", f"s3://{BUCKET}/", "--name", "clicks")
    assert [run["summary"]["seeds"]["training"] for run in found] == [2, 1, 0]
    assert locate_run(f"{ROOT}/clicks").name == found[0]["run"]
    assert locate_run("clicks", f"s3://{BUCKET}").folder.uri == f"{ROOT}/clicks/{found[0]['run']}"
    with pytest.raises(SourceError):
        locate_run(f"{ROOT}/nothing")


@pytest.mark.usefixtures("s3")
def test_runs_are_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = call("compare", f"{ROOT}/clicks", f"{ROOT}/better", "--html", str(page))
    assert found["metrics"][0]["differences"][0]["verdict"] == "Better"
    assert [len(variant["runs"]) for variant in found["variants"]] == [SEEDS, SEEDS]
    assert page.read_text().count("<svg") == 5
    # A run here is compared with one there.
    mixed = call("compare", str(tmp_path / "experiments" / "clicks"), f"{ROOT}/better")
    assert mixed["metrics"][0]["differences"] == found["metrics"][0]["differences"]


def test_runs_are_deleted(s3: pafs.S3FileSystem) -> None:
    before = files_below(s3, BUCKET)
    plan = call("clean", f"s3://{BUCKET}/", "--keep-last", "1", "--dry-run")
    assert files_below(s3, BUCKET) == before
    done = call("clean", f"s3://{BUCKET}/", "--keep-last", "1")
    assert done["bytes"] == plan["bytes"] > 0
    assert len(done["deleted"]) == 2 * (SEEDS - 1)
    after = call("runs", f"s3://{BUCKET}/")
    assert [run["summary"]["seeds"]["training"] for run in after] == [2, 2]
