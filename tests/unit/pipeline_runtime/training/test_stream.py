"""Batches from chunks: exact sizes, every row once, positions that resume, ranks in step."""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime.errors import FeedError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk, Header, StepCount
from pipeline_runtime.feed.making.batching import Batching, make_ready
from pipeline_runtime.feed.transport.wire import pack, unpack
from pipeline_runtime.hashing import Checksum
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.steps.base import ROW_HASH_COLUMN
from pipeline_runtime.training.buffered import BatchRows
from pipeline_runtime.training.position import Position, redistribute
from pipeline_runtime.training.stream import Agreement, BatchStream, Cutting

Shape = list[list[int]]  # rows of every chunk of every group


def make_chunks(shape: Shape, epoch: int = 0) -> list[Chunk]:
    chunks, row = [], 1000 * epoch
    for group, sizes in enumerate(shape):
        for index, rows in enumerate(sizes):
            ids = np.arange(row, row + rows, dtype=np.uint64)
            row += rows
            header = Header(
                epoch=epoch,
                group=group,
                chunk=index,
                is_last=index == len(sizes) - 1,
                num_rows=rows,
                counts=(StepCount(rows=rows, num_bytes=rows, seconds=0.0),),
            )
            table = pa.table({"x": pa.array(ids.astype(np.int64)), ROW_HASH_COLUMN: ids})
            chunks.append(Chunk(header=header, rows=table))
    return chunks


def make_groups(shape: Shape, epochs: int = 1) -> list[Group]:
    return [Group(epoch=e, index=i, units=()) for e in range(epochs) for i in range(len(shape))]


def make_stream(
    chunks: Sequence[Chunk],
    groups: list[Group],
    batch_size: int = 4,
    position: Position | None = None,
    **cutting: object,
) -> BatchStream:
    return BatchStream(
        chunks=iter(chunks),
        groups=groups,
        cutting=Cutting(batch_size=batch_size, **({"last_batch": "Pad"} | cutting)),  # type: ignore[arg-type]
        position=position or Position(),
        waited=Waited(),
    )


def rows_of(batches: Iterator[BatchRows | None]) -> list[list[int]]:
    return [values_of(rows) for rows in batches]


def values_of(rows: BatchRows | None) -> list[int]:
    if rows is None:
        return []
    return [int(value) for value in rows.to_arrays(None, None)["x"]]


def made_ready(
    chunks: Sequence[Chunk], batch_size: int, *, sent: bool, chunk_rows: int
) -> list[Chunk]:
    """The chunks as their readers make batches of them, and as they come from another process.

    Args:
        chunk_rows: of a row group, of which the chunks are put together.
    """
    chunks = [replace(chunk, rows=in_chunks(chunk.table, chunk_rows)) for chunk in chunks]
    batching = Batching(batch_size=batch_size, weight_column=None, label_column=None)
    ready = [make_ready(chunk, batching) for chunk in chunks]
    return [unpack(pack(chunk))[0] for chunk in ready] if sent else ready  # type: ignore[misc]


def in_chunks(table: pa.Table, rows: int) -> pa.Table:
    starts = range(0, max(1, len(table)), rows)
    return pa.concat_tables([table.slice(start, rows) for start in starts])


shapes = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=6)


@given(shape=shapes, batch_size=st.integers(1, 11), preserve_order=st.booleans())
def test_every_row_comes_once_in_full_batches_but_the_last(
    shape: Shape, batch_size: int, preserve_order: bool
) -> None:
    chunks, groups = make_chunks(shape), make_groups(shape)
    stream = make_stream(chunks, groups, batch_size, preserve_order=preserve_order)
    batches = rows_of(stream.epoch_rows(0))
    total = sum(map(sum, shape))
    rows = [row for batch in batches for row in batch]
    assert (rows if preserve_order else sorted(rows)) == list(range(total))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert stream.position.samples == stream.position.checksum.rows == total
    assert stream.position.done == set(range(len(shape)))


