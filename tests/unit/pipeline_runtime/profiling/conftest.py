"""A small real table, and what is profiled over it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.pipeline import Pipeline

ROWS = 4000

# Entrypoints of a user's own.
LOOPS = """
import torch

SEEN = []

def steps(ctx):
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            SEEN.append((ctx.step, len(batch["x"]), float(batch["x"].double().sum())))
            ctx.report({"loss": 0.5}, {"step": ctx.step} if ctx.checkpoint_due() else None)
        ctx.report({}, {"step": ctx.step})
        assert list(ctx.evaluation_batches()) == []

def writes_to_its_batch(ctx):
    for _ in ctx.epochs():
        for batch in ctx.batches():
            assert batch["x"].min() >= 0
            batch["x"].neg_().sub_(1)
            del batch["y"]

def leaves_early(ctx):
    for _ in ctx.epochs():
        for index, batch in enumerate(ctx.batches()):
            if index == 3:
                return

def raises(ctx):
    for batch in ctx.batches():
        raise ValueError("the user's own mistake")

def exits(ctx):
    raise SystemExit(3)
"""


@pytest.fixture
def table(tmp_path: Path) -> pa.Table:
    """x counts the rows, y is noise; ten row groups."""
    rng = np.random.default_rng(3)
    table = pa.table({"x": np.arange(ROWS), "y": rng.random(ROWS), "z": ["zz"] * ROWS})
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "a.parquet", row_group_size=ROWS // 10)
    return table


@pytest.fixture
def loops(tmp_path: Path) -> Iterator[str]:
    """The name of a module with LOOPS, importable for the test."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "profile_loops.py").write_text(LOOPS)
    sys.path.insert(0, str(folder))
    yield "profile_loops"
    sys.path.remove(str(folder))
    sys.modules.pop("profile_loops", None)


@pytest.fixture
def experiment(table: pa.Table, loops: str) -> Callable[..., DatasetExperiment]:
    """Experiments over the table: x below 2,000, then what a test says of training."""

    def make(
        entrypoint: str = "steps", where: str = "x < 2000", **training: object
    ) -> DatasetExperiment:
        pipeline = Pipeline.read_parquet("t/").filter(where)
        options = {"batch_size": 100, "columns": ["x", "y"], **training}
        return pipeline.experiment("small", entrypoint=f"{loops}:{entrypoint}", **options)

    return make
