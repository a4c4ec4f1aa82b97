"""Passes: one at a time per experiment, coalesced, tried again, bounded."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dataset_operator.errors import KubeConflict, KubeUnavailable
from dataset_operator.passes import Passes, retry_seconds


class Recorder:
    """A reconcile that writes down when it ran, and waits for the test if it should."""

    def __init__(self, *answers: float | Exception | None) -> None:
        self.answers = list(answers)
        self.running: dict[tuple[str, str], int] = {}
        self.most_running = 0
        self.names: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, namespace: str, name: str) -> float | None:
        key = (namespace, name)
        assert self.running.get(key, 0) == 0, "two passes of one experiment overlap"
        self.running[key] = 1
        self.most_running = max(self.most_running, sum(self.running.values()))
        self.names.append(name)
        try:
            await self.gate.wait()
        finally:
            self.running[key] = 0
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


async def idle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def test_a_thousand_events_at_once_cost_one_pass_and_during_a_pass_one_more() -> None:
    async def story() -> None:
        reconcile = Recorder()
        passes = Passes(reconcile)
        for _ in range(1000):
            passes.wake("team", "clicks")
        await idle()
        assert passes.count == 1
        reconcile.gate.clear()
        passes.wake("team", "clicks")
        await idle()
        for _ in range(1000):
            passes.wake("team", "clicks")
        reconcile.gate.set()
        await idle()
        assert passes.count == 3

    run(story)


def test_the_clock_wakes_and_an_event_comes_first() -> None:
    async def story() -> None:
        reconcile = Recorder(0.01, 3600.0, 3600.0)
        passes = Passes(reconcile)
        passes.wake("team", "clicks")
        await asyncio.sleep(0.1)
        assert passes.count == 2  # the second by the clock, the third is due in an hour
        passes.wake("team", "clicks")
        await idle()
        assert passes.count == 3
        await passes.close()

    run(story)


@pytest.mark.parametrize(
    ("error", "failures"), [(KubeConflict("changed"), 0), (KubeUnavailable("away"), 1)]
)
def test_a_pass_that_failed_is_tried_again(error: Exception, failures: int) -> None:
    async def story() -> None:
        passes = Passes(Recorder(error, None))
        passes.wake("team", "clicks")
        await asyncio.sleep(0.05 + (retry_seconds(1) if failures else 0))
        assert passes.count == 2

    run(story)


def test_a_defect_is_told_and_the_next_event_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        reconcile = Recorder(ValueError("a defect"))
        passes = Passes(reconcile)
        passes.wake("team", "broken")
        await idle()
        passes.wake("team", "broken")
        await idle()
        assert reconcile.names == ["broken", "broken"]
        assert "a pass ended by a defect" in caplog.text

    run(story)


def test_experiments_do_not_wait_for_each_other_up_to_the_bound() -> None:
    async def story() -> None:
        reconcile = Recorder()
        reconcile.gate.clear()
        passes = Passes(reconcile, max_concurrent=3)
        for index in range(10):
            passes.wake("team", f"e{index}")
        await idle()
        assert reconcile.most_running == 3
        reconcile.gate.set()
        await idle()
        assert sorted(reconcile.names) == sorted(f"e{index}" for index in range(10))
        assert reconcile.most_running == 3

    run(story)


def test_closing_ends_what_runs_and_what_is_due() -> None:
    async def story() -> None:
        reconcile = Recorder(0.01)
        passes = Passes(reconcile, close_seconds=0.01)
        passes.wake("team", "soon")
        await idle()
        reconcile.gate.clear()
        passes.wake("team", "now")
        await idle()
        await passes.close()
        await asyncio.sleep(0.05)
        assert passes.count == 2

    run(story)


def test_pauses_double_up_to_a_minute() -> None:
    assert [retry_seconds(n) for n in (1, 2, 3, 7, 100)] == [1, 2, 4, 60, 60]
