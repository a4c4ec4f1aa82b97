"""Steps are enough by their number, or by the trainers' clock where they are long."""

import pytest

from dataset_operator.autoscaling.signals import (
    Interval,
    Pods,
    Sample,
    StepTotals,
    TrainerCounters,
    WorkerCounters,
    measure_between,
)
from dataset_operator.autoscaling.steps import sum_steps


def build_interval(steps: float, seconds: float, *, has_clock: bool = True) -> Interval:
    """Return an interval of finished steps, and of one more that has just begun."""
    samples = []
    for share in (0.0, 1.0):
        rows, running = 100.0 * (steps + 1.0) * share, share
        clock = StepTotals(steps=steps * share, rows=100.0 * steps * share, seconds=seconds * share)
        trainer = TrainerCounters(
            rows=rows,
            steps=steps * share + running,
            loop_seconds=seconds * share,
            production_seconds=0.0,
            clock=clock if has_clock else None,
        )
        workers = WorkerCounters(
            rows=rows, read_seconds=0, compute_seconds=share, blocked_seconds=0, idle_seconds=0
        )
        pods = Pods(ready=1)
        samples.append(
            Sample(at=share, attempt=1, desired=1, pods=pods, trainer=trainer, workers=workers)
        )
    interval = measure_between(*samples)
    assert interval is not None
    return interval


@pytest.mark.parametrize(
    ("steps", "seconds", "has_clock", "enough"),
    [
        # share, block, estimate
        pytest.param(1, 29.0, True, (False, False, False), id="one step, almost half a minute"),
        pytest.param(1, 30.0, True, (True, False, False), id="a share takes half a minute"),
        pytest.param(2, 60.0, True, (True, True, False), id="a block takes two steps"),
        pytest.param(4, 60.0, True, (True, True, True), id="an estimate takes four steps"),
        pytest.param(3, 60.0, False, (True, False, False), id="the loop needs five for a block"),
        pytest.param(18, 600.0, False, (True, True, False), id="the loop needs twenty in all"),
        pytest.param(18, 54.0, True, (True, True, False), id="steps of 3 s are short"),
        pytest.param(19, 57.0, True, (True, True, True), id="twenty short steps"),
    ],
)
def test_long_steps_need_fewer(
    steps: float, seconds: float, has_clock: bool, enough: tuple[bool, bool, bool]
) -> None:
    found = sum_steps([build_interval(steps, seconds, has_clock=has_clock)])
    assert (found.make_share(), found.make_block(), found.make_estimate()) == enough


def test_a_step_that_has_begun_does_not_count() -> None:
    long, short = build_interval(4, 120.0), build_interval(4, 120.0, has_clock=False)
    assert sum_steps([long]).measured == (400.0, 120.0)
    assert sum_steps([short]).measured == (500.0, 120.0)
    assert sum_steps([long, short]).measured == (1000.0, 240.0)  # the clock was not always known
