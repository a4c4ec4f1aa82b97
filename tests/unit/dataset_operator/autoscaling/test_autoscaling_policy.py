"""The autoscaling policy, from counters to a number: stories of runs, and invariants."""

from dataclasses import replace
from itertools import pairwise

import pytest
from autoscaling_story import Story
from facts import assert_told
from hypothesis import given, settings
from hypothesis import strategies as st
from lastmile_policy import Lastmile
from property_tests import examples

from dataset_operator.autoscaling import Memory, Rules, decide
from dataset_operator.autoscaling.chain import limit_rate
from dataset_operator.autoscaling.gpu_only import GpuMemory, decide_by_gpu
from dataset_operator.autoscaling.interface import Direction, RateLimit
from dataset_operator.autoscaling.intervals import Move
from dataset_operator.autoscaling.signals import Pods, Sample
from dataset_operator.simulation.loop import simulate
from dataset_operator.simulation.setting import Phase, Setting

MINUTE = 60.0
LIMITS = Rules(min_workers=1, max_workers=50)


def test_a_starved_trainer_gets_the_required_workers_and_headroom() -> None:
    story = Story(demand=1000, rate=100, workers=8)
    decisions = story.run(3 * MINUTE)
    assert story.desired == 11  # 10 busy workers, 7.5 % more
    up = next(decision for decision in decisions if decision.desired > 8)
    assert up.recommended.reason == "DesiredWithinRange"
    assert_told(up.recommended.message, "… 1,000 … 100 … 10.0")
    assert all(decision.active.reason == "ValidMetricFound" for decision in decisions)


def test_readers_that_wait_for_inference_workers_make_no_more_rows() -> None:
    story = Story(demand=1000, rate=100, workers=8, inference_share=0.6)
    story.run(3 * MINUTE)
    assert story.desired == 11
    fed = Story(demand=1000, rate=100, workers=11, inference_share=0.6)
    assert {decision.desired for decision in fed.run(30 * MINUTE)} == {11}


def test_a_fed_trainer_keeps_its_workers() -> None:
    story = Story(demand=1000, rate=100, workers=11)
    assert {decision.desired for decision in story.run(30 * MINUTE)} == {11}


def test_spare_workers_leave_by_a_quarter_per_window() -> None:
    story = Story(demand=1000, rate=100, workers=40)
    desired = [decision.desired for decision in story.run(60 * MINUTE)]
    assert desired[:20] == [40] * 20  # the first five minutes nobody knows what was recommended
    assert sorted(set(desired), reverse=True) == [40, 30, 22, 16, 12, 11]
    for window in (desired[i : i + 20] for i in range(len(desired) - 20)):
        assert window[-1] >= 0.74 * window[0] - 1


def test_pending_pods_count() -> None:
    story = Story(demand=1000, rate=100, workers=8, start_seconds=300)
    assert max(decision.desired for decision in story.run(10 * MINUTE)) == 11


def test_growth_stops_at_twice_the_verified_workers() -> None:
    story = Story(demand=3000, rate=100, workers=4)
    desired = [decision.desired for decision in story.run(20 * MINUTE)]
    assert sorted(set(desired)) == [4, 8, 16, 32]
    held = Story(demand=3000, rate=100, workers=4, read_share=0.8)
    steps = sorted({decision.desired for decision in held.run(40 * MINUTE)})
    assert steps[:4] == [4, 5, 8, 16]  # readers may all wait for one disk, until they do not
    assert 30 <= steps[-1] <= 33


@pytest.mark.parametrize(
    ("waits", "stage"), [({"collate": 0.3}, "Collate"), ({"transfer": 0.2}, "Transfer")]
)
def test_waits_for_other_stages_add_no_worker(waits: dict[str, float], stage: str) -> None:
    story = Story(demand=1000, rate=100, workers=11, waits=waits, gpu=0.6)
    decisions = story.run(20 * MINUTE)
    assert {decision.desired for decision in decisions} == {11}
    bottleneck = decisions[-1].bottleneck
    assert bottleneck is not None
    assert bottleneck.stage == stage


def test_an_idle_gpu_without_waits_gets_advice_but_no_worker() -> None:
    story = Story(demand=1000, rate=100, workers=11, gpu=0.6)
    decisions = story.run(20 * MINUTE)
    assert {decision.desired for decision in decisions} == {11}
    bottleneck = decisions[-1].bottleneck
    assert bottleneck is not None
    assert bottleneck.stage == "Model"
    assert "GPUs are 60% busy (target 95%)" in bottleneck.message


