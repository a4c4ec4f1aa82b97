"""The simulated cluster is consistent, and the policy keeps its promises on any of them."""

import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lastmile_policy import Lastmile
from property_tests import examples

from dataset_operator.autoscaling import Decision, Sample
from dataset_operator.simulation import events
from dataset_operator.simulation.cluster import Cluster
from dataset_operator.simulation.loop import Moment, Trace, simulate, simulate_together
from dataset_operator.simulation.measures import find_turns, measure, measure_together
from dataset_operator.simulation.setting import Loss, Phase, Setting
from dataset_operator.simulation.truth import Truth

STEADY = Setting(
    rows=1e12,
    phases=(Phase(step_seconds=0.5, row_seconds=1e-3),),  # 8,192 rows per second, 8.2 workers
    noise=0.0,
    warm_seconds=0.0,
    start_seconds=30.0,
    first_workers=9,
)


@dataclass
class Constant:
    """A constant number of workers."""

    workers: int

    def decide(self, sample: Sample) -> int:
        return self.workers

    def restart(self) -> None:
        """Nothing is remembered."""


def run_for(setting: Setting, workers: int, seconds: float) -> Cluster:
    cluster = Cluster(setting=replace(setting, first_workers=workers), seed=1)
    while cluster.time < seconds and not cluster.has_ended:
        cluster.run(cluster.time + 15.0)
    return cluster


@pytest.mark.parametrize(("workers", "rows_a_second"), [(4, 4000.0), (8, 8000.0), (16, 8192.0)])
def test_throughput_is_the_lesser_of_supply_and_demand(workers: int, rows_a_second: float) -> None:
    cluster = run_for(STEADY, workers, 3600.0)
    sample = cluster.read()
    assert sample.trainer is not None
    assert sample.workers is not None
    assert sample.trainer.rows / cluster.time == pytest.approx(rows_a_second, rel=0.02)
    waits = 1.0 - rows_a_second / 8192.0
    assert sample.trainer.production_seconds / cluster.time == pytest.approx(waits, abs=0.02)
    busy = sample.workers.read_seconds + sample.workers.compute_seconds
    assert busy / cluster.time == pytest.approx(rows_a_second / 1000.0, rel=0.02)
    assert (busy + sample.workers.blocked_seconds) / cluster.time == pytest.approx(
        workers, rel=0.03
    )


@pytest.mark.parametrize("is_ordered", [False, True])
def test_lost_workers_lose_and_repeat_no_row(is_ordered: bool) -> None:
    setting = replace(
        STEADY, is_ordered=is_ordered, noise=0.2, crash_per_minute=0.1, schedulable=20
    )
    cluster = Cluster(setting=setting, seed=3)
    for workers in [9, 14, 3, 20, 5, 9] * 10:
        cluster.request(workers)
        cluster.run(cluster.time + 60.0)
    state, unit = cluster.state, setting.unit_rows
    taken = float(state.sums[events.ROWS])
    queued = float(state.now[events.QUEUE_ROWS])
    leased = int(state.marks[events.NEXT_UNIT]) - int(state.marks[events.NUM_RETURNED])
    held = int(((state.activity == events.BUSY) | (state.activity == events.BLOCKED)).sum())
    waiting = int(state.done.sum())  # made, but an earlier one is not
    assert taken + queued + unit * (held + waiting) == pytest.approx(unit * leased)
    assert taken > 0.8 * 3000 * 60 * len([9] * 10)


def test_storage_at_its_limit_slows_each_reader() -> None:
    few = run_for(replace(STEADY, storage_rows_per_second=3000.0), 3, 1800.0)
    many = run_for(replace(STEADY, storage_rows_per_second=3000.0), 12, 1800.0)
    for cluster in (few, many):
        rows = float(cluster.state.sums[events.ROWS])
        assert rows / cluster.time == pytest.approx(3000.0, rel=0.1)


