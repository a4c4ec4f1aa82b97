"""The small benchmarks run with few rows, and write results, page and picture.

A benchmark fails if two arms deliver different output.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness.cells import Cell
from benchmarks.harness.report import cells_of

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 600


def check_overlap(cells: list[Cell]) -> None:
    assert len(cells) == 5
    for cell in cells:
        assert cell.facts["auto"] in ("threads", "processes")
        shares = [s for values in cell.arms.values() for s in values.get("waitedShare", [])]
        assert all(0 <= share <= 1 for share in shares)
        assert cell.arms["both, Auto"]["ofSlower"][0] > 0


def check_start(cells: list[Cell]) -> None:
    [cell] = cells
    assert list(cell.arms) == ["DataLoader script", "lastmile"]
    for arm, values in cell.arms.items():
        assert values["firstStep"][0] > 0
        assert ("plan" not in values) == ("report" not in values) == (arm == "DataLoader script")


def check_pairs(cells: list[Cell]) -> None:
    assert [(cell.name, cell.base) for cell in cells] == [
        (f"{level}, {layout}", base)
        for level in ("none", "heavy")
        for layout in ("flat", "nested")
        for base in ("HEAD", "loader")
    ]
    assert all(cell.ratio("feed", "peakBytes") is not None for cell in cells)


def check_scoring(cells: list[Cell]) -> None:
    assert len(cells) == 12  # without a language model
    by_name = {cell.name: cell for cell in cells}
    assert len(by_name["200 carried columns"].arms) == 4
    assert by_name["4 models, 20 carried columns"].ratio("a job for each model", "cpuMicrosPerRow")
    read = by_name["importance of inputs"].ratio("10 groups", "arrowBytesPerRow")
    assert read is not None
    assert read.median == 1
    assert len(by_name["more rows"].arms) == 3
    assert all("checksum" in cell.facts for cell in cells[:-1])


CASES = [
    ("overlap", "overlap", "--rows 60000 --rounds 2", check_overlap),
    ("start", "start", "--rows 20000 --rounds 1", check_start),
    ("scoring", "scoring", "--rows 10000 --rounds 1", check_scoring),
    ("pairs", "pairs", "--base HEAD,loader --rows 20000 --rounds 1", check_pairs),
]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
@pytest.mark.parametrize(
    ("module", "name", "options", "check"),
    [pytest.param(*case, id=case[0]) for case in CASES],
)
def test_a_benchmark_measures_every_arm(
    tmp_path: Path, module: str, name: str, options: str, check: Callable[[list[Cell]], None]
) -> None:
    output = tmp_path / "results"
    command = [sys.executable, "-m", f"benchmarks.{module}", *options.split()]
    command += ["--data", str(tmp_path / "data"), "--output", str(output)]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    # With 1, targets may be missed beside other tests; a benchmark that fails writes nothing.
    assert ended.returncode in (0, 1), ended.stderr
    assert (output / f"{name}.svg").exists(), ended.stderr
    cells = cells_of(json.loads((output / f"{name}.json").read_text()))
    assert all(cell.arms for cell in cells)
    assert cells[0].name in (output / f"{name}.md").read_text()
    check(cells)
