"""The usage of a run: sums equal the integral of what it held, whenever passes come."""

import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples
from world import SETTINGS, World, running

from dataset_operator.api import DATA_WORKERS, ROLE_LABEL, TRAINERS, Role
from dataset_operator.kube.observe import parse_pod
from dataset_operator.observed import Pod, Progress
from dataset_operator.plan.usage import UPDATE_SECONDS, WATCHED_SECONDS
from dataset_operator.settings import parse_settings

GPUS = 4
SUMS = ("gpuSeconds", "gpuMeasuredSeconds", "gpuIdleSeconds", "dataWorkerSeconds")


BEGUN = running(trainers={"replicas": 1, "gpusPerReplica": GPUS})


@dataclass
class Life:
    """A pod by its moments, in seconds since the run began."""

    role: Role
    scheduled: int
    gone: int
    is_listed_after: bool = False  # its object stays when it has ended

    def seen(self, index: int, began: datetime, now: int) -> Pod | None:
        if now < self.scheduled or (now >= self.gone and not self.is_listed_after):
            return None
        return Pod(
            name=f"held-{index}",
            uid=f"held-{index}",
            role=self.role,
            ready=True,
            scheduled=began + timedelta(seconds=self.scheduled),
            over=began + timedelta(seconds=self.gone) if now >= self.gone else None,
        )

    def held_until(self, now: int) -> int:
        return max(0, min(self.gone, now) - self.scheduled)


@dataclass
class Story:
    """A run whose pods are held as their lives say; every pass may be another operator's."""

    lives: list[Life]
    world: World = field(default_factory=lambda: copy.deepcopy(BEGUN))
    at: int = 0

    def __post_init__(self) -> None:
        self.began = self.world.now

    def step(self, seconds: int) -> Any:
        self.at += seconds
        found = [life.seen(i, self.began, self.at) for i, life in enumerate(self.lives)]
        self.world.lingering = tuple(pod for pod in found if pod is not None)
        return self.world.step(seconds)

    @property
    def usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = self.world.status.get("usage", {})
        return usage

    @property
    def accounted_until(self) -> int:
        until = datetime.fromisoformat(self.usage["accounted"]["time"])
        return int((until - self.began).total_seconds())

    def count(self, role: Role) -> int:
        """The truth, until the moment that is accounted for."""
        until = self.accounted_until
        return sum(life.held_until(until) for life in self.lives if life.role == role)


def test_a_run_without_trainers_uses_no_gpu_seconds() -> None:
    world = running(output={"parquet": {"uri": "kept/"}})
    story = Story([Life(DATA_WORKERS, 0, 600)], world=world)
    world.progress = Progress(production_wait_ratio=1.0)
    for _ in range(10):
        story.step(60)
    assert story.usage["dataWorkerSeconds"] == 600
    assert story.usage["gpuSeconds"] == story.usage["gpuMeasuredSeconds"] == 0
    assert story.usage["accounted"]["gpusPerTrainer"] == 0


LIVES = st.lists(
    st.builds(
        lambda role, scheduled, seconds: Life(role, scheduled, scheduled + seconds),
        st.sampled_from([TRAINERS, DATA_WORKERS]),
        st.integers(0, 900),
        st.integers(0, 900),
    ),
    max_size=6,
)
GAPS = st.lists(st.one_of(st.integers(0, 90), st.integers(0, 2000)), min_size=1, max_size=12)


@settings(max_examples=examples(40), deadline=None)
@given(LIVES, GAPS)
def test_what_tells_its_moments_is_counted_exactly_whenever_somebody_looks(
    lives: list[Life], gaps: list[int]
) -> None:
    for life in lives:
        life.is_listed_after = True
    story = Story(lives)
    for gap in gaps:
        before = dict(story.usage)
        story.step(gap)
        if not story.usage:
            continue
        assert story.usage["gpuSeconds"] == GPUS * story.count(TRAINERS)
        assert story.usage["dataWorkerSeconds"] == story.count(DATA_WORKERS)
        held = any(life.scheduled <= story.at < life.gone for life in lives)
        assert not held or story.at - story.accounted_until < UPDATE_SECONDS
        assert all(story.usage[name] >= before.get(name, 0) for name in SUMS)


