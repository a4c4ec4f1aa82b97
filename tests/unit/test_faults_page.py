"""Every test that docs/operating/faults.md names exists, and every row names one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operating" / "faults.md"


def read_rows() -> list[list[str]]:
    rows = [line.strip("|").split(" | ") for line in PAGE.read_text("utf-8").splitlines()]
    return [row for row in rows if len(row) > 1][1:]


def test_every_fault_names_tests_that_exist() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    known = {
        name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    rows = read_rows()
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row[-1])
        assert named, row[0]
        assert set(named) <= known, row[0]
