"""Memory shared with a rank: nothing is written where somebody still looks; all is used again."""

import multiprocessing
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime.arrays.packing import Bytes
from pipeline_runtime.feed.transport.segments import CAN_SHARE, Mapped, Segment, Segments

pytestmark = pytest.mark.skipif(not CAN_SHARE, reason="only Linux has anonymous files")
READER = "reader-1"


def written(segments: Segments, size: int, value: int, rank: int | None = None) -> Segment:
    segment, memory = segments.take(size, os.getpid() if rank is None else rank)
    memory[:] = value % 251
    return segment


@given(
    st.lists(
        st.tuples(st.integers(1, 70_000), st.integers(0, 5), st.booleans()), min_size=1, max_size=25
    )
)
def test_what_is_looked_at_stays_as_it_was(calls: list[tuple[int, int, bool]]) -> None:
    segments, mapped = Segments(), Mapped()
    held: list[tuple[int, Bytes]] = []
    for value, (size, released, is_sliced) in enumerate(calls):
        segments.free(mapped.take_unused(READER))
        view = mapped.open(READER, written(segments, size, value))
        assert len(view) == size
        held.append((value % 251, view[: max(1, size // 2)] if is_sliced else view))
        del view
        for expected, memory in held:
            assert (memory == expected).all()
        held = held[min(released, len(held)) :]
    segments.close()


def test_a_segment_is_used_again_once_its_last_view_is_gone() -> None:
    segments, mapped = Segments(), Mapped()
    first = written(segments, 5000, 1)
    view = mapped.open(READER, first)[100:200].view(np.uint32)
    assert mapped.take_unused(READER) == ()
    assert written(segments, 5000, 2).name != first.name
    assert (view.view(np.uint8) == 1).all()

    del view

    assert mapped.take_unused(READER) == (first.name,)
    assert mapped.take_unused(READER) == ()
    segments.free([first.name])
    longer = written(segments, 50_000, 3)  # the one that is unused is made longer
    assert longer.name == first.name
    assert (mapped.open(READER, longer) == 3).all()


def test_views_may_be_written_to() -> None:
    mapped = Mapped()
    view = mapped.open(READER, written(Segments(), 100, 1))
    view[:] = 7
    assert (view == 7).all()


def test_what_a_rank_that_died_had_is_used_again() -> None:
    gone = multiprocessing.get_context("spawn").Process(target=sys.exit)
    gone.start()
    gone.join()
    assert gone.pid is not None
    segments = Segments()
    first = written(segments, 100, 1, rank=gone.pid)
    assert written(segments, 100, 2).name == first.name


def test_views_outlive_their_reader() -> None:
    segments, mapped = Segments(), Mapped()
    view = mapped.open(READER, written(segments, 100, 4))
    mapped.forget(READER)
    del segments
    assert (view == 4).all()
    del view
    assert mapped.take_unused(READER) == ()


def test_memory_that_may_not_be_seen_is_told() -> None:
    segments = Segments()
    hidden = replace(written(segments, 100, 1), descriptor=999_999)
    with pytest.raises(OSError, match="999999"):
        Mapped().open(READER, hidden)


def test_another_file_is_not_taken_for_a_segment() -> None:
    segments = Segments()
    first, second = written(segments, 100, 1), written(segments, 100, 2)
    with pytest.raises(OSError, match=first.name):
        Mapped().open(READER, replace(first, descriptor=second.descriptor))
