"""Imports go without the garbage collector, which is then as it was, and without pandas."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from pipeline_runtime.importing import importing


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Restore the collector after each test."""
    yield
    gc.unfreeze()
    gc.enable()


def test_collector_rests_in_the_block_and_skips_what_it_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"imported_{i}" for i in range(100)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("things = [[] for _ in range(100)]")
    monkeypatch.syspath_prepend(str(tmp_path))
    with importing():
        assert not gc.isenabled()
        for name in names:
            import_module(name)
    assert gc.isenabled()
    assert gc.get_freeze_count() >= 100 * len(names)


def test_garbage_stays_collectable_after_a_block_without_imports() -> None:
    class Node:
        """A part of a cycle."""

    node = Node()
    node.self = node  # type: ignore[attr-defined]
    there = weakref.ref(node)
    del node
    with importing():
        pass
    gc.collect()
    assert there() is None


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
