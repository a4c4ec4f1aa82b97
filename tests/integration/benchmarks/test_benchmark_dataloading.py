"""The benchmark of loaders runs: they agree on every row, and everything is measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.dataloading.__main__ import QUICK_PEERS, QUICK_ROWS
from benchmarks.dataloading.peers import FLOOR, LOADERS, SUBJECT
from benchmarks.dataloading.schedule import COLD, NEXT, QUICK_VARIANTS, STEADY, VARIANTS, WHOLE
from benchmarks.harness.cells import Cell
from benchmarks.harness.report import cells_of

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 600  # less than a minute on idle cores, half of it Ray
INSTALLED = {name for name in (SUBJECT, *QUICK_PEERS) if LOADERS[name].is_installed}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_SECONDS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the benchmark once, on data of its own, and return the folder of its results."""
    folder = tmp_path_factory.mktemp("benchmark")
    options = ["--quick", "--data", str(folder / "data"), "--output", str(folder / "results")]
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
    assert results["settings"]["rows"] == QUICK_ROWS
    return {cell.name: cell for cell in cells_of(results)}


def test_lastmile_is_compared_with_every_peer(cells: dict[str, Cell]) -> None:
    assert set(cells["heavy, flat, expanded"].arms) == {*INSTALLED, FLOOR}
    for layout in ("flat", "nested"):
        for form in ("expanded", "deduplicated"):
            cell = cells[f"heavy, {layout}, {form}"]
            assert cell.base == SUBJECT
            for arm in cell.arms.keys() - {SUBJECT}:
                for metric in (STEADY, WHOLE):
                    ratio = cell.ratio(arm, metric)
                    assert ratio is not None
                    assert ratio.median > 0
                    assert ratio.low is None  # a single round has no bounds
            assert 0 < cell.facts["rows"] < QUICK_ROWS
            assert cell.facts["checksum"]


def test_each_variant_is_compared_with_all_options_on(cells: dict[str, Cell]) -> None:
    for layout, form in (("flat", "expanded"), ("nested", "deduplicated")):
        arms = cells[f"options, heavy, {layout}, {form}"].arms
        assert set(arms) == {name for name in VARIANTS[layout] if name in QUICK_VARIANTS}


def test_the_start_of_a_process_and_of_an_epoch_is_measured(cells: dict[str, Cell]) -> None:
    found = cells["heavy, flat, expanded"].arms[SUBJECT]
    assert min(found[COLD] + found[NEXT]) > 0


def test_no_host_name_is_written(folder: Path) -> None:
    name = subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout
    for path in folder.iterdir():
        assert name.strip() not in path.read_text()


def test_a_page_and_a_picture_are_written(folder: Path) -> None:
    assert "**Indicative" in (folder / "dataloading.md").read_text()
    assert "<svg" in (folder / "dataloading.svg").read_text()