@given(
    shape=shapes,
    batch_size=st.integers(1, 11),
    preserve_order=st.booleans(),
    way=st.sampled_from(["made", "sent", "every other one made"]),
    stop=st.integers(0, 12),
    chunk_rows=st.integers(1, 9),
)
def test_batches_that_readers_made_are_those_that_the_trainer_makes(
    shape: Shape, batch_size: int, preserve_order: bool, way: str, stop: int, chunk_rows: int
) -> None:
    chunks, groups = make_chunks(shape), make_groups(shape)
    plain = make_stream(chunks, groups, batch_size, preserve_order=preserve_order)
    expected = rows_of(plain.epoch_rows(0))
    made = made_ready(chunks, batch_size, sent=way == "sent", chunk_rows=chunk_rows)
    ready: list[Chunk] = [*made]
    if way == "every other one made":  # the others have a value that is no number, say
        ready[::2] = chunks[::2]
    stream = make_stream(ready, groups, batch_size, preserve_order=preserve_order)
    assert rows_of(stream.epoch_rows(0)) == expected
    assert stream.position.to_json() == plain.position.to_json()
    # And so they are after a checkpoint that the other way has written.
    first = make_stream(chunks, groups, batch_size, preserve_order=preserve_order)
    before = rows_of(islice(first.epoch_rows(0), stop)) if stop else []
    saved = Position.from_json(first.position.to_json())
    left = [group for group in groups if group.index not in saved.done]
    again = [chunk for chunk in ready if chunk.header.group not in saved.done]
    resumed = make_stream(again, left, batch_size, saved, preserve_order=preserve_order)
    assert before + rows_of(resumed.epoch_rows(0)) == expected


@given(shape=shapes, batch_size=st.integers(1, 11), data=st.data())
def test_a_chunk_s_own_batches_do_not_depend_on_other_chunks(
    shape: Shape, batch_size: int, data: st.DataObject
) -> None:
    chunks, groups = make_chunks(shape), make_groups(shape)
    own = set()
    for chunk in chunks:
        rows = chunk.table.column("x").to_pylist()
        whole = range(0, len(rows) - batch_size + 1, batch_size)
        own |= {tuple(rows[start : start + batch_size]) for start in whole}
    shuffled = data.draw(st.permutations(chunks))
    stream = make_stream(shuffled, groups, batch_size)
    assert own <= {tuple(batch) for batch in rows_of(stream.epoch_rows(0))}


@given(shape=shapes, batch_size=st.integers(1, 7), stop=st.integers(1, 12), data=st.data())
def test_a_position_resumes_with_the_rows_that_are_left(
    shape: Shape, batch_size: int, stop: int, data: st.DataObject
) -> None:
    chunks = make_chunks(shape)
    groups = make_groups(shape)
    in_order = data.draw(st.booleans())  # else the order of arrival is not promised
    whole = make_stream(chunks, groups, batch_size, preserve_order=in_order)
    expected = rows_of(whole.epoch_rows(0))

    first = make_stream(chunks, groups, batch_size, preserve_order=in_order)
    before = rows_of(islice(first.epoch_rows(0), stop))
    saved = Position.from_json(first.position.to_json())  # as a checkpoint keeps it
    left = [group for group in groups if group.index not in saved.done]
    again = [chunk for chunk in chunks if chunk.header.group not in saved.done]
    if not in_order:
        again = data.draw(st.permutations(again))
        resumed = make_stream(again, left, batch_size, saved)
        after = rows_of(resumed.epoch_rows(0))
        got = sorted(row for batch in before + after for row in batch)
        assert got == sorted(row for batch in expected for row in batch)
    else:
        resumed = make_stream(again, left, batch_size, saved, preserve_order=True)
        assert before + rows_of(resumed.epoch_rows(0)) == expected
    assert resumed.position.checksum == whole.position.checksum
    assert resumed.position.counts == whole.position.counts


def test_chunks_of_the_next_epoch_are_held_back() -> None:
    shape = [[3], [2]]
    one, two = make_chunks(shape, 0), make_chunks(shape, 1)
    stream = make_stream([one[0], two[1], one[1], two[0]], make_groups(shape, epochs=2), 10)
    assert rows_of(stream.epoch_rows(0)) == [[0, 1, 2, 3, 4]]
    assert sorted(rows_of(stream.epoch_rows(1))[0]) == [1000, 1001, 1002, 1003, 1004]


def test_drop_leaves_out_the_remainder_and_counts_it() -> None:
    shape = [[5], [4]]
    stream = make_stream(make_chunks(shape), make_groups(shape), 4, last_batch="Drop")
    assert rows_of(stream.epoch_rows(0)) == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert stream.dropped_rows == 1  # row 4
    assert stream.position.checksum.rows == 8
    assert stream.position.done == {0, 1}


def test_a_rank_without_rows_steps_along_until_no_rank_has_any() -> None:
    answers = iter([True, True, False])
    stream = make_stream(make_chunks([[2]]), make_groups([[2]]), 2)
    stream.agree = lambda has, full: Agreement(any_has_rows=next(answers), all_are_full=full)
    assert rows_of(stream.epoch_rows(0)) == [[0, 1], []]


