"""Skips the tests that need a GPU where there is none; no test fails because a machine is busy."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("lastmile", deadline=None)
settings.load_profile("lastmile")

GPU_TESTS = Path(__file__).parent / "gpu"


def has_gpu() -> bool:
    """Ask the driver, not torch: importing torch takes seconds."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return listed.returncode == 0 and b"GPU " in listed.stdout


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in tests/gpu as `gpu`; skip what is so marked on a machine without one."""
    for item in items:
        if item.path.is_relative_to(GPU_TESTS):
            item.add_marker(pytest.mark.gpu)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU: nvidia-smi lists none"))
