"""The ledger of chunks: each is delivered once, whichever readers are lost on the way."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime.errors import FeedError
from pipeline_runtime.feed.chunk import Header, StepCount
from pipeline_runtime.feed.leases import MAX_LOSSES_PER_GROUP, Ledger, Task
from pipeline_runtime.feed.reader_usage import Paces
from pipeline_runtime.plan import Group
from pipeline_runtime.sources import Unit

CHUNK_ROWS = 10


def group(index: int, *rows: int) -> Group:
    units = tuple(Unit(place="f", index=i, num_rows=n, num_bytes=n) for i, n in enumerate(rows))
    return Group(epoch=0, index=index, units=units)


@pytest.mark.parametrize(
    ("rows", "chunks"),
    [((0,), 1), ((10,), 1), ((11,), 2), ((25,), 3), ((4, 5), 1)],  # 10 is a chunk, 11 are two
)
def test_a_group_has_one_chunk_unless_its_unit_is_longer(
    rows: tuple[int, ...], chunks: int
) -> None:
    assert group(0, *rows).num_chunks(CHUNK_ROWS) == chunks


@given(
    lengths=st.lists(st.integers(0, 45), max_size=8),
    choices=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=60),
)
def test_every_chunk_is_delivered_once(lengths: list[int], choices: list[tuple[str, int]]) -> None:
    groups = [group(index, rows) for index, rows in enumerate(lengths)]
    ledger = Ledger(groups, CHUNK_ROWS)
    held: dict[str, list[Task]] = {"a": [], "b": [], "c": []}
    delivered: list[tuple[int, int]] = []
    losses = 0
    everyone = [(reader, 1) for _ in range(200) for reader in "abc"]
    for reader, action in [*choices, *everyone]:
        if action == 0 and losses < MAX_LOSSES_PER_GROUP:
            ledger.lose(reader, held[reader])
            held[reader], losses = [], losses + 1
        elif action == 1 and held[reader]:
            delivered.append(held[reader].pop(0).place)
        elif (task := ledger.take(reader)) is not None:
            held[reader].append(task)
    assert not ledger.num_left
    wanted = [(i, p) for i, g in enumerate(groups) for p in range(g.num_chunks(CHUNK_ROWS))]
    assert sorted(delivered) == wanted


def test_what_was_lost_comes_before_what_follows_it() -> None:
    ledger = Ledger([group(0, 30), group(1, 10)], CHUNK_ROWS)
    first = ledger.take("a")
    assert first is not None
    ledger.lose("a", [first])
    again = [ledger.take("b") for _ in range(4)]
    assert [task.place for task in again if task] == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_what_two_readers_left_of_a_group_is_made_in_its_order() -> None:
    ledger = Ledger([group(0, 60)], CHUNK_ROWS)
    first = [ledger.take("a"), ledger.take("a")]
    ledger.keep({"b"})  # a leaves, with chunks 0 and 1 to deliver
    third = ledger.take("b")
    ledger.lose("a", [task for task in first if task])
    fourth = ledger.take("b")
    assert [task.chunk for task in (third, fourth) if task] == [2, 0]
    ledger.lose("b", [task for task in (third, fourth) if task])
    again = [ledger.take("c") for _ in range(6)]
    assert [task.chunk for task in again if task] == list(range(6))


def test_the_last_lease_is_split_for_a_reader_that_has_nothing_to_do() -> None:
    ledger = Ledger([group(0, 60)], CHUNK_ROWS)
    first = ledger.take("a")
    others = [ledger.take("b") for _ in range(3)]
    assert first is not None
    assert [task.chunk for task in others if task] == [4, 5, 3]  # of 1–5 two, of 1–3 one
    rest = [ledger.take("a") for _ in range(3)]
    assert [task.chunk for task in rest if task] == [1, 2]
    assert not ledger.num_left


@pytest.mark.parametrize(
    ("read_share", "chunk", "is_mixed"),
    [
        (0.0, 5, False),  # half of 2–7
        (0.6, 6, False),  # to read over 0–5 and make 6 and 7: 5.6, less than the 6 that are left
        (0.7, 7, False),
        (0.9, None, False),  # to read over 0–6 and make 7: 7.3
        (0.0, 5, True),
        (0.3, 6, True),  # to read 0–7 and make 6 and 7: 3.8; 2–7 are read, to make them: 4.2
        (0.4, None, True),
        (1.5, None, True),  # several row groups are read at the same time
    ],
)
def test_a_lease_is_split_only_as_far_as_reading_over_the_rest_takes_less(
    read_share: float, chunk: int | None, is_mixed: bool
) -> None:
    whole = replace(group(0, 40, 40), is_mixed=True) if is_mixed else group(0, 80)
    ledger = Ledger([whole], CHUNK_ROWS)
    assert [task.chunk for task in (ledger.take("a"), ledger.take("a")) if task] == [0, 1]
    task = ledger.take("b", (), read_share)
    assert (task.chunk if task else None) == chunk


def test_a_slow_reader_s_lease_is_split_before_the_next_epoch_is_begun() -> None:
    def ledger_with_a_at_work() -> Ledger:
        epochs = [group(0, 60), replace(group(0, 10), epoch=1), replace(group(1, 10), epoch=1)]
        ledger = Ledger(epochs, CHUNK_ROWS)
        assert ledger.take("a") is not None
        return ledger

    usual, split = ledger_with_a_at_work().take("b"), ledger_with_a_at_work().take("b", {"a"})
    assert usual is not None
    assert split is not None
    assert usual.place == (1, 0)
    assert split.place == (0, 4)


def test_a_reader_that_takes_twice_as_long_a_row_as_the_others_is_slow() -> None:
    paces = Paces()
    assert not paces.slow()
    for reader, seconds in {"a": 1.0, "b": 1.1, "c": 2.5}.items():
        for rows in (1, 100, 10):  # the first one does not count
            count = StepCount(rows=rows, num_bytes=0, seconds=seconds * rows)
            header = Header(epoch=0, group=0, chunk=0, is_last=True, num_rows=rows, counts=(count,))
            paces.note(reader, header)
    assert paces.slow() == {"c"}


def test_the_reader_of_the_earliest_group_is_asked_first() -> None:
    ledger = Ledger([group(0, 20), group(1, 20), group(2, 20)], CHUNK_ROWS)
    ledger.take("b")
    ledger.take("c")
    assert ledger.choose(["a", "c", "b"]) == "b"
    assert ledger.choose(["a", "c"]) == "c"
    assert ledger.choose(["a"]) == "a"


def test_a_group_that_kills_its_readers_ends_the_run() -> None:
    ledger = Ledger([group(0, 10)], CHUNK_ROWS)
    for _ in range(MAX_LOSSES_PER_GROUP):
        task = ledger.take("a")
        assert task is not None
        ledger.lose("a", [task])
    with pytest.raises(FeedError, match=r"group 0 .*epoch 0.*\b11\b"):
        ledger.lose("a", [task])
