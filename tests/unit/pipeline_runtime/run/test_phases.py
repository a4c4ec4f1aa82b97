"""The phases of a run add up to the time since its command started."""

import io
import time

import pytest
from rich.console import Console

from pipeline_runtime.cli.progress import RunProgress
from pipeline_runtime.run import phases
from pipeline_runtime.run.phases import Phases


def test_phases_add_up_to_the_time_since_the_start() -> None:
    began = time.time() - 10.0
    clock = Phases(began=began)
    clock.begin(phases.PLAN)
    clock.begin(phases.TORCH)
    clock.end()
    assert list(clock.seconds) == [phases.IMPORTS, phases.PLAN, phases.TORCH]
    assert clock.seconds[phases.IMPORTS] >= 10.0
    assert sum(clock.seconds.values()) == pytest.approx(time.time() - began, abs=1.0)


def test_a_change_that_another_process_noticed_counts_from_then() -> None:
    clock = Phases(began=time.time() - 10.0)
    clock.begin(phases.FIRST_BATCH, at=clock.began + 2.0)
    clock.begin(phases.TRAINING, at=clock.began + 5.0)
    assert clock.seconds == pytest.approx({phases.IMPORTS: 2.0, phases.FIRST_BATCH: 3.0})
    clock.begin(phases.REPORT, at=clock.began - 5.0)  # its clock is behind
    assert clock.seconds[phases.TRAINING] == 0.0


def test_only_the_first_command_counts_from_the_process_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(phases, "_has_started", False)
    before = time.time()
    assert phases.find_start() < before
    assert phases.find_start() >= before


def test_the_terminal_shows_what_is_loading() -> None:
    clock = Phases()
    console = Console(file=io.StringIO(), force_terminal=True)
    with RunProgress(console=console, phases=clock) as progress:
        clock.begin(phases.TORCH)
        assert "torch" in progress.__rich__().plain
        clock.begin(phases.FIRST_BATCH)
        assert "torch" not in progress.__rich__().plain
