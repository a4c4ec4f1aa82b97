"""The benchmark on a GPU runs small on a CPU, with no more than the packages of such a machine."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.gpu.cells import SIZES, WAYS
from benchmarks.harness.report import cells_of

ROOT = Path(__file__).parents[3]
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
    results = json.loads((folder / "gpu.json").read_text())
    cells = cells_of(results)
    tuned = [cell for cell in cells if cell.name.endswith("no model")]
    assert [len(cell.arms) for cell in tuned] == [4, 4]  # 0 and 1 workers, two units
    models = [cell for cell in cells if cell not in tuned]
    assert len(models) == len(SIZES) * 2
    for cell in models:
        assert list(cell.arms) == list(WAYS)
        for values in cell.arms.values():
            assert values["samplesPerSecond"][0] > 0
            assert 0 <= values["waitedShare"][0] <= 1
            assert 0 < values["busyShare"][0] <= 1
    assert results["settings"]["device"]["name"] in (folder / "gpu.md").read_text()


def test_all_cells_are_measured_without_ray(tmp_path: Path, environment: dict[str, str]) -> None:
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "benchmarks.gpu", *folders]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    check_results(tmp_path / "results")


@pytest.mark.slow
def test_the_archive_runs_in_an_empty_folder(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "wheels").mkdir()
    folders = ["--wheels", str(tmp_path / "wheels"), "--output", str(tmp_path)]
    pack = [sys.executable, "-m", "benchmarks.gpu.pack", *folders]
    subprocess.run(pack, cwd=ROOT, check=True)
    with tarfile.open(tmp_path / "lastmile-gpu.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    run = [sys.executable, str(tmp_path / "lastmile-gpu" / "run.py"), "500"]
    subprocess.run([*run, str(tmp_path / "results")], cwd=tmp_path, env=environment, check=True)
    check_results(tmp_path / "results")