@settings(max_examples=examples(20), deadline=None)
@given(LIVES, GAPS)
def test_what_is_gone_without_a_word_is_missed_by_a_gap_at_most(
    lives: list[Life], gaps: list[int]
) -> None:
    story, slack, over = Story(lives), {TRAINERS: 0, DATA_WORKERS: 0}, 0
    for gap in gaps:
        before, start = dict(story.usage), story.at
        story.step(gap)
        for life in lives:
            if start < life.gone <= story.at:
                slack[life.role] += gap + UPDATE_SECONDS
        over += WATCHED_SECONDS * sum(start < life.gone <= story.at for life in lives)
        if not story.usage:
            continue
        for role, counted in (
            (TRAINERS, story.usage["gpuSeconds"] / GPUS),
            (DATA_WORKERS, story.usage["dataWorkerSeconds"]),
        ):
            assert abs(counted - story.count(role)) <= slack[role]
            assert counted - story.count(role) <= over  # never beyond what somebody watched
        assert all(story.usage[name] >= before.get(name, 0) for name in SUMS)


@settings(max_examples=examples(20), deadline=None)
@given(LIVES, GAPS, st.lists(st.none() | st.floats(0, 1), min_size=12, max_size=12))
def test_idle_seconds_are_a_part_of_the_measured_ones(
    lives: list[Life], gaps: list[int], waits: list[float | None]
) -> None:
    story, exact = Story(lives), 0.0
    for gap, wait in zip(gaps, waits, strict=False):
        before = dict(story.usage)
        story.world.progress = Progress(production_wait_ratio=wait)
        story.step(gap)
        if not story.usage:
            continue
        measured = story.usage["gpuMeasuredSeconds"]
        exact += (wait or 0.0) * (measured - before.get("gpuMeasuredSeconds", 0))
        assert story.usage["gpuIdleSeconds"] <= measured <= story.usage["gpuSeconds"]
        assert exact == pytest.approx(
            story.usage["gpuIdleSeconds"]
            + float(story.usage["accounted"]["gpuIdleRemainderSeconds"]),
            abs=0.05,
        )


STEADY = [Life(TRAINERS, 0, 10**6), *(Life(DATA_WORKERS, 0, 10**6) for _ in range(3))]


def steady() -> Story:
    story = Story(copy.deepcopy(STEADY))
    story.step(1)
    return story


def test_a_steady_run_is_written_once_a_minute() -> None:
    story = steady()
    written = 0
    for _ in range(60):
        before = copy.deepcopy(story.world.status)
        decision = story.step(10)
        written += before != story.world.status
        assert decision.again_seconds is not None
        assert decision.again_seconds <= UPDATE_SECONDS
    assert written == 10


def test_after_a_time_without_an_operator_what_is_there_is_counted_and_idle_is_not_known() -> None:
    story = steady()
    story.world.progress = Progress(production_wait_ratio=0.5)
    story.step(3600)
    assert story.usage["gpuSeconds"] == GPUS * 3601
    assert story.usage["dataWorkerSeconds"] == 3 * 3601
    assert story.usage["gpuMeasuredSeconds"] == 0
    story.step(60)
    assert story.usage["gpuMeasuredSeconds"] == GPUS * 60
    assert story.usage["gpuIdleSeconds"] == GPUS * 30


@pytest.mark.parametrize(
    ("progress", "idle"),
    [
        pytest.param(Progress(gpu_utilization_ratio=0.9), 24, id="by utilisation"),
        pytest.param(
            Progress(gpu_utilization_ratio=0.9, production_wait_ratio=0.5),
            24,
            id="by utilisation, though waits are known too",
        ),
        pytest.param(Progress(production_wait_ratio=0.25), 60, id="by the wait for data"),
        pytest.param(Progress(gpu_utilization_ratio=1.0), 0, id="not at all"),
    ],
)
def test_idle_is_what_is_told(progress: Progress, idle: int) -> None:
    story = steady()
    story.world.progress = progress
    story.step(60)
    assert story.usage["gpuMeasuredSeconds"] == GPUS * 60
    assert story.usage["gpuIdleSeconds"] == idle


@pytest.mark.parametrize("progress", [None, Progress(ratio=0.5)])
def test_what_nobody_tells_is_not_idle_and_not_busy(progress: Progress | None) -> None:
    story = steady()
    story.world.progress = progress
    story.step(60)
    assert story.usage["gpuSeconds"] == GPUS * 61
    assert (story.usage["gpuMeasuredSeconds"], story.usage["gpuIdleSeconds"]) == (0, 0)


def test_small_shares_of_idle_add_up() -> None:
    story = steady()
    story.world.progress = Progress(gpu_utilization_ratio=0.999)
    for _ in range(100):
        story.step(60)
    assert story.usage["gpuIdleSeconds"] == 24  # 0.24 s each time


def test_a_write_that_is_lost_counts_nothing_twice() -> None:
    story = steady()
    before = copy.deepcopy(story.world.document)
    story.step(60)
    story.world.document = before
    story.step(1)
    assert story.usage["dataWorkerSeconds"] == 3 * 62


