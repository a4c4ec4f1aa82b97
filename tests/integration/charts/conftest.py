"""Helm, without a cluster."""

from pathlib import Path

import pytest
from helm_chart import Helm


@pytest.fixture
def chart(helm: str, tmp_path: Path) -> Helm:
    """The chart, to be rendered."""
    return Helm(program=helm, home=tmp_path)
