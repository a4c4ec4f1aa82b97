"""A profile on a terminal, in a pipe, as a page and as JSON."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from pipeline_runtime.profiling.document import Advice, Profile
from pipeline_runtime.profiling.page import build_page, write_profile
from pipeline_runtime.profiling.terminal import print_profile
from pipeline_runtime.profiling.testing import build_sample_profile

EVIL = "<img src=x onerror=alert(1)>\x1b[2J"


@pytest.fixture
def profile() -> Profile:
    """One with wicked texts of a user."""
    made = build_sample_profile()
    read, kept, *rest = made.steps
    return made.model_copy(
        update={
            "steps": (read, kept.model_copy(update={"label": EVIL}), *rest),
            "advice": (Advice(field="spec.pipeline[0]", text=f"12 would do; {EVIL}"),),
        }
    )


def render(profile: Profile, *, is_terminal: bool, encoding: str = "utf-8", width: int = 80) -> str:
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = Console(file=buffer, force_terminal=is_terminal, width=width, _environ={})
    print_profile(console, profile)
    buffer.flush()
    data = buffer.buffer
    assert isinstance(data, io.BytesIO)
    return data.getvalue().decode(encoding).replace("\u00a0", " ")


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [60, 120])
def test_every_console_shows_the_figures(
    profile: Profile, is_terminal: bool, encoding: str, width: int
) -> None:
    text = render(profile, is_terminal=is_terminal, encoding=encoding, width=width)
    for figure in (
        "1.3 M/s",
        "1.2 M/s",
        "303 k/s",
        "65.5 %",
        "25 %",
        "3.18 kB",
        "258 MB/s",
        "88 %",
    ):
        assert figure in text
    for said in ("data workers", "12 would do", "the machine was busy", "32,768"):
        assert said in text
    assert "\x1b[2J" not in text


def test_small_costs_are_in_nanoseconds(profile: Profile) -> None:
    text = render(profile, is_terminal=False)
    assert "4.15 µs" in text
    assert "7.3 ns" in text


def test_nothing_to_change_is_said(profile: Profile) -> None:
    text = render(profile.model_copy(update={"advice": ()}), is_terminal=False)
    assert "nothing" in text


def test_the_page_shows_the_figures_and_no_markup_of_the_users(profile: Profile) -> None:
    page = build_page(profile).replace("\u00a0", " ")
    for figure in ("1.3 M/s", "303 k/s", "65.5 %", "3.18 kB", "12 would do", "NVIDIA H200"):
        assert figure in page
    assert "<img" not in page
    assert "&lt;img" in page
    assert re.search(r'aria-label="[^"]*\b112\b', page)
    assert "://" not in page.replace("http://www.w3.org/", "")


def test_what_is_written_is_what_is_printed(profile: Profile, tmp_path: Path) -> None:
    page = write_profile(tmp_path / "new", profile)
    assert page.read_text(encoding="utf-8") == build_page(profile)
    written = (tmp_path / "new" / "profile.json").read_text(encoding="utf-8")
    assert Profile.model_validate_json(written) == profile
    assert '"samplesPerSecond": 896000.0' in written
