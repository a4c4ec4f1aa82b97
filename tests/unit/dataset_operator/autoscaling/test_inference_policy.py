"""The policy of inference workers: pods follow the target, or the requests that wait."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataset_operator.autoscaling.inference import (
    InferenceCounters,
    InferenceMemory,
    InferenceRules,
    InferenceSample,
    decide_inference,
    find_bottleneck,
)
from dataset_operator.autoscaling.interface import PERIOD_SECONDS, Decision, Rules
from dataset_operator.autoscaling.intervals import Memory

MINUTE = 60.0
FIELD = "inferenceWorkers[large]"


@dataclass
class Group:
    """A simulated group whose processes score `rate` rows per second each.

    Attributes:
        supply: rows per second that data workers can send.
        call_share: share of a saturated process's time in which it calls the model.
        start_seconds: from the request of a pod to its first answer.
    """

    total: float = 1e6
    rate: float = 100.0
    supply: float = math.inf
    processes: int = 1
    call_share: float = 1.0
    start_seconds: float = 90.0
    target: float | None = None
    least: int = 1
    most: int = 8
    pods: int = 1
    now: float = 0.0
    attempt: int = 1
    rows: float = 0.0
    busy: float = 0.0
    hidden: bool = False
    reports_progress: bool = True
    is_loading: bool = False
    starting: list[float] = field(default_factory=list)
    memory: InferenceMemory = field(
        default_factory=lambda: InferenceMemory(chain=Memory(since=0.0))
    )

    @property
    def desired(self) -> int:
        return self.pods + len(self.starting)

    def step(self) -> Decision:
        self.now += PERIOD_SECONDS
        up = [at for at in self.starting if at <= self.now]
        self.pods += len(up)
        self.starting = self.starting[len(up) :]
        processes = 0 if self.is_loading else self.pods * self.processes
        capacity = processes * self.rate
        rows = min(capacity, self.supply, (self.total - self.rows) / PERIOD_SECONDS)
        self.rows += rows * PERIOD_SECONDS
        self.busy += rows / self.rate * self.call_share * PERIOD_SECONDS
        counters = InferenceCounters(
            workers=float(processes),
            waiting=3.0 * processes if rows == capacity else 0.0,
            rows=self.rows,
            busy_seconds=self.busy,
        )
        sample = InferenceSample(
            at=self.now,
            attempt=self.attempt,
            desired=self.desired,
            elapsed_seconds=self.now,
            counters=None if self.hidden else counters,
            done=self.rows / self.total if self.reports_progress else None,
        )
        rules = InferenceRules(
            bounds=Rules(min_workers=self.least, max_workers=self.most, field=FIELD),
            processes=self.processes,
            target_seconds=self.target,
        )
        decision, self.memory = decide_inference(self.memory, sample, rules)
        self._ask(decision.desired)
        return decision

    def _ask(self, wanted: int) -> None:
        while self.desired < wanted:
            self.starting.append(self.now + self.start_seconds)
        while self.desired > wanted:
            if self.starting:
                self.starting.pop()
            else:
                self.pods -= 1

    def run(self, seconds: float) -> list[Decision]:
        return [self.step() for _ in range(round(seconds / PERIOD_SECONDS))]

    def finish(self) -> float:
        """Run until all rows are scored; return the time."""
        while self.rows < self.total * (1 - 1e-9):
            self.step()
            assert self.now < 1e6
        return self.now


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("target", [3000.0, 6000.0])
def test_the_target_is_met_by_as_few_pods_as_can(target: float, processes: int) -> None:
    group = Group(total=processes * 1e6, processes=processes, target=target)
    most = 0
    while group.rows < group.total * (1 - 1e-9):
        group.step()
        most = max(most, group.desired)
    # One pod scores 100 rows per second: 10,000 s.
    assert most <= math.ceil(1e4 / target) + 1
    assert group.now <= target * 1.1


def test_a_target_is_met_if_progress_is_reported_later_than_rows() -> None:
    group = Group(total=1e6, target=4000.0, reports_progress=False)
    group.run(2 * MINUTE)
    group.reports_progress = True
    assert group.finish() <= 4400.0
    assert group.desired <= 4


def test_a_target_that_is_far_away_needs_no_more_pods() -> None:
    group = Group(target=20_000.0)
    assert {decision.desired for decision in group.run(60 * MINUTE)} == {1}


def test_spare_pods_leave_after_a_window_and_one_after_another() -> None:
    group = Group(target=20_000.0, pods=4)
    numbers = [decision.desired for decision in group.run(20 * MINUTE)]
    assert numbers[: int(5 * MINUTE / PERIOD_SECONDS) - 1] == [4] * 19
    assert numbers[-1] == 1
    assert all(before - after <= 1 for before, after in pairwise(numbers))


def test_at_most_pods_the_limit_says_how_late_the_last_row_is() -> None:
    group = Group(target=2000.0, most=2)
    decision = group.run(10 * MINUTE)[-1]
    assert decision.desired == 2
    assert decision.limited is not None
    assert decision.limited.reason == "TooManyReplicas"
    message = decision.limited.message
    assert f"{FIELD}.maxReplicas is 2" in message
    assert "raise maxReplicas or targetCompletionSeconds" in message
    # 10,000 s of one pod: two take 5,000 s, 3,000 s after the target.
    minutes = int(message.split(" about ")[1].split()[0])
    assert minutes == pytest.approx(51, abs=3)


def test_a_target_that_is_missed_by_a_little_is_no_limit() -> None:
    # Two pods take 5,000 s.
    group = Group(target=4900.0, most=2)
    decisions = group.run(10 * MINUTE)
    assert decisions[-1].desired == 2
    assert {decision.limited for decision in decisions} == {None}


def test_a_target_that_has_passed_takes_all_pods() -> None:
    group = Group(target=30.0)
    assert group.run(10 * MINUTE)[-1].desired == 8


def test_without_a_target_pods_are_added_until_requests_do_not_wait() -> None:
    group = Group(total=1e9, supply=450.0)
    numbers = [decision.desired for decision in group.run(60 * MINUTE)]
    assert numbers[-1] == 5
    assert max(numbers) <= 5
    assert numbers == sorted(numbers)


def test_no_more_are_added_before_the_last_ones_were_measured() -> None:
    group = Group(total=1e9, start_seconds=300.0)
    times = []
    for _ in range(200):
        before = group.desired
        if group.step().desired > before:
            times.append(group.now)
    assert len(times) > 3
    gaps = [after - before for before, after in pairwise(times)]
    assert min(gaps) >= 300.0 + MINUTE


@pytest.mark.parametrize("target", [None, 100.0])
def test_pods_are_not_added_while_data_workers_are_the_bottleneck(target: float | None) -> None:
    group = Group(total=1e9, supply=70.0, target=target)
    assert {decision.desired for decision in group.run(60 * MINUTE)} == {1}
    assert find_bottleneck("large", group.memory) is None


@pytest.mark.parametrize("target", [None, 100.0])
def test_pods_that_idle_are_removed(target: float | None) -> None:
    group = Group(total=1e9, supply=70.0, target=target, pods=8)
    numbers = [decision.desired for decision in group.run(60 * MINUTE)]
    assert numbers[0] == 8
    assert numbers[-1] <= 2


def test_processes_that_mostly_unpack_requests_are_saturated_too() -> None:
    group = Group(total=1e9, call_share=0.3)
    assert group.run(60 * MINUTE)[-1].desired == 8


def test_the_target_counts_with_what_a_process_really_scores() -> None:
    group = Group(total=1e6, call_share=0.5, target=5000.0)
    assert group.finish() <= 5500.0


def test_unknown_metrics_keep_the_number() -> None:
    group = Group(total=1e9, supply=450.0)
    group.run(30 * MINUTE)
    before, group.hidden, group.supply = group.desired, True, 1.0
    decisions = group.run(30 * MINUTE)
    assert {decision.desired for decision in decisions} == {before}
    assert {decision.active.reason for decision in decisions} == {"MetricsUnknown"}


def test_pods_that_load_their_models_for_long_are_kept() -> None:
    group = Group(total=1e9, pods=6, is_loading=True)
    decisions = group.run(30 * MINUTE)
    assert {decision.desired for decision in decisions} == {6}
    assert {decision.active.reason for decision in decisions} == {"MetricsUnknown"}
    group.is_loading = False
    assert group.run(5 * MINUTE)[-1].desired > 6


def test_a_new_operator_removes_no_pod_for_a_window() -> None:
    group = Group(total=1e9, supply=70.0, pods=4)
    group.run(4 * MINUTE)
    group.memory = InferenceMemory(chain=Memory(since=group.now))
    assert {decision.desired for decision in group.run(4 * MINUTE)} == {4}
    assert group.run(10 * MINUTE)[-1].desired < 4


def test_a_new_attempt_is_measured_by_itself() -> None:
    group = Group(total=1e9, supply=450.0)
    group.run(30 * MINUTE)
    before = group.desired
    group.rows = group.busy = 0.0
    group.attempt = 2
    assert group.step().active.reason == "MetricsUnknown"
    assert {decision.desired for decision in group.run(30 * MINUTE)} == {before}


def test_bounds_that_change_hold_at_once_without_metrics() -> None:
    group = Group(total=1e9, hidden=True)
    group.run(MINUTE)
    group.least = 3
    assert group.step().desired == 3


def test_saturated_groups_are_the_bottleneck_of_data_workers() -> None:
    group = Group(total=1e9, most=2)
    group.run(10 * MINUTE)
    found = find_bottleneck("large", group.memory)
    assert found is not None
    assert found.stage == "Inference"
    assert "large are 100% busy" in found.message


NUMBERS = st.sampled_from([0.0, 5e-324, 1.0, 7.5, 1e18]) | st.floats(0.0, 1e18)
COUNTERS = st.none() | st.builds(
    InferenceCounters, workers=NUMBERS, waiting=NUMBERS, rows=NUMBERS, busy_seconds=NUMBERS
)
SAMPLES = st.tuples(COUNTERS, st.none() | st.floats(0.0, 1.0), st.sampled_from([0.0, 15.0, 600.0]))
SLOW = InferenceCounters(workers=1e18, waiting=1e18, rows=1e18, busy_seconds=1e18)


@given(
    samples=st.lists(SAMPLES, min_size=1, max_size=40),
    bounds=st.tuples(st.integers(1, 20), st.integers(0, 20)),
    target=st.none() | st.integers(1, 10**6),
)
@example([(replace(SLOW, rows=n * 1e17), 0.01 * n, 15.0) for n in range(9)], (1, 5), 1)
def test_the_number_is_within_its_bounds_whatever_a_driver_reports(
    samples: list[tuple[InferenceCounters | None, float | None, float]],
    bounds: tuple[int, int],
    target: int | None,
) -> None:
    least, most = bounds[0], sum(bounds)
    rules = InferenceRules(
        bounds=Rules(min_workers=least, max_workers=most), processes=2, target_seconds=target
    )
    memory, desired, now = InferenceMemory(chain=Memory(since=0.0)), most, 0.0
    for counters, done, seconds in samples:
        now += seconds
        sample = InferenceSample(
            at=now,
            attempt=1,
            desired=desired,
            elapsed_seconds=now,
            counters=counters,
            done=done,
        )
        decision, memory = decide_inference(memory, sample, rules)
        assert least <= decision.desired <= most
        if decision.active.reason == "MetricsUnknown":
            assert decision.desired == desired
        desired = decision.desired
    assert len(memory.samples) <= 5
