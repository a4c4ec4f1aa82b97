"""Shared fixtures of the tests of sources."""

from collections.abc import Iterator

import pytest

from pipeline_runtime import kernels
from pipeline_runtime.sources.parquet.decoding import pages


@pytest.fixture(scope="module")
def decoded_here() -> Iterator[None]:
    """With kernels, and for the smallest chunk: what is decoded here must not be pyarrow's."""
    assert kernels.warm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_MIN_VALUES", 0)
        yield
