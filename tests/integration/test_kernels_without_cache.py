"""Kernels are compiled anew, for a minute, where numba can write no cache."""

import pytest

from pipeline_runtime import kernels
from pipeline_runtime.kernels import loading


@pytest.mark.slow
def test_kernels_are_compiled_where_no_cache_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    monkeypatch.setattr(loading, "_LOADER", loading._Loader())
    assert kernels.warm()
