"""The benchmark on a GPU runs small on a CPU, with no more than the packages of such a machine."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import WAYS
from benchmarks.gpu.pack import write_archive
from benchmarks.harness.report import cells_of

ROOT = Path(__file__).parents[3]
ROWS = 20_000
# A machine with a GPU has torch, numba and numpy; the archive brings wheels, but none of these.
BLOCK = """
from importlib.machinery import PathFinder

ABSENT = {"ray", "boto3", "botocore", "kopf", "kubernetes", "matplotlib", "pandas", "polars"}
ABSENT |= {"prometheus_client", "rich", "typer"}
find_spec = PathFinder.find_spec


def find_present(name, path=None, target=None):
    return None if name.partition(".")[0] in ABSENT else find_spec(name, path, target)


PathFinder.find_spec = find_present
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which Python has a few packages only."""
    folder = tmp_path / "absent"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCK)
    return os.environ | {"PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": ""}


def check_results(folder: Path) -> None:
    [cell] = cells_of(json.loads((folder / "gpu.json").read_text()))
    assert list(cell.arms) == list(WAYS)
    assert 0 < cell.facts["rows"] < ROWS
    for values in cell.arms.values():
        assert values["samplesPerSecond"][0] > 0
        assert 0 <= values["waitedShare"][0] <= 1


def test_every_way_is_measured_without_ray(tmp_path: Path, environment: dict[str, str]) -> None:
    options = ["--rows", str(ROWS), "--rounds", "1"]
    options += ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    check_results(tmp_path / "results")


@pytest.mark.slow
def test_the_archive_runs_in_an_empty_folder(tmp_path: Path, environment: dict[str, str]) -> None:
    write_archive(tmp_path / "lastmile-gpu.tar", [])
    with tarfile.open(tmp_path / "lastmile-gpu.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    run = [sys.executable, str(tmp_path / "lastmile-gpu" / "run.py"), str(tmp_path / "results")]
    subprocess.run(run, cwd=tmp_path, env=environment, check=True)
    check_results(tmp_path / "results")