def test_trainers_without_a_gpu_get_no_gpu_advice() -> None:
    story = Story(demand=1000, rate=100, workers=11, gpu=0.6)
    story.run(5 * MINUTE)
    sample = replace(story.sample(), has_gpus=False, at=story.now + 15.0)
    assert decide(story.memory, sample, LIMITS)[0].bottleneck is None


def test_blocked_readers_are_not_the_bottleneck() -> None:
    rules = replace(LIMITS, is_ordered=True)
    story = Story(demand=1000, rate=100, workers=8, held_share=0.4, rules=rules)
    decisions = story.run(20 * MINUTE)
    assert {decision.desired for decision in decisions} == {8}
    bottleneck = decisions[-1].bottleneck
    assert bottleneck is not None
    assert bottleneck.stage == "Ordering"


def test_workers_beyond_the_saturation_point_leave() -> None:
    story = Story(demand=4000, rate=100, workers=8, storage=1000)
    desired = [decision.desired for decision in story.run(30 * MINUTE)]
    assert max(desired) == 16
    peak = desired.index(16)
    assert desired[peak:] == sorted(desired[peak:], reverse=True)
    assert set(desired[-20:]) == {10}  # 8 made 800 a second, 16 made 1,000
    later = [decision.desired for decision in story.run(240 * MINUTE)]
    assert set(later) == {10, 11}  # tried now and then
    assert 2 <= sum(a < b for a, b in pairwise(later)) <= 4
    assert sum(workers == 11 for workers in later) < 30


