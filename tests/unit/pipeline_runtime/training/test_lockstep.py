"""The waits of ranks that move in step: of each step the longest."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime.feed.base import Waited
from pipeline_runtime.training.lockstep import STAGES, Lockstep

SECONDS = st.floats(0.0, 10.0)
STEP = st.fixed_dictionaries(dict.fromkeys(STAGES, SECONDS))


@given(st.lists(st.tuples(STEP, STEP, STEP), max_size=10))
def test_of_every_step_the_longest_wait_of_any_rank_counts(
    steps: list[tuple[dict[str, float], ...]],
) -> None:
    waits = [Waited() for _ in range(3)]
    ranks = [Lockstep(waited) for waited in waits]
    for step in steps:
        for waited, seconds in zip(waits, step, strict=True):
            for stage in STAGES:
                setattr(waited, stage, getattr(waited, stage) + seconds[stage])
        own = [rank.take_own() for rank in ranks]
        longest = [max(each) for each in zip(*own, strict=True)]
        for rank in ranks:
            rank.add(longest)
    expected = {stage: sum(max(rank[stage] for rank in step) for step in steps) for stage in STAGES}
    for rank in ranks:
        assert all(abs(rank.longest[stage] - expected[stage]) < 1e-6 for stage in STAGES)


def test_what_was_waited_before_the_attempt_is_not_of_it() -> None:
    waited = Waited(production=100.0)
    lockstep = Lockstep(waited)
    waited.production += 2.0
    waited.compute += 50.0
    assert lockstep.take_own() == [2.0, 0.0, 0.0, 0.0]
