"""The table at the end of a run: on a terminal, in a pipe, in plain ASCII."""

import io

import pytest
from rich.console import Console

from pipeline_runtime.report import Summary, print_summary
from pipeline_runtime.report.testing import build_sample_summary


def render(summary: Summary, *, is_terminal: bool, encoding: str, width: int = 100) -> str:
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = Console(file=buffer, force_terminal=is_terminal, width=width, _environ={})
    print_summary(console, summary)
    buffer.flush()
    data = buffer.buffer
    assert isinstance(data, io.BytesIO)
    return data.getvalue().decode(encoding)


def build_talkative_summary() -> Summary:
    summary = build_sample_summary()
    run = summary.run.model_copy(
        update={"outcome": "Failed", "error": "[bold]boom[/bold] é\x1b[2J"}
    )
    return summary.model_copy(update={"run": run, "warnings": ("\x1b]0;title\x07 …",)})


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_console_shows_the_numbers(is_terminal: bool, encoding: str) -> None:
    text = render(build_sample_summary(), is_terminal=is_terminal, encoding=encoding)
    text = text.replace("\u00a0", " ")
    for number in ("8.19 M (8,189,952)", "103,078,357", "61.3 %", "278 GB", "16 min 49 s"):
        assert number in text
    for name in ("Complete", "quickstart", "3. downsample", "Production", "step-2000"):
        assert name in text


def test_a_terminal_has_boxes_and_colours() -> None:
    text = render(build_sample_summary(), is_terminal=True, encoding="utf-8")
    assert "╭" in text
    assert "\x1b[" in text
    assert "█" in text


def test_a_pipe_has_neither() -> None:
    text = render(build_sample_summary(), is_terminal=False, encoding="utf-8")
    assert "\x1b" not in text
    assert text.isascii()


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
def test_text_of_the_user_moves_no_cursor_and_is_no_markup(is_terminal: bool) -> None:
    text = render(build_talkative_summary(), is_terminal=is_terminal, encoding="ascii")
    assert "[bold]boom[/bold] ??[2J" in text
    assert "\x1b[2J" not in text
    assert "\x1b]0;" not in text
    assert "\x07" not in text


def test_a_run_that_did_nothing_has_a_table() -> None:
    summary = build_sample_summary()
    empty = Summary(experiment=summary.experiment, run=summary.run)
    text = render(empty, is_terminal=False, encoding="utf-8")
    assert "Samples trained" in text
    assert "Rows," not in text
    assert "Trainer's time" not in text


def test_a_narrow_terminal_loses_no_digit() -> None:
    text = render(build_sample_summary(), is_terminal=False, encoding="utf-8", width=40)
    assert all(len(line) <= 40 for line in text.splitlines())
    for number in ("95,986,566", "8,189,952", "13.9 %", "62.1 %"):
        assert number in text