@pytest.mark.parametrize("step_seconds", [20.0, 30.0, 60.0])
def test_waits_of_long_steps_add_workers(step_seconds: float) -> None:
    phases = (
        Phase(step_seconds=step_seconds, row_seconds=8.0 * step_seconds / 4096),
        Phase(
            from_row=2400.0 / step_seconds * 4096,
            step_seconds=step_seconds,
            row_seconds=16.0 * step_seconds / 4096,
        ),
    )
    setting = Setting(
        rows=9000.0 / step_seconds * 4096,
        batch_rows=4096,
        unit_rows=256,
        phases=phases,
        max_workers=64,
        first_workers=9,
    )
    trace = simulate(setting, Lastmile, 1)
    assert 16 <= trace.moments[-1].desired <= 20
    middle, last = trace.moments[len(trace.moments) // 2], trace.moments[-1]
    waited = last.production_seconds - middle.production_seconds
    assert waited / (last.at - middle.at) < 0.1


def test_pauses_between_short_epochs_hide_no_waits() -> None:
    phases = (
        Phase(step_seconds=0.5, row_seconds=8.0 / 8192),
        Phase(from_row=2400.0 * 8192, step_seconds=0.5, row_seconds=16.0 / 8192),
    )
    setting = Setting(
        rows=5400.0 * 8192,
        batch_rows=4096,
        unit_rows=2048,
        phases=phases,
        epoch_steps=60,
        pause_seconds=30.0,
        max_workers=64,
        first_workers=9,
    )
    assert simulate(setting, Lastmile, 1).moments[-1].desired >= 16


def test_nonsensical_counters_raise_no_error() -> None:
    story = Story(demand=1000, rate=100, workers=11)
    story.run(MINUTE)
    tiny = replace(story.sample(), at=story.now + 15.0)
    assert tiny.trainer is not None
    assert tiny.workers is not None
    for loop in (1e-300, 1e300):
        trainer = replace(
            tiny.trainer,
            steps=tiny.trainer.steps + 50,
            rows=tiny.trainer.rows + 1e18,
            loop_seconds=tiny.trainer.loop_seconds + loop,
        )
        decision, _ = decide(story.memory, replace(tiny, trainer=trainer), LIMITS)
        assert 1 <= decision.desired <= 50


def test_storage_that_became_faster_is_noticed() -> None:
    story = Story(demand=4000, rate=100, workers=8, storage=1000)
    assert story.run(30 * MINUTE)[-1].desired == 10
    story.storage = 2000
    assert story.run(60 * MINUTE)[-1].desired in (19, 20)  # 95 % of what there is will do


def test_workers_that_became_faster_are_noticed_at_once() -> None:
    story = Story(demand=4000, rate=100, workers=8, storage=1000)
    story.run(30 * MINUTE)
    story.storage, story.rate = 4000, 200  # each of them gets more from it
    assert story.run(10 * MINUTE)[-1].desired >= 20


def test_gpu_only_probes_grow_while_they_help() -> None:
    memory, desired, asked = GpuMemory(chain=Memory(since=0.0)), 2, []
    for period in range(400):
        sample = Sample(
            at=15.0 * period,
            attempt=1,
            desired=desired,
            pods=Pods(ready=desired, start_seconds=10.0),
            gpu_utilization=min(0.97, 0.97 * desired / 32),
        )
        decision, memory = decide_by_gpu(memory, sample, LIMITS)
        if decision.desired != desired:
            asked.append(desired := decision.desired)
    assert asked[:6] == [3, 4, 6, 11, 22, 44]
    assert 31 <= desired <= 36
    assert len(asked) < 40  # what failed is tried ever more seldom


@pytest.mark.parametrize("is_up", [True, False])
def test_rate_limits_count_moves_of_both_directions(is_up: bool) -> None:
    """Limits are relative to the number when their period began, as in the HPA."""
    limit = Direction(
        stabilization_seconds=0.0, limits=(RateLimit(type="Workers", value=2, period_seconds=60),)
    )
    rules = replace(LIMITS, up=limit, down=limit)
    moves = (Move(at=100.0, before=10, after=12), Move(at=110.0, before=12, after=11))
    memory = Memory(since=0.0, moves=moves)
    wanted, most = (20, 12) if is_up else (1, 8)
    assert limit_rate(wanted, 11, memory, rules, now=120.0).workers == most


def test_unknown_signals_change_nothing() -> None:
    story = Story(demand=1000, rate=100, workers=11)
    story.run(20 * MINUTE)
    story.is_known, story.demand = False, 100
    decisions = story.run(20 * MINUTE)
    assert {decision.desired for decision in decisions} == {11}
    assert {decision.active.reason for decision in decisions} == {"MetricsUnknown"}
    story.is_known = True
    assert story.run(20 * MINUTE)[-1].desired < 11


def test_without_memory_no_worker_leaves_for_a_window() -> None:
    story = Story(demand=1000, rate=100, workers=40)
    story.run(2 * MINUTE)
    story.memory = Memory(since=story.now)
    assert {decision.desired for decision in story.run(4.5 * MINUTE)} == {40}


def test_another_attempt_keeps_the_number() -> None:
    story = Story(demand=1000, rate=100, workers=11)
    story.run(10 * MINUTE)
    story.restart()
    assert {decision.desired for decision in story.run(10 * MINUTE)} == {11}


def test_a_reached_maximum_is_reported() -> None:
    story = Story(demand=9000, rate=100, workers=20, rules=replace(LIMITS, max_workers=30))
    decision = story.run(20 * MINUTE)[-1]
    assert decision.desired == 30
    assert decision.limited is not None
    assert decision.limited.reason == "TooManyReplicas"
    assert "60 wanted, but dataWorkers.maxReplicas is 30" in decision.limited.message


def test_an_unschedulable_request_is_withdrawn_and_repeated() -> None:
    story = Story(demand=2000, rate=100, workers=10, start_seconds=1e9)
    story.run(3 * MINUTE)
    assert story.desired == 20
    story.stuck, story.pending, story.start_seconds = 10, [], 30
    [decision] = story.run(15)
    assert decision.desired == 10
    assert decision.limited is not None
    assert decision.limited.reason == "Unschedulable"
    story.stuck = 0
    desired = [decision.desired for decision in story.run(10 * MINUTE)]
    assert desired[:3] == [10, 10, 10]  # for twice the time that a pod takes to start
    assert desired[-1] == 20  # 10 were seen to help, so twice that


def test_workers_double_before_the_demand_is_known() -> None:
    story = Story(demand=100, rate=0.1, workers=2, step_rows=100)
    desired = [decision.desired for decision in story.run(10 * MINUTE)]
    assert desired[-1] >= 16
    jumps = [b / a for a, b in pairwise(desired) if b > a]
    assert max(jumps) <= 2.0


@pytest.mark.parametrize("side", ["up", "down"])
def test_a_disabled_direction_is_not_taken(side: str) -> None:
    off = Direction(stabilization_seconds=0.0, select="Disabled")
    rules = replace(LIMITS, up=off) if side == "up" else replace(LIMITS, down=off)
    story = Story(demand=1000, rate=100, workers=4 if side == "up" else 30, rules=rules)
    decisions = story.run(20 * MINUTE)
    assert {decision.desired for decision in decisions} == {story.workers}
    limited = decisions[-1].limited
    assert limited is not None
    assert limited.reason == "ScalingDisabled"


def test_rate_limits_select_as_the_hpa_does() -> None:
    up = Direction(
        stabilization_seconds=0.0,
        limits=(
            RateLimit(type="Workers", value=1, period_seconds=60),
            RateLimit(type="Percent", value=50, period_seconds=60),
        ),
    )
    story = Story(demand=1000, rate=100, workers=6, rules=replace(LIMITS, up=up))
    desired = [decision.desired for decision in story.run(5 * MINUTE)]
    assert sorted(set(desired)) == [6, 9, 11]
    least = replace(up, select="Min")
    story = Story(demand=1000, rate=100, workers=6, rules=replace(LIMITS, up=least))
    desired = [decision.desired for decision in story.run(10 * MINUTE)]
    assert sorted(set(desired)) == [6, 7, 8, 9, 10]


@given(
    demand=st.floats(min_value=1, max_value=1e6),
    rate=st.floats(min_value=1e-2, max_value=1e5),
    workers=st.integers(min_value=1, max_value=60),
    bounds=st.tuples(st.integers(1, 60), st.integers(0, 60)),
    read_share=st.floats(min_value=0, max_value=1),
    changes=st.lists(
        st.sampled_from(["outage", "back", "x4", "/4", "restart", "stuck"]), max_size=6
    ),
)
@settings(max_examples=examples(20), deadline=None)
def test_the_number_stays_within_its_bounds(
    demand: float,
    rate: float,
    workers: int,
    bounds: tuple[int, int],
    read_share: float,
    changes: list[str],
) -> None:
    rules = Rules(min_workers=bounds[0], max_workers=bounds[0] + bounds[1])
    workers = min(max(workers, rules.min_workers), rules.max_workers)
    story = Story(
        demand=demand,
        rate=rate,
        workers=workers,
        read_share=read_share,
        rules=rules,
        start_seconds=30,
        step_rows=max(1.0, demand / 4),
    )
    for change in ["", *changes]:
        before = story.desired
        story.is_known = change != "outage"
        story.stuck = 1 if change == "stuck" and story.desired > rules.min_workers else 0
        story.demand *= {"x4": 4.0, "/4": 0.25}.get(change, 1.0)
        if change == "restart":
            story.restart()
        decisions = story.run(3 * MINUTE)
        for decision in decisions:
            assert rules.min_workers <= decision.desired <= rules.max_workers
            if change == "outage":
                assert decision.desired == before


def test_a_stuck_pod_within_min_workers_stays_requested() -> None:
    rules = replace(LIMITS, min_workers=4)
    story = Story(demand=300, rate=100, workers=3, desired=4, rules=rules, stuck=1)
    story.pending = [float("inf")]
    decisions = story.run(6 * 60 * MINUTE)
    assert {decision.desired for decision in decisions} == {4}


def test_refusals_end_once_pods_start() -> None:
    story = Story(demand=2000, rate=100, workers=10, start_seconds=1e9)
    story.run(3 * MINUTE)
    story.stuck, story.pending, story.start_seconds = 10, [], 30
    story.run(15)
    story.stuck = 0
    story.run(20 * MINUTE)
    assert story.desired == 20
    assert (story.memory.refusals, story.memory.ceiling) == (0, None)


@pytest.mark.parametrize("seconds", [20.0, 70.0])
def test_steps_longer_than_a_period_add_workers(seconds: float) -> None:
    """Waits are recorded when they end, so most periods have no step and a wait may exceed one."""
    story = Story(demand=1000, rate=100, workers=5, step_rows=1000 * seconds)
    told = replace(story.trainer), 0.0
    decisions = []
    for _ in range(round(180 * MINUTE / 15.0)):
        story._pass()
        exact = story.trainer
        steps = float(int(exact.steps))
        if steps > told[0].steps:
            told = exact, exact.production_seconds
        seen = replace(
            exact,
            steps=steps,
            rows=steps * story.step_rows,
            production_seconds=told[1],
        )
        sample = replace(story.sample(), trainer=seen)
        decision, story.memory = decide(story.memory, sample, story.rules)
        story._ask(decision.desired)
        decisions.append(decision.desired)
    assert 10 <= decisions[-1] <= 13
