"""The benchmark of loaders runs: they agree on every row, and everything is measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.dataloading.__main__ import COLD, FLAT, NESTED, STEADY, VARIANTS, WHOLE
from benchmarks.dataloading.peers import DATALOADER, RAY_DATA, SUBJECT, THREADS
from benchmarks.harness.cells import Cell
from benchmarks.harness.report import cells_of

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 600  # about two minutes on idle cores
ROWS = 20_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_SECONDS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the benchmark once, on data of its own, and return the folder of its results."""
    folder = tmp_path_factory.mktemp("benchmark")
    options = ["--rows", str(ROWS), "--rounds", "1"]
    options += ["--data", str(folder / "data"), "--output", str(folder / "results")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.dataloading", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "results"


@pytest.fixture(scope="module")
def cells(folder: Path) -> dict[str, Cell]:
    """The cells of its results."""
    results = json.loads((folder / "dataloading.json").read_text())
    return {cell.name: cell for cell in cells_of(results)}


def test_lastmile_is_compared_with_every_peer(cells: dict[str, Cell]) -> None:
    for level in ("none", "heavy"):
        assert set(cells[f"{level}, {FLAT}"].arms) == {SUBJECT, DATALOADER, THREADS, RAY_DATA}
        for name in (FLAT, NESTED):
            cell = cells[f"{level}, {name}"]
            assert cell.base == SUBJECT
            for arm in cell.arms.keys() - {SUBJECT}:
                for metric in (STEADY, WHOLE):
                    ratio = cell.ratio(arm, metric)
                    assert ratio is not None
                    assert ratio.median > 0
                    assert ratio.low is None  # a single round has no bounds
            assert 0 < cell.facts["rows"] <= ROWS
            assert min(cell.arms[SUBJECT][COLD]) > 0


def test_each_variant_is_compared_with_all_options_on(cells: dict[str, Cell]) -> None:
    for name, variants in VARIANTS.items():
        assert len(cells[f"options, heavy, {name}"].arms) == 1 + len(variants)


def test_no_host_name_is_written(folder: Path) -> None:
    name = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout
    for path in folder.iterdir():
        assert name.strip() not in path.read_text()


def test_a_page_and_a_picture_are_written(folder: Path) -> None:
    assert f"heavy, {FLAT}" in (folder / "dataloading.md").read_text()
    assert "<svg" in (folder / "dataloading.svg").read_text()
