"""Passes: one at a time per experiment, coalesced, retried, bounded."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset_operator.errors import KubeConflict, KubeUnavailable
from dataset_operator.scheduling.passes import Done, Passes, Trigger, retry_seconds


class Recorder:
    """A reconcile that records its calls, and waits while the test closes its gate."""

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


def test_a_thousand_events_are_coalesced_into_one_pass() -> None:
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


def test_an_event_precedes_the_timer() -> None:
    async def story() -> None:
        reconcile = Recorder(0.01, 3600.0, 3600.0)
        passes = Passes(reconcile)
        passes.wake("team", "clicks")
        await asyncio.sleep(0.1)
        assert passes.count == 2  # the second by its timer; the third is due in an hour
        passes.wake("team", "clicks")
        await idle()
        assert passes.count == 3
        await passes.close()

    run(story)


@pytest.mark.parametrize(
    ("error", "failures"), [(KubeConflict("changed"), 0), (KubeUnavailable("away"), 1)]
)
def test_a_failed_pass_is_retried(error: Exception, failures: int) -> None:
    async def story() -> None:
        passes = Passes(Recorder(error, None), draw=lambda: 0.0)
        passes.wake("team", "clicks")
        await asyncio.sleep(0.05 + (retry_seconds(1) if failures else 0))
        assert passes.count == 2

    run(story)


@pytest.mark.parametrize("error", [KubeUnavailable("away"), ValueError("a defect")])
def test_changes_do_not_shorten_the_pause_of_a_failing_pass(
    error: Exception,
) -> None:
    async def story() -> None:
        async def reconcile(namespace: str, name: str) -> None:
            passes.wake(namespace, name, Trigger.CHANGE)
            raise error

        passes = Passes(reconcile)
        passes.wake("team", "clicks")
        await asyncio.sleep(0.2)
        assert passes.count == 1
        passes.wake("team", "clicks", Trigger.EDIT)  # an edit may fix the cause
        await idle()
        assert passes.count == 2
        await asyncio.sleep(retry_seconds(1) + 0.2)
        assert passes.count == 3  # sooner than the second pause
        await passes.close()

    run(story)


def test_a_conflict_is_retried_with_the_same_urgency() -> None:
    async def story() -> None:
        reports = list[Done]()
        passes = Passes(Recorder(KubeConflict("changed"), None), report=reports.append)
        passes.wake("team", "clicks", Trigger.CHANGE)
        await idle()
        assert [done.trigger for done in reports] == [Trigger.CHANGE, Trigger.CHANGE]

    run(story)


def test_a_defect_is_logged_and_the_next_event_is_handled(caplog: pytest.LogCaptureFixture) -> None:
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


def test_experiments_run_concurrently_up_to_the_bound() -> None:
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


def test_edits_precede_timers_and_object_changes() -> None:
    async def story() -> None:
        reconcile, reports = Recorder(), list[Done]()
        reconcile.gate.clear()
        passes = Passes(reconcile, report=reports.append, max_concurrent=1)
        passes.wake("team", "runs")
        for index in range(3):
            passes.wake("team", f"clock{index}", Trigger.CLOCK)
        passes.wake("team", "change", Trigger.CHANGE)
        passes.wake("team", "edit", Trigger.EDIT)
        passes.wake("team", "clock1", Trigger.EDIT)  # it waits already, and now precedes others
        passes.wake("team", "clock1", Trigger.CLOCK)  # keeps its place
        await idle()
        reconcile.gate.set()
        await idle()
        assert reconcile.names == ["runs", "edit", "clock1", "change", "clock0", "clock2"]
        by = {done.trigger for done in reports[1:3]}
        assert by == {Trigger.EDIT}

    run(story)


def test_other_triggers_start_in_order_of_their_deadline() -> None:
    async def story() -> None:
        now = 0.0
        reconcile = Recorder()
        passes = Passes(reconcile, clock=lambda: now, max_concurrent=1)
        reconcile.gate.clear()
        passes.wake("team", "runs")
        passes.wake("team", "clock", Trigger.CLOCK)
        for now in (10.0, 29.0, 31.0, 90.0):
            passes.wake("team", f"change{now:.0f}", Trigger.CHANGE)
        await idle()
        reconcile.gate.set()
        await idle()
        changes = [f"change{seconds}" for seconds in (10, 29, 31, 90)]
        assert reconcile.names == ["runs", *changes[:2], "clock", *changes[2:]]

    run(story)


def test_a_pass_does_not_inherit_context_of_the_previous_pass() -> None:
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


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(Trigger), st.integers(0, 3))))
def test_every_trigger_is_followed_by_a_pass(
    wakes: list[tuple[str, Trigger, int]],
) -> None:
    async def story() -> None:
        reconcile = Recorder()
        passes = Passes(reconcile, max_concurrent=2)
        begun = {}
        for name, trigger, turns in wakes:
            begun[name] = reconcile.names.count(name)
            passes.wake("team", name, trigger)
            for _ in range(turns):
                await asyncio.sleep(0)
        await idle()
        assert all(reconcile.names.count(name) > before for name, before in begun.items())
        assert reconcile.most_running <= 2
        count = passes.count
        await idle()
        assert passes.count == count  # no pass triggers itself

    run(story)


def test_closing_cancels_running_and_scheduled_passes() -> None:
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


def test_retry_pauses_double_up_to_a_minute() -> None:
    assert [retry_seconds(n) for n in (1, 2, 3, 7, 100)] == [1, 2, 4, 60, 60]


class Timers(Passes):
    """Passes that record their timers instead of setting them."""

    pauses: list[float]

    def _call_later(
        self, entry: Any, seconds: float, call: Callable[..., None], *arguments: object
    ) -> None:
        self.pauses.append(seconds)


def find_pauses(draw: float, *failures: Exception) -> list[float]:
    """Return the pauses after passes that failed with these errors, one after another."""

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


def test_passes_that_failed_together_retry_at_different_times() -> None:
    away = [KubeUnavailable("away")] * 3
    assert find_pauses(0.0, *away) == [1.0, 2.0, 4.0]
    assert find_pauses(1.0, *away) == [1.5, 3.0, 6.0]


def test_a_retry_waits_as_long_as_the_server_asks() -> None:
    assert find_pauses(0.0, build_busy(30.0), build_busy(0.5)) == [30.0, 2.0]


def test_a_change_does_not_shorten_the_servers_pause() -> None:
    async def story() -> None:
        clock = 0.0
        passes = Timers(Recorder(build_busy(30.0)), clock=lambda: clock)
        passes.pauses = []
        passes.wake("team", "clicks", Trigger.CHANGE)
        await idle()
        passes.wake("team", "clicks", Trigger.CHANGE)
        await idle()
        assert (passes.count, passes.pauses[-1]) == (1, 30.0)
        passes.wake("team", "clicks", Trigger.EDIT)
        await idle()
        assert passes.count == 2

    run(story)