def test_rows_of_weight_zero_are_not_in_the_checksum() -> None:
    chunks = make_chunks([[3]])
    table = chunks[0].table.append_column("w", pa.array([1.0, 0.0, None]))
    stream = make_stream(
        [Chunk(header=chunks[0].header, rows=table)], make_groups([[3]]), 9, weight_column="w"
    )
    list(stream.epoch_rows(0))
    assert stream.position.checksum.to_json() == {
        "rows": 1,
        "sum": f"{0:016x}",
        "sumOfSquares": f"{0:016x}",
    }


def test_a_feed_that_ends_early_is_an_error() -> None:
    stream = make_stream(make_chunks([[2]]), make_groups([[2], [2]]), 2)
    with pytest.raises(FeedError, match=r"epoch 0 .*\[1\]"):
        list(stream.epoch_rows(0))


def test_a_group_out_of_order_is_an_error_under_preserve_order() -> None:
    chunks = make_chunks([[2], [2]])[::-1]
    stream = make_stream(chunks, make_groups([[2], [2]]), 2, preserve_order=True)
    with pytest.raises(FeedError, match=r"group 0 .*epoch 0.*group 1"):
        list(stream.epoch_rows(0))


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(0, 20))
def test_the_checksum_is_that_of_the_set_whatever_the_order(hashes: list[int], cut: int) -> None:
    whole, parts = Checksum(), [Checksum(), Checksum()]
    whole.add(np.array(hashes, dtype=np.uint64))
    parts[0].add(np.array(hashes[:cut][::-1], dtype=np.uint64))
    parts[1].add(np.array(hashes[cut:], dtype=np.uint64))
    assert parts[0].merge(parts[1]) == whole
    assert whole.total == sum(hashes) % 2**64
    assert whole.squares == sum(h * h for h in hashes) % 2**64
    assert Checksum.from_json(whole.to_json()) == whole


worlds = st.lists(st.integers(1, 3), min_size=2, max_size=4)


@given(shape=shapes, worlds=worlds, steps=st.integers(0, 4))
def test_another_number_of_ranks_reads_what_none_has_read(
    shape: Shape, worlds: list[int], steps: int
) -> None:
    chunks, groups = make_chunks(shape), make_groups(shape)
    seen: list[int] = []
    positions = [Position()]
    for attempt, ranks in enumerate(worlds):
        is_last = attempt == len(worlds) - 1
        saved = []
        for rank, position in enumerate(redistribute(positions, ranks)):
            left = [group for group in groups[rank::ranks] if group.index not in position.done]
            mine = [p for p in chunks if p.header.group in {group.index for group in left}]
            stream = make_stream(mine, left, 3, Position.from_json(position.to_json()))
            tables = stream.epoch_rows(0)
            for table in tables if is_last else islice(tables, steps):
                seen += values_of(table)
            saved.append(stream.position)
        positions = saved
    assert sorted(seen) == list(range(sum(map(sum, shape))))


@pytest.mark.parametrize("way", ["rows", "made"])
def test_what_waits_to_be_joined_does_not_hold_its_chunk(way: str) -> None:
    held: list[weakref.ref[np.ndarray]] = []

    def arriving() -> Iterator[Chunk]:
        for group in range(40):
            [chunk] = make_chunks([[9]])
            values = np.arange(9) + 9 * group
            held.append(weakref.ref(values))
            table = chunk.table.set_column(0, "x", pa.array(values))
            made = replace(chunk, header=replace(chunk.header, group=group), rows=table)
            del values, table
            yield made if way == "rows" else made_ready([made], 8, sent=False, chunk_rows=9)[0]

    stream = make_stream([], make_groups([[9]] * 40), batch_size=8)
    stream.chunks = arriving()
    seen = []
    for rows in stream.epoch_rows(0):
        seen += values_of(rows)
        del rows
        assert sum(ref() is not None for ref in held) <= 2  # what is cut, and what comes next
    assert sorted(seen) == list(range(360))


def test_batches_do_not_copy_rows_of_one_chunk() -> None:
    shape = [[6]]
    stream = make_stream(make_chunks(shape), make_groups(shape), 2)
    addresses = [
        rows.parts[0][0].column("x").chunk(0).buffers()[1].address
        for rows in stream.epoch_rows(0)
        if rows
    ]
    assert all(left == right for left, right in pairwise(addresses))


def test_a_chunk_counts_from_its_first_row_on_and_in_the_position_when_it_is_used_up() -> None:
    stream = make_stream(make_chunks([[5], [3]]), make_groups([[5], [3]]), 4)
    seen = []
    for _ in stream.epoch_rows(0):
        [count] = stream.counts
        seen.append((count.rows, sum(counted.rows for counted in stream.position.counts)))
    assert seen == [(5, 0), (8, 8)]
