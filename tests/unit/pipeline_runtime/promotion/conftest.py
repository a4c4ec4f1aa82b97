"""A catalog on SQLite with a main table to promote into."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from promotion_lake import PromotionLake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[PromotionLake]:
    found = PromotionLake.make(tmp_path)
    yield found
    found.catalog.engine.dispose()
