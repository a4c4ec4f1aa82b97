"""The benchmark's scenarios, each at least two hours long with rows always ready.

At first a run requires `REQUIRED` busy workers, and has ⌈REQUIRED (1 + h)⌉. Changes are far apart,
except those of the ramp. They come at the same row for every policy: all train the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from dataset_operator.simulation.setting import Loss, Phase, Setting

START_SECONDS: Final = (5.0, 30.0, 120.0, 300.0)
NOISE_PERCENT: Final = (5, 20)
REQUIRED: Final = 8.0
STEP_SECONDS: Final = 0.5
BATCH_ROWS: Final = 4096.0
DEMAND: Final = BATCH_ROWS / STEP_SECONDS  # rows per second
MINUTE: Final = 60.0
HOURS_2: Final = 120.0 * MINUTE
_ROW_SECONDS: Final = REQUIRED / DEMAND
_FIRST: Final = 9  # ⌈8 · 1.075⌉
# Pods of both experiments together: enough for both at first, but not for 18 and 9 of them.
_QUOTA: Final = 22


CellKey = tuple[str, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Attributes:

    name: name in the results.
    build: builds the setting, without delay and noise.
    build_other: builds another experiment on the same quota, under a policy of the same kind.
    is_trap: True if more workers help nothing, so that one probe is the limit.
    is_stationary: True if nothing changes that a policy should follow.
    """

    name: str
    build: Callable[[], Setting]
    build_other: Callable[[], Setting] | None = None
    is_trap: bool = False
    is_stationary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A scenario with a provisioning delay and a noise."""

    scenario: Scenario
    start_seconds: float
    noise_percent: int

    @property
    def key(self) -> CellKey:
        """The cell by names, as in the results."""
        return self.scenario.name, self.start_seconds, self.noise_percent

    def settings(self) -> list[Setting]:
        """Settings that run concurrently: one, except where experiments share a quota."""
        builders = [self.scenario.build, self.scenario.build_other]
        return [
            replace(build(), start_seconds=self.start_seconds, noise=self.noise_percent / 100.0)
            for build in builders
            if build is not None
        ]


def _after(minutes: float) -> float:
    """Return the row at this time, if rows are always ready and steps take the usual time."""
    return minutes * MINUTE * DEMAND


def _plain(**changes: object) -> Setting:
    first = Setting(
        rows=HOURS_2 * DEMAND,
        phases=(Phase(step_seconds=STEP_SECONDS, row_seconds=_ROW_SECONDS),),
        first_workers=_FIRST,
    )
    return replace(first, **changes)  # type: ignore[arg-type]


def _phase(
    minutes: float = 0.0,
    *,
    step: float = 1.0,
    cost: float = 1.0,
    waits: dict[str, float] | None = None,
) -> Phase:
    return Phase(
        from_row=_after(minutes),
        step_seconds=STEP_SECONDS * step,
        row_seconds=_ROW_SECONDS * cost,
        waits=waits or {},
    )


def consumer_twice() -> Setting:
    """The model's step takes half as long for a while."""
    phases = (_phase(), _phase(45, step=0.5), _phase(45 + 90))
    return _plain(phases=phases, rows=_after(45 + 90 + 45))


def consumer_half() -> Setting:
    """The model's step takes twice as long for a while."""
    phases = (_phase(), _phase(45, step=2.0), _phase(45 + 25))
    return _plain(phases=phases, rows=_after(45 + 25 + 45))


def costly_rows() -> Setting:
    """A row costs twice the work for a while."""
    phases = (_phase(), _phase(45, cost=2.0), _phase(45 + 45))
    return _plain(phases=phases, rows=_after(45 + 45 + 45))


def ramp() -> Setting:
    """Rows become more expensive by a fifth every five minutes for an hour."""
    phases = [_phase(), *(_phase(30 + 5 * i, cost=1.0 + 0.2 * i) for i in range(1, 13))]
    return _plain(phases=tuple(phases), rows=_after(150))


def short_epochs() -> Setting:
    """Epochs of 20 s with pauses of 10 s."""
    return _plain(epoch_steps=40, pause_seconds=10.0, rows=_after(90))


def cold_start() -> Setting:
    """A run begins with the fewest workers, and requires 30 times that."""
    return _plain(
        phases=(_phase(cost=30.0 / REQUIRED),),
        first_workers=1,
        min_workers=1,
        rows=HOURS_2 * DEMAND,
    )


def gpu_bound() -> Setting:
    """The model keeps its GPU 60 % busy by nature."""
    return _plain(natural_utilization=0.6)


def collate_bound() -> Setting:
    """Two fifths of each step go into collation."""
    return _plain(phases=(_phase(step=0.6, waits={"collate": 0.4 * STEP_SECONDS}),))


def storage_bound() -> Setting:
    """All readers together get three fifths of what the trainers would take."""
    return _plain(storage_rows_per_second=0.6 * DEMAND, read_share=0.6, first_workers=6)


def storage_near_demand() -> Setting:
    """All readers together get a little less than what the trainers would take."""
    return _plain(storage_rows_per_second=0.95 * DEMAND, read_share=0.6)


def straggler_in_order() -> Setting:
    """One worker in eight is ten times slower, and the order is kept."""
    return _plain(is_ordered=True, slow_share=0.125, slow_speed=0.1, first_workers=12)


