"""The tests' own look for facts in a message: whatever its words, and never for nothing."""

import pytest
from facts import assert_all_told, assert_one_tells, find_untold

MESSAGE = "spec.rows: must be ≥ 40, got 'x'; did you mean 7?"


@pytest.mark.parametrize(
    ("facts", "untold"),
    [
        pytest.param("spec.rows: … 'x' … 40", [], id="in any order"),
        pytest.param("… 'x' … spec.rows: ", [], id="none has to begin"),
        pytest.param("spec.row: … 'x'", ["spec.row:"], id="another field"),
        pytest.param("rows: … 'x'", ["rows:"], id="a field that does not begin the text"),
        pytest.param("spec.rows: … 'y' … 5", ["'y'", "5"], id="another value and another bound"),
        pytest.param("spec.rows: … 4", ["4"], id="a part of a number"),
    ],
)
def test_what_a_message_does_not_tell_is_found(facts: str, untold: list[str]) -> None:
    assert find_untold(MESSAGE, facts) == untold


def test_a_message_too_many_or_too_few_is_noticed() -> None:
    assert_all_told([MESSAGE], ["spec.rows: … 40"])
    for texts in ([], [MESSAGE, MESSAGE]):
        with pytest.raises(AssertionError):
            assert_all_told(texts, ["spec.rows: … 40"])


def test_facts_have_to_stand_in_one_line() -> None:
    assert_one_tells(["a 1", "b 2"], "… b … 2")
    with pytest.raises(AssertionError):
        assert_one_tells(["a 1", "b 2"], "… a … 2")
