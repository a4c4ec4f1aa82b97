"""Passes: one at a time per experiment, coalesced, tried again, bounded."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset_operator.errors import KubeConflict, KubeUnavailable
from dataset_operator.passes import Done, Passes, Waker, retry_seconds


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
        passes = Passes(Recorder(error, None), draw=lambda: 0.0)
        passes.wake("team", "clicks")
        await asyncio.sleep(0.05 + (retry_seconds(1) if failures else 0))
        assert passes.count == 2

    run(story)


@pytest.mark.parametrize("error", [KubeUnavailable("away"), ValueError("a defect")])
def test_objects_that_change_without_end_do_not_make_a_failing_pass_a_storm(
    error: Exception,
) -> None:
    async def story() -> None:
        async def reconcile(namespace: str, name: str) -> None:
            passes.wake(namespace, name, Waker.CHANGE)
            raise error

        passes = Passes(reconcile)
        passes.wake("team", "clicks")
        await asyncio.sleep(0.2)
        assert passes.count == 1
        passes.wake("team", "clicks", Waker.EDIT)  # what failed may be mended by it
        await idle()
        assert passes.count == 2
        await asyncio.sleep(retry_seconds(1) + 0.2)
        assert passes.count == 3  # sooner than the second pause
        await passes.close()

    run(story)


def test_a_conflict_is_tried_again_as_urgently_as_before() -> None:
    async def story() -> None:
        reports = list[Done]()
        passes = Passes(Recorder(KubeConflict("changed"), None), report=reports.append)
        passes.wake("team", "clicks", Waker.CHANGE)
        await idle()
        assert [done.waker for done in reports] == [Waker.CHANGE, Waker.CHANGE]

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
        told = [record for record in caplog.records if record.levelname == "ERROR"]
        assert told
        assert all(record.exc_info for record in told)

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


def test_an_edit_goes_before_what_a_clock_and_an_object_woke() -> None:
    async def story() -> None:
        reconcile, reports = Recorder(), list[Done]()
        reconcile.gate.clear()
        passes = Passes(reconcile, report=reports.append, max_concurrent=1)
        passes.wake("team", "runs")
        for index in range(3):
            passes.wake("team", f"clock{index}", Waker.CLOCK)
        passes.wake("team", "change", Waker.CHANGE)
        passes.wake("team", "edit", Waker.EDIT)
        passes.wake("team", "clock1", Waker.EDIT)  # waits already, now for less
        passes.wake("team", "clock1", Waker.CLOCK)  # ... and stays where it is
        await idle()
        reconcile.gate.set()
        await idle()
        assert reconcile.names == ["runs", "edit", "clock1", "change", "clock0", "clock2"]
        by = {done.waker for done in reports[1:3]}
        assert by == {Waker.EDIT}

    run(story)


def test_triggers_other_than_edits_begin_by_deadline() -> None:
    async def story() -> None:
        now = 0.0
        reconcile = Recorder()
        passes = Passes(reconcile, clock=lambda: now, max_concurrent=1)
        reconcile.gate.clear()
        passes.wake("team", "runs")
        passes.wake("team", "clock", Waker.CLOCK)
        for now in (10.0, 29.0, 31.0, 90.0):
            passes.wake("team", f"change{now:.0f}", Waker.CHANGE)
        await idle()
        reconcile.gate.set()
        await idle()
        changes = [f"change{seconds}" for seconds in (10, 29, 31, 90)]
        assert reconcile.names == ["runs", *changes[:2], "clock", *changes[2:]]

    run(story)


def test_a_pass_knows_nothing_of_the_one_whose_end_began_it() -> None:
    async def story() -> None:
        about: contextvars.ContextVar[str] = contextvars.ContextVar("about", default="nobody")
        heard: list[str] = []

        async def reconcile(namespace: str, name: str) -> None:
            heard.append(about.get())
            about.set(name)

        passes = Passes(reconcile, max_concurrent=1)
        for name in ("first", "second"):
            passes.wake("team", name)
        await idle()
        assert heard == ["nobody", "nobody"]

    run(story)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(Waker), st.integers(0, 3))))
def test_whatever_wakes_whom_each_gets_a_pass_after_it(
    wakes: list[tuple[str, Waker, int]],
) -> None:
    async def story() -> None:
        reconcile = Recorder()
        passes = Passes(reconcile, max_concurrent=2)
        begun = {}
        for name, waker, turns in wakes:
            begun[name] = reconcile.names.count(name)
            passes.wake("team", name, waker)
            for _ in range(turns):
                await asyncio.sleep(0)
        await idle()
        assert all(reconcile.names.count(name) > before for name, before in begun.items())
        assert reconcile.most_running <= 2
        count = passes.count
        await idle()
        assert passes.count == count  # nothing goes round by itself

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


class Timers(Passes):
    """Passes that write down their timers in the place of setting them."""

    pauses: list[float]

    def _call_later(
        self, entry: Any, seconds: float, call: Callable[..., None], *arguments: object
    ) -> None:
        self.pauses.append(seconds)


def find_pauses(draw: float, *failures: Exception) -> list[float]:
    """The pauses after passes that failed so, one after another."""

    async def story() -> list[float]:
        passes = Timers(Recorder(*failures), draw=lambda: draw)
        passes.pauses = []
        for _ in failures:
            passes.wake("team", "clicks")
            await idle()
        return passes.pauses

    return asyncio.run(story())


def build_busy(seconds: float) -> KubeUnavailable:
    busy = KubeUnavailable("too many requests")
    busy.retry_after_seconds = seconds
    return busy


def test_passes_that_failed_together_are_tried_apart() -> None:
    away = [KubeUnavailable("away")] * 3
    assert find_pauses(0.0, *away) == [1.0, 2.0, 4.0]
    assert find_pauses(1.0, *away) == [1.5, 3.0, 6.0]


def test_a_pass_is_not_tried_again_before_the_server_asks() -> None:
    assert find_pauses(0.0, build_busy(30.0), build_busy(0.5)) == [30.0, 2.0]


def test_a_change_does_not_shorten_the_wait_that_a_server_asks_for() -> None:
    async def story() -> None:
        clock = 0.0
        passes = Timers(Recorder(build_busy(30.0)), clock=lambda: clock)
        passes.pauses = []
        passes.wake("team", "clicks", Waker.CHANGE)
        await idle()
        passes.wake("team", "clicks", Waker.CHANGE)
        await idle()
        assert (passes.count, passes.pauses[-1]) == (1, 30.0)
        passes.wake("team", "clicks", Waker.EDIT)
        await idle()
        assert passes.count == 2

    run(story)
