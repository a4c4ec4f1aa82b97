"""Each step treats a dictionary-encoded column like its values, nulls included.

pyarrow's `ChunkedArray.to_numpy` turns a null of a dictionary column into the last value.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline

NUM_ROWS = 12


def build_table(*, encoded: bool) -> pa.Table:
    """Return columns with nulls; `encoded` makes them and list items dictionary-encoded."""

    def column(values: list[Any], dtype: pa.DataType) -> pa.Array:
        array = pa.array(values, dtype)
        return array.dictionary_encode() if encoded else array

    rows = range(NUM_ROWS)
    items = column([None if n % 5 == 0 else n % 7 for n in range(2 * NUM_ROWS)], pa.int64())
    starts = pa.array(range(0, 2 * NUM_ROWS + 1, 2), pa.int32())
    return pa.table(
        {
            "id": pa.array(rows),
            "i": column([None if n % 3 == 0 else n % 4 for n in rows], pa.int64()),
            "f": column([None if n % 3 == 1 else (n % 4) / 2 for n in rows], pa.float64()),
            "g": column([None if n % 3 == 1 else (n % 4) / 2 for n in rows], pa.float32()),
            "s": column([None if n % 3 == 2 else "abcd"[n % 4] for n in rows], pa.string()),
            "l": pa.ListArray.from_arrays(starts, items),
        }
    )


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    for name in ("plain", "encoded"):
        (root / name).mkdir()
        table = build_table(encoded=name == "encoded")
        pq.write_table(table, root / name / "rows.parquet", row_group_size=5)  # several chunks
        side = table.slice(1, 4).select(["i", "f", "s"]).append_column("x", pa.array([1, 2, 3, 4]))
        pq.write_table(side, root / name / "side.parquet")
    return root


def double(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"f": batch["f"] * 2, "s": batch["s"]}


STEPS: dict[str, Callable[[Pipeline, str], Pipeline]] = {
    "fillNull": lambda p, _: p.fill_null({"i": -1, "s": "z", "f": 0.5}),
    "cast": lambda p, _: p.cast({"i": "float64", "f": "string"}),
    "weight": lambda p, _: p.weight("w", by="f"),
    "weight of a column that is there": lambda p, _: p.weight("g", by="f"),
    "downsample": lambda p, _: p.downsample(50, seed=1, weight_column="g"),
    "hashBucket of integers": lambda p, _: p.hash_bucket("i", buckets=100),
    "hashBucket of strings": lambda p, _: p.hash_bucket("s", buckets=100),
    "hashBucket of lists": lambda p, _: p.hash_bucket("l", buckets=100),
    "padSequence": lambda p, _: p.pad_sequence("l", length=3, value=-1),
    "truncate": lambda p, _: p.truncate("l", length=1),
    "filter": lambda p, _: p.filter("i = 1 or s = 'a' or f is null"),
    "derive": lambda p, _: p.derive(x="i + 1", y="s || 'q'", z="coalesce(f, 9.0)", t="f in (0.5)"),
    "derive of lists": lambda p, _: p.derive(x="list_sum(l)", y="list_contains(l, i)"),
    "join": lambda p, side: p.join(side, ["s"], columns=["x"]),
    "antiJoin": lambda p, side: p.anti_join(side, ["i"]),
    "sample": lambda p, _: p.sample(50, by=["s"], seed=1),
    "map": lambda p, _: p.map(double, input_columns=["f", "s"], format="numpy"),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_dictionary_column_acts_like_its_values(
    step: Callable[[Pipeline, str], Pipeline], tables: Path
) -> None:
    found = []
    for name in ("plain", "encoded"):
        rows = Pipeline.read_parquet(f"{tables / name}/rows.parquet", row_key=["id"])
        found.append(step(rows, f"{tables / name}/side.parquet").to_table("/").to_pylist())
    assert repr(found[1]) == repr(found[0])  # by their text, in which nan is nan
