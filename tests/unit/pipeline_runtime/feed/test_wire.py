"""Pieces of one call travel together and are what they were, tables and ready ones."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime.feed.batching import Batching, make_ready
from pipeline_runtime.feed.pieces import Header, Piece, ReadyPiece
from pipeline_runtime.feed.wire import Wire, pack_all, unpack
from pipeline_runtime.steps.base import ROW_HASH_COLUMN


def piece_of(index: int, num_rows: int) -> Piece:
    header = Header(
        epoch=0, group=index, piece=0, is_last=True, num_rows=num_rows, counts=(), gap_seconds=0.5
    )
    values = np.arange(num_rows) + 1000 * index
    table = pa.table(
        {
            "x": pa.array(values, pa.int16()),
            "items": pa.array([list(range(value % 4)) for value in values], pa.list_(pa.int64())),
            ROW_HASH_COLUMN: pa.array(values, pa.uint64()),
        }
    )
    return Piece(header=header, table=table)


@pytest.mark.parametrize("codec", [None, "lz4"])
@given(lengths=st.lists(st.integers(0, 70), min_size=1, max_size=4), is_ready=st.booleans())
def test_pieces_come_as_they_were_sent(
    lengths: list[int], is_ready: bool, codec: str | None
) -> None:
    pieces = [piece_of(index, num_rows) for index, num_rows in enumerate(lengths)]
    batching = Batching(batch_size=32, weight_column=None, label_column=None)
    sent = [make_ready(piece, batching) if is_ready else piece for piece in pieces]
    block = pack_all(sent, Wire(codec=codec))
    assert block.num_rows == len(pieces)
    for before, after in zip(sent, unpack(block), strict=True):
        assert after.header == before.header
        if isinstance(before, ReadyPiece):
            assert isinstance(after, ReadyPiece)
            np.testing.assert_array_equal(after.hashes, before.hashes)
            for index in range(len(before.batches)):
                assert_equal(after.arrays(index), before.arrays(index))
        else:
            assert isinstance(after, Piece)
            assert after.table == before.table


def assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
