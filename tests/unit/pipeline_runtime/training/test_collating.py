"""The batch that is made ahead is the one that would be made when asked for."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from pipeline_runtime.batches import Batch
from pipeline_runtime.errors import TrainingError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk, Header
from pipeline_runtime.feed.making.batching import Batching, make_ready
from pipeline_runtime.feed.transport.wire import Wire, pack, unpack
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.steps.base import ROW_HASH_COLUMN
from pipeline_runtime.training.collating import Collator
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.stream import BatchStream, Cutting


def make_stream(values: list[list[int | None]], batch_size: int) -> BatchStream:
    """A group of one chunk for each list of values."""
    chunks = []
    for group, column in enumerate(values):
        header = Header(
            epoch=0, group=group, chunk=0, is_last=True, num_rows=len(column), counts=()
        )
        hashes = pa.array(range(len(column)), pa.uint64())
        table = pa.table({"x": pa.array(column, pa.int64()), ROW_HASH_COLUMN: hashes})
        chunks.append(Chunk(header=header, rows=table))
    return BatchStream(
        chunks=iter(chunks),
        groups=[Group(epoch=0, index=i, units=()) for i in range(len(values))],
        cutting=Cutting(batch_size=batch_size, last_batch="Pad"),
        position=Position(),
        waited=Waited(),
    )


def test_what_readers_made_and_sent_is_the_same_made_ahead() -> None:
    batching = Batching(batch_size=4, weight_column=None, label_column=None)
    sent = make_stream([list(range(10))], batch_size=4)
    sent.chunks = iter([unpack(pack(make_ready(chunk, batching)))[0] for chunk in sent.chunks])
    batches, known = collate(sent, ahead=True)
    assert (batches, known) == ([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], 1)


def collate(stream: BatchStream, *, ahead: bool) -> tuple[list[list[int]], int]:
    """The batches' values, and how many of them were known before they were asked for."""
    batches, following, known = [], None, 0
    with closing(build_collator(ahead=ahead)) as collator:
        for table in stream.epoch_rows(0):
            assert table is not None
            known += table is following
            following = stream.following()
            batches.append(collator.make(table, following, stream.waited)["x"].tolist())
    return batches, known


def build_collator(*, ahead: bool) -> Collator:
    return Collator(torch.device("cpu"), weight_column=None, label_column=None, ahead=ahead)


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("chunk_rows", [1, 5, 7, 30])
def test_converted_chunks_give_the_same_batches_in_order(chunk_rows: int, sends: bool) -> None:
    batching = Batching(batch_size=4, weight_column=None, label_column=None, cuts=False)
    values: list[list[int | None]] = [list(range(15)), [15], list(range(16, 30))]

    def convert(chunk: Chunk) -> Chunk:
        table = pa.Table.from_batches(chunk.table.to_batches(max_chunksize=chunk_rows))
        ready = make_ready(replace(chunk, rows=table), batching)
        return unpack(pack(ready))[0] if sends else ready

    stream = make_stream(values, batch_size=4)
    stream.cutting = replace(stream.cutting, preserve_order=True)
    stream.chunks = iter([convert(chunk) for chunk in stream.chunks])
    batches, _ = collate(stream, ahead=True)
    assert batches == [list(range(first, min(first + 4, 30))) for first in range(0, 30, 4)]


@pytest.mark.parametrize("ahead", [True, False])
def test_batches_are_the_same_made_ahead_or_when_asked_for(ahead: bool) -> None:
    values: list[list[int | None]] = [list(range(10)), list(range(10, 13)), list(range(13, 20))]
    batches, known = collate(make_stream(values, batch_size=4), ahead=ahead)
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [13, 14, 15, 16]]
    assert batches == [*whole[:2], [8, 9, 10, 11], whole[2], [12, 17, 18, 19]]
    assert known == 2  # 4–7, and the last: for the others a chunk had to arrive first


def test_what_is_wrong_with_a_batch_is_said_when_it_is_asked_for() -> None:
    stream = make_stream([[1, 2, None, 4]], batch_size=2)
    tables = stream.epoch_rows(0)
    with closing(build_collator(ahead=True)) as collator:
        first = next(tables)
        assert first is not None
        assert collator.make(first, stream.following(), Waited())["x"].tolist() == [1, 2]
        second = next(tables)
        assert second is not None
        with pytest.raises(TrainingError, match=r"column 'x': .*\b1\b.*\b2\b"):
            collator.make(second, None, Waited())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("way", ["rows", "made", "sent"])
def test_batches_on_a_gpu_are_those_on_the_cpu(way: str, ahead: bool) -> None:
    """More batches than there are pinned buffers, each checked only after all were sent."""
    rows, size = 40_000, 4096
    padded = np.zeros((rows, 64), dtype=np.int64)
    padded[:, :5] = np.arange(rows * 5).reshape(rows, 5)
    columns = {
        "x": pa.array(np.arange(rows)),
        "half": pa.array(np.arange(rows, dtype=np.float16)),
        "flag": pa.array(np.arange(rows) % 3 == 0),
        "list": pa.array([[row] * (row % 4) for row in range(rows)]),
        "padded": pa.FixedSizeListArray.from_arrays(pa.array(padded.reshape(-1)), 64),
        ROW_HASH_COLUMN: pa.array(np.arange(rows, dtype=np.uint64)),
    }
    header = Header(epoch=0, group=0, chunk=0, is_last=True, num_rows=rows, counts=())
    chunk = Chunk(header=header, rows=pa.table(columns))
    batching = Batching(batch_size=size, weight_column=None, label_column=None)
    wire = Wire(sparse=True, codec="lz4")
    brought: Chunk = chunk if way == "rows" else make_ready(chunk, batching)
    if way == "sent":
        [brought] = unpack(pack(brought, wire))

    def batches_on(device: str) -> list[Batch]:
        stream = BatchStream(
            chunks=iter([brought]),
            groups=[Group(epoch=0, index=0, units=())],
            cutting=Cutting(batch_size=size, last_batch="Pad"),
            position=Position(),
            waited=Waited(),
        )
        collator = Collator(
            torch.device(device), weight_column=None, label_column=None, ahead=ahead, sparse=True
        )
        found = []
        with closing(collator):
            for each in stream.epoch_rows(0):
                assert each is not None
                batch = collator.make(each, stream.following(), stream.waited)
                found.append({name: tensor * 1 for name, tensor in batch.items()})  # a model reads
        return found

    for mine, theirs in zip(batches_on("cuda"), batches_on("cpu"), strict=True):
        assert mine.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert mine[name].device.type == "cuda"
            assert torch.equal(mine[name].cpu(), tensor), name
