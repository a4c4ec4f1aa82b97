"""Imports go without the garbage collector, which is then as it was, and without pandas."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

from pipeline_runtime.importing import importing


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Restore the collector after each test."""
    yield
    gc.unfreeze()
    gc.enable()


def test_collector_rests_in_the_block_and_skips_what_it_left() -> None:
    with importing():
        assert not gc.isenabled()
        kept: list[list[int]] = [[] for _ in range(10_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(kept)


def test_inner_block_leaves_the_collector_to_the_outer_one() -> None:
    with importing():
        with importing():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with importing():
        pass
    assert not gc.isenabled()


def test_collector_is_back_after_an_import_that_fails() -> None:
    with pytest.raises(ModuleNotFoundError), importing():
        import_module("a_module_that_nobody_has")
    assert gc.isenabled()


PANDAS_LATER = """
import sys
from pipeline_runtime import Pipeline
import pyarrow as pa
import pyarrow.dataset
assert "pandas" not in sys.modules
import pandas as pd
series = pd.Series([1.0, float("nan")])
assert pa.array(series).null_count == 1  # of a list, it would be none
assert pa.table(pd.DataFrame({"x": series})).column_names == ["x"]
"""


def test_arrow_knows_pandas_once_it_is_imported() -> None:
    command = [sys.executable, "-c", PANDAS_LATER]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
