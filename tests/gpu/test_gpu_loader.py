"""A loader's batches on a GPU are those on the CPU, whatever the loop does with them meanwhile."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline_runtime import Pipeline


@pytest.mark.parametrize("last_batch", ["keep", "pad"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_on_the_gpu_are_those_on_the_cpu(
    tmp_path: Path, shuffle: bool, last_batch: Any
) -> None:
    rows = np.arange(10_000)
    table = pa.table({"x": rows, "even": rows % 2 == 0, "items": [[i] * (i % 3) for i in rows]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=700)
    pipeline = Pipeline.read_parquet("t.parquet").pad_sequence("items", length=2)
    arguments: dict[str, Any] = {
        "batch_size": 300,
        "shuffle": shuffle,
        "last_batch": last_batch,
        "storage_root": str(tmp_path),
    }
    on_gpu = []
    for batch in pipeline.loader(device="cuda", **arguments):
        assert {tensor.device.type for tensor in batch.values()} == {"cuda"}
        on_gpu.append({name: tensor.cpu() for name, tensor in batch.items()})
        for tensor in batch.values():
            tensor.zero_()  # the next batch has memory of its own
    for expected, found in zip(pipeline.loader(**arguments), on_gpu, strict=True):
        assert expected.keys() == found.keys()
        assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_a_request_comes_once_to_the_gpu_as_to_the_cpu(tmp_path: Path) -> None:
    rows = np.arange(10_000)
    columns = {"x": rows, "request": rows // 4, "user": rows // 4 * 7}
    table = pa.table(columns | {"items": [[i // 4] * (i // 4 % 5) for i in rows]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=700)
    pipeline = Pipeline.read_parquet(
        "t.parquet", request_key="request", request_columns=["user", "items"]
    ).filter("x % 3 != 0")
    arguments: dict[str, Any] = {"deduplicated": True, "storage_root": str(tmp_path)}
    on_gpu = list(pipeline.loader(300, device="cuda", **arguments))
    for expected, found in zip(pipeline.loader(300, **arguments), on_gpu, strict=True):
        assert expected.keys() == found.keys()
        assert len(expected["user"]) < len(expected["x"])
        assert all(torch.equal(tensor, found[name].cpu()) for name, tensor in expected.items())
