"""The loader's batches: every row once, in a fixed order, with the last batch as asked for."""

import itertools
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline_runtime import Pipeline
from pipeline_runtime.batches import Batch
from pipeline_runtime.request_batches import expand

NUM_ROWS = 1000


def xs(batches: Iterable[Batch]) -> list[int]:
    return torch.cat([batch["x"] for batch in batches]).tolist()


@pytest.mark.parametrize("batch_size", [1, 64, 1000, 5000])
def test_rows_come_in_the_order_of_the_table(pipeline: Pipeline, batch_size: int) -> None:
    loader = pipeline.loader(batch_size)
    batches = list(loader)
    assert xs(batches) == list(range(NUM_ROWS))
    assert {len(batch["x"]) for batch in batches[:-1]} <= {batch_size}
    assert len(loader) == len(batches)
    assert set(batches[0]) == {"x", "even", "request", "items.values", "items.offsets"}


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_of_a_chunk_are_views_of_what_its_reader_converted(
    clicks: Path, shuffle: bool
) -> None:
    """Arrow stores flags as bits, so they are copied: not in the loop, for each batch."""
    pipeline = Pipeline.read_parquet(f"{clicks}/t/")
    flags = [batch["even"] for batch in pipeline.loader(20, shuffle=shuffle)]
    follows = [b.data_ptr() == a.data_ptr() + a.nbytes for a, b in itertools.pairwise(flags)]
    assert sum(follows) > len(flags) / 2


def test_a_shuffle_gives_each_epoch_another_order_of_the_same_rows(pipeline: Pipeline) -> None:
    loader = pipeline.loader(64, ["x"], shuffle=True, seed=7)
    first, second = xs(loader), xs(loader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(NUM_ROWS))
    assert first != sorted(first)
    loader.set_epoch(0)
    assert (xs(loader), xs(loader)) == (first, second)
    assert xs(pipeline.loader(64, ["x"], shuffle=True, seed=7)) == first
    assert xs(pipeline.loader(64, ["x"], shuffle=True, seed=8)) != first


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_batch(pipeline: Pipeline, num_threads: int) -> None:
    expected = pipeline.loader(64, shuffle=True, num_threads=3)
    found = pipeline.loader(64, shuffle=True, num_threads=num_threads)
    for batch, other in zip(expected, found, strict=True):
        assert all(torch.equal(tensor, other[name]) for name, tensor in batch.items())


def test_requests_stay_together_in_a_shuffle_of_requests(pipeline: Pipeline) -> None:
    found = xs(pipeline.loader(1000, shuffle="request"))
    # Row groups of 70 rows cut some requests of 4.
    assert sum(b - a == 1 for a, b in itertools.pairwise(found)) >= 700
    assert found != sorted(found)
    assert sorted(found) == list(range(NUM_ROWS))


@pytest.mark.parametrize(
    ("last_batch", "sizes"), [(None, [300, 300, 300, 100]), ("drop", [300] * 3), ("pad", [300] * 4)]
)
def test_the_last_batch_is_as_asked_for(
    pipeline: Pipeline, last_batch: Any, sizes: list[int]
) -> None:
    loader = pipeline.loader(300, last_batch=last_batch)
    batches = list(loader)
    assert [len(batch["x"]) for batch in batches] == sizes
    assert len(loader) == len(sizes)
    assert [("row_weight" in batch) for batch in batches] == [last_batch == "pad"] * len(sizes)
    assert loader.checksum["rows"] == min(NUM_ROWS, sum(sizes))


def test_padding_weighs_nothing_and_has_empty_lists(pipeline: Pipeline) -> None:
    *_, last = pipeline.loader(300, last_batch="pad")
    assert last["row_weight"].tolist() == [1.0] * 100 + [0.0] * 200
    assert last["x"].tolist() == [*range(900, 1000), *[0] * 200]
    lengths = last["items.offsets"].diff()
    assert lengths.tolist() == [i % 3 for i in range(900, 1000)] + [0] * 200
    assert len(last["items.values"]) == last["items.offsets"][-1]


def test_the_length_is_unknown_where_a_step_may_drop_rows(pipeline: Pipeline) -> None:
    loader = pipeline.filter("x >= 5").loader(100)
    with pytest.raises(TypeError, match=r"pipeline\[0\]"):
        len(loader)
    assert len(list(loader)) == 10


def test_an_epoch_without_batches_says_why(pipeline: Pipeline) -> None:
    for loader, fact in (
        (pipeline.filter("x < 0").loader(10), "x < 0"),
        (pipeline.filter("x % 3 > 5").loader(10), "filter x % 3 > 5"),
        (pipeline.loader(2000, last_batch="drop"), "1,000"),
    ):
        with pytest.warns(UserWarning, match="no batches") as caught:
            assert list(loader) == []
        assert fact in str(caught[0].message)
        assert caught[0].filename == __file__


def test_steps_run_and_a_function_too(pipeline: Pipeline) -> None:
    plain = pipeline.derive(y="x * 2").filter("even").downsample(50, seed=3, weight_column="w")
    expected = plain.to_table()
    mapped = plain.map(keep_as_it_is)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made in (plain, mapped):
            batches = list(made.loader(64, ["x", "y", "w"]))
            assert xs(batches) == expected.column("x").to_pylist()
            assert torch.cat([b["w"] for b in batches]).tolist() == [2.0] * expected.num_rows


def test_columns_of_a_request_come_once_if_asked_for(tmp_path: Path) -> None:
    rows = [{"x": i, "request": i // 20, "user": [i // 20] * 3} for i in range(400)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    pipeline = Pipeline.read_parquet("t.parquet", request_key="request", request_columns=["user"])
    flat = list(pipeline.loader(64, storage_root=str(tmp_path)))
    assert all("request_index" not in batch for batch in flat)
    for last_batch in ("keep", "pad"):
        loader = pipeline.loader(
            64, deduplicated=True, last_batch=last_batch, storage_root=str(tmp_path)
        )
        batches = list(loader)
        assert len(batches[0]["user.offsets"]) - 1 < 10
        for batch, expected in zip(batches, flat, strict=True):
            found = expand(batch, ["user", "request"])
            count = len(expected["x"])
            lengths = expected["user.offsets"].diff()
            assert torch.equal(found["user.offsets"].diff()[:count], lengths)
            assert torch.equal(found["user.values"][: int(lengths.sum())], expected["user.values"])
            assert len(found["x"]) == (64 if last_batch == "pad" else count)


def test_tensors_are_on_the_device(pipeline: Pipeline) -> None:
    for batch in pipeline.loader(300, device="meta", last_batch="pad"):
        assert {tensor.device.type for tensor in batch.values()} == {"meta"}


def keep_as_it_is(table: pa.Table) -> pa.Table:
    """Return the table; a function that a step `map` imports."""
    return table
