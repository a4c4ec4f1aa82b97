"""Pages that claim something name, in each row, the tests that show it; those exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "operating"
TESTS = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.M)
}


def read_claims(page: str) -> list[list[str]]:
    """Rows of the table whose last column is headed `shown by`."""
    lines = (PAGES / page).read_text("utf-8").splitlines()
    rows = [line.strip("|").split(" | ") for line in lines]
    begin = next(i for i, row in enumerate(rows) if row[-1].strip() == "shown by")
    end = next(i for i in range(begin, len(rows)) if not lines[i].startswith("|"))
    return rows[begin + 2 : end]


@pytest.mark.parametrize("page", ["faults.md", "threat-model.md"])
def test_every_claim_names_tests_that_exist(page: str) -> None:
    claims = read_claims(page)
    assert len(claims) > 10
    for claim in claims:
        named = re.findall(r"`(test_\w+)`", claim[-1])
        assert named, claim[0]
        assert set(named) <= TESTS, claim[0]