def test_pods_start_late_and_are_replaced() -> None:
    setting = replace(STEADY, start_seconds=120.0, losses=(Loss(at=600.0, share=1.0),))
    cluster = Cluster(setting=setting, seed=1)
    cluster.run(585.0)
    assert cluster.ready == 9
    cluster.run(600.0)
    assert cluster.ready == 0
    cluster.run(660.0)
    assert cluster.ready == 0
    cluster.run(900.0)
    assert cluster.ready == 9


def test_unschedulable_pods_are_reported() -> None:
    cluster = Cluster(setting=replace(STEADY, schedulable=10), seed=1)
    cluster.request(15)
    cluster.run(240.0)
    assert cluster.read().pods.stuck == 0
    cluster.run(400.0)
    assert cluster.read().pods.stuck == 5
    cluster.request(10)
    assert cluster.read().pods.stuck == 0


def test_integers_are_compiled_as_floats_are() -> None:
    pytest.importorskip("numba")
    run_for(STEADY, 4, 60.0)
    integers = {"rows": 10_000, "batch_rows": 100, "unit_rows": 10, "noise": 0, "warm_seconds": 3}
    phases = (Phase(from_row=0, step_seconds=1, row_seconds=1),)
    cluster = Cluster(setting=replace(STEADY, phases=phases, **integers), seed=1)
    cluster.run(60)
    assert len(events.advance.signatures) == 1  # of all tests of this process


