"""Messages of users' code lose control characters before they reach a condition or terminal."""

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import running

from dataset_operator.cli.printing import print_log, print_table
from dataset_operator.status import find_condition, fit_message
from pipeline_runtime.config import clean
from pipeline_runtime.formatting import format_duration

TRACEBACK = "\x1b[36mray::train()\x1b[39m (pid=7)\n\tValueError: \x1b]0;owned\x07\u202ebad\r"


@given(st.text())
def test_cleaning_drops_control_characters_and_keeps_words(text: str) -> None:
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
def test_messages_are_cleaned(text: str, said: str) -> None:
    assert fit_message(text) == said


def test_colours_of_a_drivers_traceback_are_dropped() -> None:
    world = running(backoffLimit=0)
    world.end_job("FAILED", message=TRACEBACK)
    world.settle()
    failed = find_condition(world.status, "Failed")
    assert failed is not None
    assert "ray::train() (pid=7)" in failed["message"]
    assert "\x1b" not in str(world.status)


CHUNKS = {
    "colours": ([b"\x1b[31mred\x1b[0m\n"], "red\n"),
    "a sequence in two chunks": ([b"a\x1b[3", b"1mred\n"], "ared\n"),
    "a title": ([b"\x1b]0;owned\x07\n"], "�]0;owned�\n"),
    "a progress bar": ([b"1 %\r2 %\r\nend"], "1 %\n2 %\nend"),
    "a character in two chunks": ([b"gr\xc3", b"\xbc\xc3\x9fe"], "grüße"),
    "no text": ([b"\xff\x9b2J\n"], "��2J\n"),
}


@pytest.mark.parametrize(("chunks", "printed"), CHUNKS.values(), ids=CHUNKS)
def test_logs_do_not_control_the_terminal(
    chunks: list[bytes], printed: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    print_log(chunks)
    assert capsysbinary.readouterr().out.decode() == printed


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_log_chunks_do_not_move_the_cursor(chunks: list[bytes]) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out):
        print_log(chunks)
    out.seek(0)
    assert all(char.isprintable() or char in "\n\t" for char in out.read())
    out.detach()


def test_tables_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("POD", "FILE"), [("\x1b[2Jw-1", "\x1b]0;owned\x07\u202e.log")])
    assert "\x1b" not in (printed := capsys.readouterr().out)
    assert "\x07" not in printed
    assert "\u202e" not in printed


def test_a_table_shows_formatted_numbers_with_plain_spaces(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(["TIME"], [[format_duration(245)]])
    assert "4 min 05 s" in capsys.readouterr().out
