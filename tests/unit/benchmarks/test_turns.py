"""Everything is measured in each round, and another goes first."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.turns import in_turn


def test_the_next_goes_first_each_round_and_after_the_last_the_first() -> None:
    rounds = [in_turn(("a", "b", "c"), index) for index in range(4)]
    assert rounds == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


@given(st.lists(st.integers(), min_size=1, unique=True), st.integers(0, 50))
def test_each_is_in_every_round_once(items: list[int], index: int) -> None:
    assert sorted(in_turn(items, index)) == sorted(items)