def test_results_without_numba_are_equal() -> None:
    program = """
import sys
if sys.argv[1] == "without":
    sys.modules["numba"] = None
from dataset_operator.simulation.cluster import Cluster
from dataset_operator.simulation.setting import Phase, Setting
phases = (Phase(row_seconds=1e-3), Phase(from_row=4e5, row_seconds=2e-3))
setting = Setting(rows=1e12, phases=phases, tail=1.6, is_ordered=True, crash_per_minute=0.2)
cluster = Cluster(setting=setting, seed=5)
for workers in (2, 9, 4, 12):
    cluster.request(workers)
    cluster.run(cluster.time + 60.0)
print(cluster.state.sums.round(6).tolist(), cluster.state.marks.tolist())
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", program, how], capture_output=True, text=True, check=True
        )
        for how in ("with", "without")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout.startswith("[")


def test_measures_of_a_starved_run() -> None:
    setting = replace(STEADY, rows=8192.0 * 3600, first_workers=4)
    found = measure(simulate(setting, lambda _: Constant(4), seed=1))
    assert found.has_ended
    assert found.idle_share == pytest.approx(1 - 4000 / 8192, abs=0.02)
    assert found.worker_hours == pytest.approx(4 * found.seconds / 3600, rel=0.01)
    assert (found.moves, found.reversals, found.overshoot_workers) == (0, 0, 0)
    assert found.settling_seconds is None  # it never does
    priced = [found.cost_per_row(8, price) for price in (5, 20)]
    assert priced[1] > 3 * priced[0]


def test_reversals_are_moves_in_the_other_direction() -> None:
    assert find_turns([4, 4, 5, 7, 7, 9]) == []
    assert find_turns([4, 6, 6, 5, 5, 4, 8]) == [3, 6]


def trace_of(desired: list[int], ready: list[int] | None = None, change: int = 10**6) -> Trace:
    """Return moments that require nine workers, and five from `change` on, every 15 minutes."""
    truths = [Truth(demand=rate, worker_rate=1000.0, useful=64) for rate in (8192.0, 4096.0)]
    moments = [
        Moment(
            at=900.0 * (i + 1),
            desired=number,
            ready=number if ready is None else ready[i],
            capacity=64,
            truth=truths[i >= change],
            rows=1e6 * (i + 1),
            production_seconds=0.0,
            paid_seconds=1.0,
        )
        for i, number in enumerate(desired)
    ]
    return Trace(setting=STEADY, moments=moments, has_ended=True)


@pytest.mark.parametrize(
    ("desired", "change", "workers"),
    [
        pytest.param([9, 9, 12, 9], 9, 3, id="above the need"),
        pytest.param([9, 10, 11, 12], 9, 3, id="one at a time is no less"),
        pytest.param([4, 9], 9, 0, id="up to the need"),
        pytest.param([9, 9, 9, 9, 7, 5], 2, 0, id="late when the need falls"),
        pytest.param([9, 9, 9, 7, 8, 8], 2, 1, id="upwards while the need is less"),
        pytest.param([14, 14, 15], 9, 1, id="above what the run began with"),
    ],
)
def test_overshoot_counts_upward_moves(desired: list[int], change: int, workers: int) -> None:
    assert measure(trace_of(desired, change=change)).overshoot_workers == workers


def test_hours_with_a_reversal_are_counted_not_reversals() -> None:
    found = measure(trace_of([9, 10, 9, 10, 10, 10, 10, 10, 10, 9, 9]))
    assert (found.hours, found.turned_hours, found.reversals) == (2, 2, 3)
    assert (found.moves, found.up_moves) == (4, 2)


def test_settling_ends_when_the_number_stays() -> None:
    found = measure(trace_of([4, 8, 12, 9, 9]))
    assert (found.settling_seconds, found.unsettled) == (45.0, 0)  # counted in periods
    lost = measure(trace_of([9, 9, 9, 9], ready=[9, 9, 5, 9]))
    assert (lost.settling_seconds, lost.unsettled) == (0.0, 0)  # a lost pod is replaced
    never = measure(trace_of([9, 9, 9, 4]))
    assert (never.settling_seconds, never.unsettled) == (None, 1)


def test_concurrent_runs_share_pods() -> None:
    short = replace(STEADY, rows=8192.0 * 1800)
    [alone] = simulate_together([short], lambda _: Constant(9), seed=1)
    apart = [replace(short, schedulable=18), replace(short, schedulable=18)]
    first, second = simulate_together(apart, lambda _: Constant(9), seed=1)
    assert measure(first) == measure(alone)
    assert first.has_ended
    assert second.has_ended
    tight = [replace(short, schedulable=12, first_workers=4)] * 2
    traces = simulate_together(tight, lambda _: Constant(9), seed=1)
    assert [trace.moments[40].ready for trace in traces] == [8, 4]  # who asks first gets them
    both, parts = measure_together(traces), [measure(trace) for trace in traces]
    assert both.worker_hours == sum(part.worker_hours for part in parts)
    assert both.rows == sum(part.rows for part in parts)
    waits = sum(part.idle_share * part.seconds for part in parts)
    assert both.idle_share == pytest.approx(waits / sum(part.seconds for part in parts))


PHASES = st.lists(
    st.tuples(st.floats(0.25, 4.0), st.floats(0.25, 4.0)), min_size=1, max_size=3
).map(
    lambda factors: tuple(
        Phase(
            from_row=8192.0 * 2700 * index,
            step_seconds=0.5 * step,
            row_seconds=1e-3 * cost,
        )
        for index, (step, cost) in enumerate(factors)
    )
)
PLANTS = st.builds(
    Setting,
    rows=st.just(8192.0 * 7200),
    phases=PHASES,
    noise=st.floats(0.05, 0.2),
    start_seconds=st.sampled_from([5.0, 30.0, 120.0, 300.0]),
    crash_per_minute=st.sampled_from([0.0, 0.005, 0.02]),
    storage_rows_per_second=st.sampled_from([float("inf"), float("inf"), 5000.0]),
    schedulable=st.sampled_from([1000, 1000, 12]),
    slow_share=st.sampled_from([0.0, 0.3]),
    tail=st.sampled_from([None, 1.6]),
    is_ordered=st.booleans(),
    epoch_steps=st.sampled_from([0, 40]),
    pause_seconds=st.just(10.0),
    outages=st.sampled_from([(), ((1800.0, 1920.0),), ((900.0, 1500.0), (2000.0, 2030.0))]),
    restarts=st.sampled_from([(), (1500.0,), (600.0, 660.0, 3000.0)]),
    min_workers=st.integers(1, 4),
    max_workers=st.sampled_from([8, 40]),
    first_workers=st.integers(4, 8),
)


def simulate_ours(setting: Setting, seed: int) -> tuple[Trace, list[tuple[Sample, Decision]]]:
    laws: list[Lastmile] = []

    def make(cluster: Cluster) -> Lastmile:
        laws.append(Lastmile(cluster))
        return laws[-1]

    return simulate(setting, make, seed), laws[0].log


# 40 workers, all busy, for 8,192 rows per second.
LARGE = Setting(
    rows=8192.0 * 5400,
    phases=(Phase(step_seconds=0.5, row_seconds=40 / 8192),),
    read_share=0.6,
    start_seconds=60.0,
    first_workers=43,
    max_workers=128,
)


@pytest.mark.parametrize("seed", range(4))
def test_storage_near_demand_does_not_run_away(seed: int) -> None:
    short = replace(LARGE, first_workers=30, storage_rows_per_second=0.95 * 8192)
    trace, _ = simulate_ours(short, seed)
    wanted = [moment.desired for moment in trace.moments]
    assert max(wanted) < 60
    assert max(wanted[-len(wanted) // 4 :]) <= 44  # a tenth more than 40 is tried


def test_the_first_batch_takes_time_with_any_workers() -> None:
    slow_units = replace(LARGE, unit_rows=4096.0)  # 20 s each: a run of many files
    trace, _ = simulate_ours(slow_units, seed=1)
    assert {moment.desired for moment in trace.moments} == {43}


@pytest.mark.parametrize("seed", range(3))
def test_more_expensive_rows_are_no_saturation_point(seed: int) -> None:
    dearer = tuple(
        Phase(from_row=8192.0 * 300 * i, step_seconds=0.5, row_seconds=(1 + 0.2 * i) * 1e-3)
        for i in range(13)
    )
    setting = replace(STEADY, rows=8192.0 * 7200, phases=dearer, noise=0.05, start_seconds=300.0)
    _, log = simulate_ours(setting, seed)
    assert not [
        s.at for s, decision in log if decision.recommended.reason == "SaturationPointReached"
    ]


def test_units_of_lost_workers_come_first() -> None:
    crashing = Setting(
        rows=8192.0 * 7200,
        phases=(Phase(step_seconds=1.903929855484515, row_seconds=0.001645),),
        noise=0.17718175117121876,
        start_seconds=300.0,
        crash_per_minute=0.02,
        tail=1.6,
        is_ordered=True,
        restarts=(1500.0,),
        min_workers=1,
        max_workers=8,
        first_workers=8,
    )
    trace, _ = simulate_ours(crashing, seed=256)
    assert trace.has_ended


@given(setting=PLANTS, seed=st.integers(0, 1000))
@settings(max_examples=examples(6), deadline=None)
def test_the_policy_keeps_its_promises(setting: Setting, seed: int) -> None:
    trace, log = simulate_ours(setting, seed)
    assert trace.moments
    for sample, decision in log:
        assert setting.min_workers <= decision.desired <= setting.max_workers
        if sample.trainer is None:  # it never acts on what is not known
            assert decision.desired == sample.desired
    # It never turns round without a cause: what was added is not taken away within a window.
    moves = [
        (sample.at, sample.desired, decision)
        for sample, decision in log
        if decision.desired != sample.desired
    ]
    for (at, before, first), (later, _, second) in pairwise(moves):
        is_turn = first.desired > before and second.desired < first.desired
        caused = {"Unschedulable", "SaturationPointReached"}
        reasons = {second.recommended.reason, second.limited.reason if second.limited else ""}
        if is_turn and not caused & reasons:
            assert later - at >= 300.0
    # Whatever befell it, it recovered: all rows are trained, or no more workers are to be had.
    most = min(setting.max_workers, setting.schedulable)
    assert trace.has_ended or trace.moments[-1].desired >= most
