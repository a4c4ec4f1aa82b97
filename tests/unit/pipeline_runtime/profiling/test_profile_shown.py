"""A profile on a terminal, in a pipe, as a page and as JSON."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from pipeline_runtime.profiling.document import (
    Advice,
    Binding,
    Column,
    Hop,
    Measured,
    Need,
    Profile,
    Reading,
    Sample,
    StepCost,
    Trainer,
)
from pipeline_runtime.profiling.page import build_page, write_profile
from pipeline_runtime.profiling.terminal import print_profile
from pipeline_runtime.report.summary import ExperimentName
from pipeline_runtime.report.testing import build_sample_summary

EVIL = "<img src=x onerror=alert(1)>\x1b[2J"


def measured(median: float) -> Measured:
    return Measured(median=median, low=0.9 * median, high=1.2 * median, times=5)


def step(kind: str, label: str, share: float, rows_out: int, microseconds: float) -> StepCost:
    return StepCost(
        kind=kind,
        path="",
        label=label,
        rows_in=1000,
        rows_out=rows_out,
        microseconds_per_row=measured(microseconds),
        share=share,
        bytes_per_row=1490,
    )


@pytest.fixture
def profile() -> Profile:
    """Twelve data workers would do where there may be eight."""
    made_with = build_sample_summary()
    return Profile(
        experiment=ExperimentName(name="ranking"),
        measured_at=made_with.run.started_at,
        seconds=11.6,
        versions=made_with.versions,
        machine=made_with.machine,
        sample=Sample(
            row_groups=2,
            row_groups_left=56,
            rows=32_768,
            rows_left=875_000,
            samples=15_390,
            times=9,
        ),
        trainer=Trainer(
            device="NVIDIA H200",
            entrypoint="team:loop",
            batch_rows=4096,
            batch_bytes_per_sample=762,
            batches=64,
            roofline=measured(1_300_000),
            intake=measured(1_200_000),
            step_seconds=0.00315,
            fixed_seconds=0.0011,
            model_ratio=0.88,
            batching_ratio=0.02,
            collate_ratio=0.06,
            transfer_ratio=0.04,
        ),
        reading=Reading(
            columns=46,
            rows_per_second=measured(303_000),
            waiting_ratio=0.02,
            stored_bytes_per_row=101,
            decoded_bytes_per_row=1490,
        ),
        steps=(
            step("read", "impressions/", 0.655, 1000, 4.15),
            step("filter", EVIL, 0.18, 250, 0.0073),
            step("handOver", "pieces packed to be sent", 0.165, 250, 1.43),
        ),
        columns=(Column(name="user_sequence", bytes_ratio=0.62, is_trained_on=None),),
        hops=(
            Hop(name="storage", bytes_per_sample=215, bytes_per_second=2.58e8),
            Hop(name="decoded", bytes_per_sample=3180, bytes_per_second=3.816e9),
        ),
        need=Need(
            ranks=1,
            demand=1_200_000,
            reader=measured(28_000),
            readers_per_worker=4,
            headroom=0.1,
            workers=12,
            workers_low=9,
            workers_high=15,
            min_workers=1,
            max_workers=8,
            waiting_at_min=0.9067,
            waiting_at_max=0.2533,
        ),
        binding=Binding(
            what="dataWorkers", samples_per_second=896_000, reason="8 data workers make 896 k"
        ),
        advice=(Advice(field="spec.dataWorkers.maxReplicas", text=f"12 would do; {EVIL}"),),
        warnings=("the machine was busy",),
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
    for said in ("the data workers bind", "12 would do", "the machine was busy", "32,768 rows of"):
        assert said in text
    assert "\x1b[2J" not in text


def test_small_costs_are_in_nanoseconds(profile: Profile) -> None:
    text = render(profile, is_terminal=False)
    assert "4.15 µs" in text
    assert "7.3 ns" in text


def test_nothing_to_change_is_said(profile: Profile) -> None:
    text = render(profile.model_copy(update={"advice": ()}), is_terminal=False)
    assert "What to change: nothing that these figures would pay for." in text


def test_the_page_shows_the_figures_and_no_markup_of_the_users(profile: Profile) -> None:
    page = build_page(profile).replace("\u00a0", " ")
    for figure in ("1.3 M/s", "303 k/s", "65.5 %", "3.18 kB", "12 would do", "NVIDIA H200"):
        assert figure in page
    assert "<img" not in page
    assert "&lt;img" in page
    assert 'aria-label="Samples a second by data workers: each makes 112' in page
    assert "://" not in page.replace("http://www.w3.org/", "")


def test_what_is_written_is_what_is_printed(profile: Profile, tmp_path: Path) -> None:
    page = write_profile(tmp_path / "new", profile)
    assert page.read_text(encoding="utf-8") == build_page(profile)
    written = (tmp_path / "new" / "profile.json").read_text(encoding="utf-8")
    assert Profile.model_validate_json(written) == profile
    assert '"samplesPerSecond": 896000.0' in written


def test_the_docs_name_every_part_of_the_document() -> None:
    text = (Path(__file__).parents[4] / "docs" / "profile.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    plain = {"version", "experiment", "measuredAt", "seconds", "versions", "machine"}
    assert rows == {field.alias for field in Profile.model_fields.values()} - plain
