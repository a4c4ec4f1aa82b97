"""The batch that is made ahead is the one that would be made when asked for."""

import pyarrow as pa
import pytest
import torch

from pipeline_runtime.errors import TrainingError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.batching import Batching, make_ready
from pipeline_runtime.feed.pieces import Header, Piece
from pipeline_runtime.feed.wire import pack, unpack
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.steps.base import ROW_HASH_COLUMN
from pipeline_runtime.training.collating import Collator
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.stream import BatchStream, Cutting


def make_stream(values: list[list[int | None]], batch_size: int) -> BatchStream:
    """A group of one piece for each list of values."""
    pieces = []
    for group, column in enumerate(values):
        header = Header(
            epoch=0, group=group, piece=0, is_last=True, num_rows=len(column), counts=()
        )
        hashes = pa.array(range(len(column)), pa.uint64())
        table = pa.table({"x": pa.array(column, pa.int64()), ROW_HASH_COLUMN: hashes})
        pieces.append(Piece(header=header, table=table))
    return BatchStream(
        pieces=iter(pieces),
        groups=[Group(epoch=0, index=i, units=()) for i in range(len(values))],
        cutting=Cutting(batch_size=batch_size, last_batch="pad"),
        position=Position(),
        waited=Waited(),
    )


def test_what_readers_made_and_sent_is_the_same_made_ahead() -> None:
    batching = Batching(batch_size=4, weight_column=None, label_column=None)
    sent = make_stream([list(range(10))], batch_size=4)
    sent.pieces = iter([unpack(pack(make_ready(piece, batching)))[0] for piece in sent.pieces])
    batches, known = collate(sent, ahead=True)
    assert (batches, known) == ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], 1)


def collate(stream: BatchStream, *, ahead: bool) -> tuple[list[list[int]], int]:
    """The batches' values, and how many of them were known before they were asked for."""
    collator = Collator(torch.device("cpu"), weight_column=None, label_column=None, ahead=ahead)
    batches, following, known = [], None, 0
    for table in stream.epoch_rows(0):
        assert table is not None
        known += table is following
        following = stream.following()
        batches.append(collator.make(table, following, stream.waited)["x"].tolist())
    return batches, known


@pytest.mark.parametrize("ahead", [True, False])
def test_batches_are_the_same_made_ahead_or_when_asked_for(ahead: bool) -> None:
    values: list[list[int | None]] = [list(range(10)), list(range(10, 13)), list(range(13, 20))]
    batches, known = collate(make_stream(values, batch_size=4), ahead=ahead)
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [13, 14, 15, 16]]
    assert batches == [*whole[:2], [8, 9, 10, 11], whole[2], [12, 17, 18, 19]]
    assert known == 2  # 4–7, and the last: for the others a piece had to arrive first


def test_what_is_wrong_with_a_batch_is_said_when_it_is_asked_for() -> None:
    stream = make_stream([[1, 2, None, 4]], batch_size=2)
    collator = Collator(torch.device("cpu"), weight_column=None, label_column=None, ahead=True)
    tables = stream.epoch_rows(0)
    first = next(tables)
    assert first is not None
    assert collator.make(first, stream.following(), Waited())["x"].tolist() == [1, 2]
    second = next(tables)
    assert second is not None
    with pytest.raises(TrainingError, match="column 'x': must have no nulls, got 1 among 2"):
        collator.make(second, None, Waited())
