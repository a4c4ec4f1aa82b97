"""The driver watches trainers to their end, and ends them when it is told to."""

from dataclasses import dataclass, field

import pytest

from pipeline_runtime.monitor import MonitorState
from pipeline_runtime.run.stop_signals import StopRequest
from pipeline_runtime.run.training import driver
from pipeline_runtime.run.training.driver import execute


@dataclass
class FakeTrainers:
    """Trainers that end after some looks, or once they are asked to stop.

    Attributes:
        looks: after so many looks they end by themselves.
        obeys: they end at the look after `stop`.
        ends: whether `abort` ends them.
        failure: what they report, as kind and message.
        explanation: what ended them without a report.
    """

    looks: int = 3
    obeys: bool = True
    ends: bool = True
    failure: tuple[str, str] | None = None
    explanation: str | None = None
    calls: list[str] = field(default_factory=list)
    is_stopping: bool = False
    is_closed: bool = False

    def wait(self, seconds: float) -> bool:
        self.looks -= 1
        return self.looks <= 0 or (self.is_stopping and self.obeys)

    def read(self) -> MonitorState:
        kind, message = self.failure or (None, None)
        return MonitorState(failure=message, failure_kind=kind)

    def stop(self) -> None:
        self.calls.append("stop")
        self.is_stopping = True

    def abort(self) -> bool:
        self.calls.append("abort")
        return self.ends

    def explain(self) -> str | None:
        return self.explanation

    def close(self) -> None:
        self.is_closed = True


INTERRUPTED = ("Interrupted", "stopped as requested")


@pytest.mark.parametrize(
    ("trainers", "signals", "calls", "kind", "is_running"),
    [
        pytest.param(FakeTrainers(), 0, [], "Complete", False, id="to the end"),
        pytest.param(
            FakeTrainers(failure=("StepError", "no")), 0, [], "Failed", False, id="a failure"
        ),
        pytest.param(
            FakeTrainers(explanation="it died"), 0, [], "Failed", False, id="a death without report"
        ),
        pytest.param(
            FakeTrainers(looks=99, failure=INTERRUPTED),
            1,
            ["stop"],
            "Interrupted",
            False,
            id="Ctrl-C once",
        ),
        pytest.param(
            FakeTrainers(looks=99, obeys=False),
            2,
            ["stop", "abort"],
            "Interrupted",
            False,
            id="Ctrl-C twice",
        ),
        pytest.param(
            FakeTrainers(looks=99, obeys=False, ends=False),
            2,
            ["stop", "abort"],
            "Interrupted",
            True,
            id="Ctrl-C twice, in a call that does not end",
        ),
    ],
)
def test_trainers_are_watched_to_their_end(
    trainers: FakeTrainers, signals: int, calls: list[str], kind: str, is_running: bool
) -> None:
    seen: list[MonitorState] = []
    outcome = execute(lambda: trainers, StopRequest(count=signals), seen.append)
    assert trainers.calls == calls
    assert (outcome.kind, outcome.is_running) == (kind, is_running)
    assert seen[-1] is outcome.state


def test_trainers_that_do_not_stop_in_time_are_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "STOP_SECONDS", -1.0)
    trainers = FakeTrainers(looks=99, obeys=False)
    outcome = execute(lambda: trainers, StopRequest(count=1), lambda state: None)
    assert trainers.calls == ["stop", "abort"]
    assert outcome.kind == "Interrupted"


def test_trainers_are_aborted_if_watching_them_fails() -> None:
    def watch(state: MonitorState) -> None:
        raise BrokenPipeError

    trainers = FakeTrainers(looks=99)
    with pytest.raises(BrokenPipeError):
        execute(lambda: trainers, StopRequest(), watch)
    assert trainers.calls == ["abort"]
