"""Two heads that must behave alike: a real `ray start --head`, and the stand-in for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are no package: this makes `heads` importable for the modules beside it.
sys.path.insert(0, str(Path(__file__).parent))

from ray_heads import RealRay, running_head

TEST_SECONDS = 600  # the first test of a module starts the real head


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="package")
def shared_ray() -> Iterator[RealRay]:
    """Run a Ray that the modules of this folder share."""
    with running_head() as ray:
        yield ray


@pytest.fixture(scope="module")
def real_ray(shared_ray: RealRay) -> Iterator[RealRay]:
    """Yield the shared Ray; fail a module that leaves nodes, jobs or actors there."""
    yield shared_ray
    shared_ray.check_nothing_is_left()