def rank_skew() -> Setting:
    """One rank is late at every step."""
    return _plain(phases=(_phase(step=0.6, waits={"rankSkew": 0.4 * STEP_SECONDS}),))


def outage() -> Setting:
    """No metrics for two minutes, twice."""
    times = ((40 * MINUTE, 42 * MINUTE), (80 * MINUTE, 82 * MINUTE))
    return _plain(outages=times)


def gpu_absent() -> Setting:
    """The GPU series is absent, and the required workers double."""
    return replace(costly_rows(), gpu="absent")


def gpu_zero() -> Setting:
    """The GPU series is 0 on nodes whose NVML reports nothing, and the required workers double."""
    return replace(costly_rows(), gpu="zero")


def reclaim() -> Setting:
    """Three workers in ten are taken away at once, twice."""
    return _plain(losses=(Loss(at=40 * MINUTE, share=0.3), Loss(at=80 * MINUTE, share=0.3)))


def churn() -> Setting:
    """Each worker is lost with 1 % a minute."""
    return _plain(crash_per_minute=0.01)


def long_steps() -> Setting:
    """Steps take 30 s, two control periods, and the required workers double for a while."""
    slow = 30.0 / STEP_SECONDS
    phases = (_phase(step=slow), _phase(45, step=slow, cost=2.0), _phase(45 + 45, step=slow))
    large = {"batch_rows": slow * BATCH_ROWS, "credit_units": 256}  # two batches of units
    return _plain(phases=phases, rows=_after(45 + 45 + 45), **large)


def slow_warm_up() -> Setting:
    """A worker is slow for its first 90 s, and the required workers double later."""
    return replace(costly_rows(), warm_seconds=90.0, warm_speed=0.3)


def two_speeds() -> Setting:
    """Two workers in five have half the speed, and the required workers double later."""
    return replace(costly_rows(), slow_share=0.4, slow_speed=0.5, first_workers=12)


def heavy_tail() -> Setting:
    """The cost of a unit is Pareto with shape 1.6, and doubles for a while."""
    return replace(costly_rows(), tail=1.6)


def max_reached() -> Setting:
    """maxReplicas is below the required workers."""
    return _plain(max_workers=6, first_workers=4)


def operator_restart() -> Setting:
    """The operator restarts every 20 minutes, and the required workers double for a while."""
    return replace(costly_rows(), restarts=tuple(20.0 * MINUTE * i for i in range(1, 10)))


def never_scheduled() -> Setting:
    """No node has room for more than six workers."""
    return _plain(schedulable=6, first_workers=4)


def shared_quota() -> Setting:
    """The required workers double while another experiment holds most of the free quota."""
    phases = (_phase(), _phase(45, cost=2.0), _phase(45 + 95))
    return _plain(phases=phases, rows=_after(45 + 95 + 45), schedulable=_QUOTA)


def other_on_quota() -> Setting:
    """The other experiment on the quota, whose required workers halve for a while."""
    phases = (_phase(), _phase(92, cost=0.5), _phase(140))
    return _plain(phases=phases, rows=_after(45 + 95 + 45), schedulable=_QUOTA)


def steady() -> Setting:
    """Nothing happens."""
    return _plain()


SCENARIOS: Final = (
    Scenario(name="steady", build=steady, is_stationary=True),
    Scenario(name="consumer x2", build=consumer_twice),
    Scenario(name="consumer /2", build=consumer_half),
    Scenario(name="row cost x2", build=costly_rows),
    Scenario(name="ramp", build=ramp),
    Scenario(name="short epochs", build=short_epochs, is_stationary=True),
    Scenario(name="cold start", build=cold_start),
    Scenario(name="GPU-bound model", build=gpu_bound, is_trap=True, is_stationary=True),
    Scenario(name="collate-bound", build=collate_bound, is_trap=True, is_stationary=True),
    Scenario(name="storage-bound", build=storage_bound, is_trap=True),
    Scenario(name="storage near demand", build=storage_near_demand, is_trap=True),
    Scenario(name="straggler in order", build=straggler_in_order, is_trap=True, is_stationary=True),
    Scenario(name="rank skew", build=rank_skew, is_trap=True, is_stationary=True),
    Scenario(name="metrics outage", build=outage, is_stationary=True),
    Scenario(name="GPU series absent", build=gpu_absent),
    Scenario(name="GPU series 0", build=gpu_zero),
    Scenario(name="reclaim of 30 %", build=reclaim, is_stationary=True),
    Scenario(name="churn", build=churn, is_stationary=True),
    Scenario(name="long steps", build=long_steps),
    Scenario(name="slow warm-up", build=slow_warm_up),
    Scenario(name="two speeds", build=two_speeds),
    Scenario(name="two on one quota", build=shared_quota, build_other=other_on_quota),
    Scenario(name="heavy tail", build=heavy_tail),
    Scenario(name="max reached", build=max_reached, is_stationary=True),
    Scenario(name="operator restart", build=operator_restart),
    Scenario(name="never scheduled", build=never_scheduled),
)


def cells() -> list[Cell]:
    """Every scenario with every delay and noise."""
    return [
        Cell(scenario=scenario, start_seconds=start, noise_percent=noise)
        for scenario in SCENARIOS
        for start in START_SECONDS
        for noise in NOISE_PERCENT
    ]
