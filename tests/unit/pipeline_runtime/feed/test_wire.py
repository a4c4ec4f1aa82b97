"""Chunks of one call travel together and are what they were, tables and ready ones."""

import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime.arrays.packing import PackedBatch
from pipeline_runtime.feed.chunk import Batches, Chunk, Header
from pipeline_runtime.feed.making.batching import Batching, make_ready
from pipeline_runtime.feed.transport.segments import CAN_SHARE, Mapped, Segments
from pipeline_runtime.feed.transport.wire import Wire, pack_all, share, unpack, unpack_shared
from pipeline_runtime.steps.base import GROUP_HASH_COLUMN, ROW_HASH_COLUMN


def chunk_of(index: int, num_rows: int) -> Chunk:
    header = Header(
        epoch=0, group=index, chunk=0, is_last=True, num_rows=num_rows, counts=(), gap_seconds=0.5
    )
    values = np.arange(num_rows) + 1000 * index
    table = pa.table(
        {
            "x": pa.array(values, pa.int16()),
            "items": pa.array([list(range(value % 4)) for value in values], pa.list_(pa.int64())),
            ROW_HASH_COLUMN: pa.array(values, pa.uint64()),
            GROUP_HASH_COLUMN: pa.array(values // 3, pa.uint64()),
        }
    )
    return Chunk(header=header, rows=table)


@pytest.mark.parametrize("codec", [None, "lz4"])
@given(lengths=st.lists(st.integers(0, 70), min_size=1, max_size=4), is_ready=st.booleans())
def test_chunks_come_as_they_were_sent(
    lengths: list[int], is_ready: bool, codec: str | None
) -> None:
    chunks = [chunk_of(index, num_rows) for index, num_rows in enumerate(lengths)]
    batching = Batching(batch_size=32, weight_column=None, label_column=None)
    sent = [make_ready(chunk, batching) if is_ready else chunk for chunk in chunks]
    block = pack_all(sent, Wire(codec=codec))
    assert block.num_rows == len(chunks)
    for before, after in zip(sent, unpack(block), strict=True):
        assert after.header == before.header
        if isinstance(before.rows, Batches):
            assert isinstance(after.rows, Batches)
            np.testing.assert_array_equal(after.rows.hashes, before.rows.hashes)
            assert after.rows.groups is not None
            np.testing.assert_array_equal(after.rows.groups, after.rows.hashes // 3)
            for index in range(len(before.rows.batches)):
                assert_equal(after.rows.arrays(index), before.rows.arrays(index))
        else:
            assert after.table == before.table


def test_a_result_travels_without_rows() -> None:
    chunk = replace(chunk_of(0, 3), rows=pa.table({}), result='["file", [1, 2]]')
    assert unpack(pack_all([chunk, chunk])) == [chunk, chunk]


@pytest.mark.skipif(not CAN_SHARE, reason="only Linux has anonymous files")
@pytest.mark.parametrize("sparse", [False, True])
def test_filling_goes_through_shared_memory_but_to_gpus(sparse: bool) -> None:
    values = [[1 + row % 2] + [0] * 255 for row in range(256)]
    table = pa.table(
        {
            "items": pa.array(values, pa.list_(pa.int64(), 256)),
            ROW_HASH_COLUMN: pa.array(np.arange(256), pa.uint64()),
        }
    )
    header = Header(epoch=0, group=0, chunk=0, is_last=True, num_rows=256, counts=())
    batching = Batching(batch_size=128, weight_column=None, label_column=None)
    chunk = make_ready(Chunk(header=header, rows=table), batching)
    block = share([chunk], Segments(), os.getpid(), sparse=sparse)
    [found] = unpack_shared(block, Mapped().open("reader", block.segment))
    assert isinstance(chunk.rows, Batches)
    assert isinstance(found.rows, Batches)
    slots = [slot for b in found.rows.batches if isinstance(b, PackedBatch) for slot in b.slots]
    assert any(slot.fill is not None for slot in slots) is sparse
    for index in range(len(chunk.rows.batches)):
        assert_equal(found.rows.arrays(index), chunk.rows.arrays(index))


def assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
