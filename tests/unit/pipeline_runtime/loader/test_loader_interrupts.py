"""An interrupt (Ctrl-C) or an error anywhere in the loader: no batch counts that was not given."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime import Pipeline
from pipeline_runtime.errors import LoaderError, StepError

FILES = {"iteration.py", "stream.py", "position.py", "collating.py", "reader_feed.py"}
# Here the batch is on its way to the caller, and counts as delivered.
GIVING = {"deliver", "__next__"}


@contextmanager
def interrupt(number: int) -> Iterator[None]:
    """Raise KeyboardInterrupt at this line, of all that this thread runs in the loader."""
    lines = itertools.count()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if Path(code.co_filename).name not in FILES or code.co_name in GIVING:
            return None
        if event == "line" and next(lines) == number:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@settings(max_examples=examples(15))
@given(
    number=st.integers(0, 1500),
    options=st.fixed_dictionaries(
        {
            "batch_size": st.sampled_from([64, 130, 300]),
            "shuffle": st.booleans(),
            "last_batch": st.sampled_from(["keep", "drop"]),
        }
    ),
    start=st.integers(0, 2),
)
def test_an_interrupt_anywhere_loses_and_repeats_no_batch(
    pipeline: Pipeline, number: int, options: dict[str, Any], start: int
) -> None:
    pipeline = pipeline.filter("x % 7 < 5")
    expected = [batch["x"].tolist() for batch in pipeline.loader(**options)]
    loader = pipeline.loader(**options, num_threads=1)
    list(islice(loader, start))
    state = loader.state_dict()
    loader.load_state_dict(state)
    given = expected[:start]
    try:
        with interrupt(number):
            for batch in loader:
                given.append(batch["x"].tolist())
    except KeyboardInterrupt:
        pass
    else:
        return
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) in [(0, len(given)), (1, 0)]
    if state["epoch"] == 1:  # it came after the last batch
        assert given == expected
        return
    again = pipeline.loader(**options)
    again.load_state_dict(state)
    assert given + [batch["x"].tolist() for batch in again] == expected


def test_a_loop_that_failed_does_not_end_as_if_complete(pipeline: Pipeline) -> None:
    loader = pipeline.cast(x="int8").loader(60, num_threads=1)
    batches = iter(loader)
    with pytest.raises(StepError):
        list(batches)
    with pytest.raises(LoaderError, match="failed"):
        next(batches)
