"""What a user's code says reaches conditions as words, and moves nobody's terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import running

from dataset_operator.status import clean, find_condition, fit_message

TRACEBACK = "\x1b[36mray::train()\x1b[39m (pid=7)\n\tValueError: \x1b]0;owned\x07\u202ebad\r"


@given(st.text())
def test_no_character_moves_the_cursor_and_words_stay(text: str) -> None:
    said = clean(text)
    assert all(char.isprintable() or char in "\n\t" for char in said)
    assert clean(said) == said
    if text.isprintable():
        assert said == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("\x1b[1;31mred\x1b[0m", "red", id="colours are left out"),
        pytest.param("a\x1b[2Kb\x1b[1Ac", "abc", id="so is what moves the cursor"),
        pytest.param("\x1b]0;title\x07", "�]0;title�", id="what else there is can be seen"),
        pytest.param("two\n\tlines", "two\n\tlines", id="lines are lines"),
    ],
)
def test_a_message_is_words(text: str, said: str) -> None:
    assert fit_message(text) == said


def test_a_drivers_traceback_is_told_without_its_colours() -> None:
    world = running(backoffLimit=0)
    world.end_job("FAILED", message=TRACEBACK)
    world.settle()
    failed = find_condition(world.status, "Failed")
    assert failed is not None
    assert "ray::train() (pid=7)" in failed["message"]
    assert "\x1b" not in str(world.status)
