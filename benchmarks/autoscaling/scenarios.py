"""The benchmark's scenarios, each at least two hours long with rows always ready.

At first a run requires `REQUIRED` busy workers, and has ⌈REQUIRED (1 + h)⌉. Changes are far apart,
except those of the ramp. They come at the same row for every policy: all train the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from dataset_operator.simulation.setting import Loss, Phase, Setting

START_SECONDS: Final = (5.0, 30.0, 120.0, 300.0)
NOISE_PERCENT: Final = (5, 20)
REQUIRED: Final = 8.0
STEP_SECONDS: Final = 0.5
BATCH_ROWS: Final = 4096.0
DEMAND: Final = BATCH_ROWS / STEP_SECONDS  # rows per second
MINUTE: Final = 60.0
_ROW_SECONDS: Final = REQUIRED / DEMAND
_FIRST: Final = 9  # ⌈8 · 1.075⌉
# Pods of both experiments together: enough for both at first, but not for 18 and 9 of them.
_QUOTA: Final = 22
_LONG: Final = 30.0 / STEP_SECONDS  # a step of two control periods


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A course of a run, without a provisioning delay and noise.

    Attributes:
        other: another experiment on the same quota, under a policy of the same kind.
        is_trap: True if more workers help nothing, so that one probe is the limit.
        is_stationary: True if nothing changes that a policy should follow.
    """

    name: str
    setting: Setting
    other: Setting | None = None
    is_trap: bool = False
    is_stationary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A scenario with a provisioning delay and a noise."""

    scenario: Scenario
    start_seconds: float
    noise_percent: int

    def settings(self) -> list[Setting]:
        """Return the settings that run concurrently: one, unless experiments share a quota."""
        return [
            replace(setting, start_seconds=self.start_seconds, noise=self.noise_percent / 100.0)
            for setting in (self.scenario.setting, self.scenario.other)
            if setting is not None
        ]


def cells_of(scenario: Scenario) -> list[Cell]:
    """Return a scenario with every delay and noise."""
    return [
        Cell(scenario=scenario, start_seconds=start, noise_percent=noise)
        for start in START_SECONDS
        for noise in NOISE_PERCENT
    ]


def _after(minutes: float) -> float:
    """Return the row at this time, if rows are always ready and steps take the usual time."""
    return minutes * MINUTE * DEMAND


def _phase(minutes: float = 0.0, *, step: float = 1.0, cost: float = 1.0, **waits: float) -> Phase:
    """Return a phase from a minute on, with the factors of a step's and of a row's usual cost.

    Args:
        waits: seconds per step that trainers wait for other stages, by stage.
    """
    return Phase(
        from_row=_after(minutes),
        step_seconds=STEP_SECONDS * step,
        row_seconds=_ROW_SECONDS * cost,
        waits=waits,
    )


def _run(*phases: Phase, minutes: float = 120.0, **changes: Any) -> Setting:
    """Return the setting of a run; a run without phases has the usual costs."""
    plain: dict[str, Any] = {
        "phases": phases or (_phase(),),
        "rows": _after(minutes),
        "first_workers": _FIRST,
    }
    return Setting(**(plain | changes))


def _twice(**changes: Any) -> Setting:
    """Return the setting of a run whose rows cost twice the work for a while."""
    return _run(_phase(), _phase(45, cost=2.0), _phase(90), minutes=135, **changes)


SCENARIOS: Final = (
    Scenario(name="steady", setting=_run(), is_stationary=True),
    # The model's step takes half as long, or twice as long, for a while.
    Scenario(
        name="consumer x2", setting=_run(_phase(), _phase(45, step=0.5), _phase(135), minutes=180)
    ),
    Scenario(
        name="consumer /2", setting=_run(_phase(), _phase(45, step=2.0), _phase(70), minutes=115)
    ),
    Scenario(name="row cost x2", setting=_twice()),
    # Rows become more expensive by a fifth every five minutes for an hour.
    Scenario(
        name="ramp",
        setting=_run(
            _phase(),
            *(_phase(30 + 5 * i, cost=1.0 + 0.2 * i) for i in range(1, 13)),
            minutes=150,
        ),
    ),
    # Epochs of 20 s with pauses of 10 s.
    Scenario(
        name="short epochs",
        setting=_run(epoch_steps=40, pause_seconds=10.0, minutes=90),
        is_stationary=True,
    ),
    # A run begins with the fewest workers, and requires 30 times that.
    Scenario(
        name="cold start",
        setting=_run(_phase(cost=30.0 / REQUIRED), first_workers=1, min_workers=1),
    ),
    # The model keeps its GPU 60 % busy by nature.
    Scenario(
        name="GPU-bound model",
        setting=_run(natural_utilization=0.6),
        is_trap=True,
        is_stationary=True,
    ),
    # Two fifths of each step go into collation.
    Scenario(
        name="collate-bound",
        setting=_run(_phase(step=0.6, collate=0.4 * STEP_SECONDS)),
        is_trap=True,
        is_stationary=True,
    ),
    # All readers together get three fifths of what the trainers would take, or a little less.
    Scenario(
        name="storage-bound",
        setting=_run(storage_rows_per_second=0.6 * DEMAND, read_share=0.6, first_workers=6),
        is_trap=True,
    ),
    Scenario(
        name="storage near demand",
        setting=_run(storage_rows_per_second=0.95 * DEMAND, read_share=0.6),
        is_trap=True,
    ),
    # One worker in eight is ten times slower, and the order is kept.
    Scenario(
        name="straggler in order",
        setting=_run(is_ordered=True, slow_share=0.125, slow_speed=0.1, first_workers=12),
        is_trap=True,
        is_stationary=True,
    ),
    # One rank is late at every step.
    Scenario(
        name="rank skew",
        setting=_run(_phase(step=0.6, rankSkew=0.4 * STEP_SECONDS)),
        is_trap=True,
        is_stationary=True,
    ),
    # No metrics for two minutes, twice.
    Scenario(
        name="metrics outage",
        setting=_run(outages=((40 * MINUTE, 42 * MINUTE), (80 * MINUTE, 82 * MINUTE))),
        is_stationary=True,
    ),
    # The GPU series is absent, or 0 on nodes whose NVML reports nothing.
    Scenario(name="GPU series absent", setting=_twice(gpu="absent")),
    Scenario(name="GPU series 0", setting=_twice(gpu="zero")),
    # Three workers in ten are taken away at once, twice.
    Scenario(
        name="reclaim of 30 %",
        setting=_run(losses=(Loss(at=40 * MINUTE, share=0.3), Loss(at=80 * MINUTE, share=0.3))),
        is_stationary=True,
    ),
    # Each worker is lost with 1 % a minute.
    Scenario(name="churn", setting=_run(crash_per_minute=0.01), is_stationary=True),
    # Steps of two control periods; the queue holds two batches of units.
    Scenario(
        name="long steps",
        setting=_run(
            _phase(step=_LONG),
            _phase(45, step=_LONG, cost=2.0),
            _phase(90, step=_LONG),
            minutes=135,
            batch_rows=_LONG * BATCH_ROWS,
            credit_units=256,
        ),
    ),
    # A worker is slow for its first 90 s.
    Scenario(name="slow warm-up", setting=_twice(warm_seconds=90.0, warm_speed=0.3)),
    # Two workers in five have half the speed.
    Scenario(name="two speeds", setting=_twice(slow_share=0.4, slow_speed=0.5, first_workers=12)),
    # The required workers double while another experiment, which later requires half, holds most of
    # the free quota.
    Scenario(
        name="two on one quota",
        setting=_run(_phase(), _phase(45, cost=2.0), _phase(140), minutes=185, schedulable=_QUOTA),
        other=_run(_phase(), _phase(92, cost=0.5), _phase(140), minutes=185, schedulable=_QUOTA),
    ),
    # The cost of a unit is Pareto with shape 1.6.
    Scenario(name="heavy tail", setting=_twice(tail=1.6)),
    # maxReplicas is below the required workers.
    Scenario(name="max reached", setting=_run(max_workers=6, first_workers=4), is_stationary=True),
    Scenario(
        name="operator restart",
        setting=_twice(restarts=tuple(20.0 * MINUTE * i for i in range(1, 10))),
    ),
    # No node has room for more than six workers.
    Scenario(name="never scheduled", setting=_run(schedulable=6, first_workers=4)),
)
