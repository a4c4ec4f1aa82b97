"""The operator's clock is set back by hours: nothing is waited for longer than ever."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from world import World, running

from dataset_operator.status import forget_future

HOURS = timedelta(hours=5)
SUSPENDED = ("True", "SuspendedBySpec")


def fail(world: World) -> None:
    world.end_job("FAILED", exit_code=1)


def suspend(world: World) -> None:
    world.reachable = False  # so that nobody knows whether the driver has stopped
    world.edit(suspend=True)


# What is begun by a clock that is hours ahead, and what has come of it minutes after it is right.
WAITS: dict[str, tuple[Callable[[World], None], Callable[[World], bool]]] = {
    "the next attempt": (fail, lambda world: world.status["attempt"] == 2),
    "a suspension": (suspend, lambda world: world.condition("Suspended") == SUSPENDED),
}


@pytest.mark.parametrize(("begin", "is_done"), WAITS.values(), ids=WAITS)
def test_what_a_clock_that_was_ahead_began_does_not_wait_for_it(
    begin: Callable[[World], None], is_done: Callable[[World], bool]
) -> None:
    world = running()
    world.now += HOURS
    begin(world)
    world.step()
    world.now -= HOURS
    for _ in range(20):
        world.step(10)
    assert is_done(world)


def test_a_clock_that_is_right_changes_nothing() -> None:
    world = running()
    before = world.status
    assert forget_future(before, world.now) == before
    assert forget_future(before, world.now - timedelta(seconds=4)) == before


def test_only_times_are_taken_back() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    status = {"message": "9999-99-99", "time": "2026-01-01T05:00:00Z", "metrics": {"a": "zzz"}}
    kept = forget_future(status, now)
    assert kept == status | {"time": "2026-01-01T00:00:00Z"}