def test_a_pod_that_ends_as_it_is_looked_at_is_held_no_more() -> None:
    story = Story([Life(DATA_WORKERS, 0, 0, is_listed_after=True), Life(DATA_WORKERS, 0, 100)])
    story.step(0)
    assert story.usage["accounted"]["dataWorkers"] == 1
    story.step(60)
    assert story.usage["dataWorkerSeconds"] == 60


def test_a_clock_that_is_behind_takes_nothing_away() -> None:
    story = steady()
    story.step(60)
    before = dict(story.usage)
    story.world.now -= timedelta(seconds=100)
    story.world.step()
    assert story.usage == before


def test_attempts_share_their_runs_usage_and_another_run_begins_at_0() -> None:
    story = steady()
    story.step(60)
    story.world.end_job("FAILED", exit_code=1)
    story.step(60)
    assert story.usage["dataWorkerSeconds"] == 3 * 121
    story.world.edit(training={"batchSize": 7}, updatePolicy="Restart")
    story.step(60)
    story.step(60)
    story.step(60)
    assert story.world.status["run"] == 2
    assert story.usage["dataWorkerSeconds"] <= 3 * 120


def test_a_finished_run_is_counted_until_its_pods_are_gone_and_then_written_no_more() -> None:
    story = steady()
    story.world.end_job("SUCCEEDED")
    story.step(10)
    assert story.world.condition("Complete") == ("True", "Succeeded")
    for life in story.lives:
        life.gone = 30
    story.step(20)
    assert story.usage["dataWorkerSeconds"] == 3 * 31
    before = copy.deepcopy(story.world.status)
    decision = story.step(3600)
    assert story.world.status == before
    assert decision.again_seconds is None


def test_a_node_that_is_lost_lets_its_pods_go_when_they_should_have_gone() -> None:
    story = steady()
    story.step(60)
    began = story.began
    pod = replace(story.world.lingering[-1], ends=began + timedelta(seconds=90))
    story.world.lingering = (pod,)
    story.world.step(3600)
    assert story.usage["accounted"]["dataWorkers"] == 0
    assert story.usage["dataWorkerSeconds"] == 3 * 61 + 29


def test_pods_of_the_cluster_before_are_counted_with_the_gpus_that_they_had() -> None:
    story = steady()
    story.step(60)
    story.world.edit(trainers={"replicas": 1, "gpusPerReplica": 1}, updatePolicy="Restart")
    for _ in range(4):
        story.step(10)  # stopped, given back; its pods are still there
    assert story.usage["accounted"]["gpusPerTrainer"] == GPUS
    story.step(60)
    assert story.usage["gpuSeconds"] == GPUS * story.accounted_until


PRICED = {"prices": {"gpuHour": 2.5, "dataWorkerHour": 0.2, "currency": "EUR"}}


def test_prices_turn_it_into_a_cost() -> None:
    story = steady()
    assert "cost" not in story.usage
    story.world.settings = parse_settings({"runtimeImage": "runtime:1", **PRICED})
    story.step(3599)
    assert (story.usage["cost"], story.usage["currency"]) == ("10.60", "EUR")
    story.world.settings = SETTINGS
    story.step(60)
    assert "cost" not in story.usage


SCHEDULED, READY, ENDED = (f"2026-01-01T00:0{minute}:00Z" for minute in (1, 2, 3))
TERMINATED = {"name": "ray", "state": {"terminated": {"finishedAt": ENDED}}}


def observed_pod(**status: Any) -> Pod:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": SCHEDULED}
    labels = {ROLE_LABEL: DATA_WORKERS}
    metadata = {"name": "a", "uid": "a", "labels": labels, "creationTimestamp": SCHEDULED}
    conditions = [scheduled, *status.pop("conditions", ())]
    return parse_pod({"metadata": metadata, "status": {"conditions": conditions, **status}})


@pytest.mark.parametrize(
    ("status", "over"),
    [
        pytest.param({"phase": "Running"}, None, id="it runs"),
        pytest.param(
            {"phase": "Running", "containerStatuses": [TERMINATED]}, None, id="it starts again"
        ),
        pytest.param({"phase": "Failed", "containerStatuses": [TERMINATED]}, ENDED, id="it failed"),
        pytest.param(
            {
                "phase": "Failed",
                "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": READY}],
            },
            READY,
            id="it was evicted, and no container is told of",
        ),
    ],
)
def test_a_pod_holds_its_node_from_its_placement_to_its_end(
    status: dict[str, Any], over: str | None
) -> None:
    pod = observed_pod(**status)
    assert pod.scheduled == datetime.fromisoformat(SCHEDULED)
    assert pod.over == (datetime.fromisoformat(over) if over else None)


def test_a_pod_without_a_node_holds_none() -> None:
    waits = {"type": "PodScheduled", "status": "False", "lastTransitionTime": READY}
    assert observed_pod(phase="Pending", conditions=[waits]).scheduled is None
