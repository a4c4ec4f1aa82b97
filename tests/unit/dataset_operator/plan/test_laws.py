"""The law that a spec names decides, and no other."""

import json
from dataclasses import dataclass, field

import pytest
from autoscaling_story import Story
from hypothesis import given
from hypothesis import strategies as st
from world import SETTINGS, running

from dataset_operator.autoscaling import Decision, Memory, Pods, Rules, Sample, decide
from dataset_operator.observed import Progress
from dataset_operator.plan.data_workers.chosen_policy import (
    SETTLE_SECONDS,
    GpuPolicyMemory,
    decide_by,
    restore_memory,
    save_memory,
)
from pipeline_runtime.config import Autoscaling, ScalingSignal, ScalingStatus

PERIOD = 15.0
MINUTE = 60.0


@dataclass
class Silent:
    """Trainers that tell nothing of ours; `need` workers keep their GPUs busy."""

    need: float = 10.0
    desired: int = 4
    gpu: float | None = None  # instead of what the workers make of it
    hidden: bool = False
    attempt: int = 1
    now: float = 0.0
    memory: Memory = field(default_factory=lambda: Memory(since=0.0))
    rules: Rules = field(default_factory=lambda: Rules(min_workers=1, max_workers=20))

    def step(self, signal: ScalingSignal = "GpuUtilization") -> Decision:
        self.now += PERIOD
        busy = min(1.0, self.desired / self.need) if self.gpu is None else self.gpu
        sample = Sample(
            at=self.now,
            attempt=self.attempt,
            desired=self.desired,
            pods=Pods(ready=self.desired, start_seconds=5.0),
            gpu_utilization=None if self.hidden else busy,
        )
        decision, self.memory = decide_by(signal, self.memory, sample, self.rules)
        self.desired = decision.desired
        return decision

    def run(self, seconds: float) -> list[Decision]:
        return [self.step() for _ in range(round(seconds / PERIOD))]


def test_rows_are_the_signal_unless_the_spec_says_otherwise() -> None:
    assert Autoscaling().signal == "Rows"


def test_a_silent_trainers_gpus_get_workers_while_these_raise_them() -> None:
    run = Silent()
    run.run(120 * MINUTE)
    assert 9 <= run.desired <= 11


def test_a_trainer_that_tells_rows_is_decided_by_rows_as_ever() -> None:
    story = Story(demand=1000, rate=100, workers=8)
    memory, by_rows = Memory(since=0.0), Memory(since=0.0)
    for _ in range(40):
        story._pass()
        sample = story.sample()
        chosen, memory = decide_by("Rows", memory, sample, story.rules)
        plain, by_rows = decide(by_rows, sample, story.rules)
        assert chosen == plain
        story._ask(chosen.desired)
    assert memory == by_rows


def test_counters_that_are_missing_never_hand_over_to_the_other_law() -> None:
    run = Silent(gpu=0.2)
    decisions = [run.step("Rows") for _ in range(240)]
    assert {decision.desired for decision in decisions} == {4}
    assert {decision.active.reason for decision in decisions} == {"MetricsUnknown"}
    assert "spec.autoscaling.signal GpuUtilization" in decisions[-1].active.message


def test_gpus_that_are_not_known_change_nothing() -> None:
    run = Silent()
    run.run(20 * MINUTE)
    before, run.hidden = run.desired, True
    decisions = run.run(20 * MINUTE)
    assert {decision.desired for decision in decisions} == {before}
    assert {decision.active.reason for decision in decisions} == {"MetricsUnknown"}


@pytest.mark.parametrize("starts_anew", [False, True], ids=["a first attempt", "another attempt"])
def test_an_attempt_that_starts_is_not_judged_by_its_idle_gpus(starts_anew: bool) -> None:
    run = Silent(need=4.0)
    if starts_anew:
        run.run(20 * MINUTE)
        run.attempt = 2
    before, run.gpu = run.desired, 0.0
    assert {decision.desired for decision in run.run(20 * MINUTE)} == {before}
    run.gpu = 0.1
    decisions = run.run(SETTLE_SECONDS)
    assert {decision.desired for decision in decisions} == {before}
    assert "180 s" in decisions[-1].recommended.message


def test_a_spec_that_names_gpus_has_the_operator_go_by_them() -> None:
    settings = SETTINGS.model_copy(update={"autoscale": True})
    bounds = {"minReplicas": 2, "maxReplicas": 40}
    for signal, replicas in (("GpuUtilization", 3), ("Rows", 2)):
        world = running(settings, dataWorkers=bounds, autoscaling={"signal": signal})
        world.progress = Progress(gpu_utilization_ratio=0.3)
        for _ in range(round((SETTLE_SECONDS + MINUTE) / PERIOD)):
            world.step(PERIOD)
        assert world.ray_cluster is not None
        assert world.ray_cluster["spec"]["workerGroupSpecs"][1]["replicas"] == replicas


def restart(run: Silent) -> None:
    """Restart the operator, which goes on from the status."""
    written = json.dumps(save_memory(run.memory).to_document())
    saved = ScalingStatus.model_validate_json(written, by_alias=True, by_name=False)
    run.memory = restore_memory(saved, run.now, run.now, run.attempt)


def test_what_did_not_help_is_not_tried_again_by_the_next_operator() -> None:
    run = Silent(gpu=0.5)  # whatever the workers do
    run.run(20 * MINUTE)
    assert run.desired == 4
    restart(run)
    assert {decision.desired for decision in run.run(10 * MINUTE)} == {4}


def test_a_change_that_is_being_tried_is_judged_by_the_next_operator() -> None:
    for gpu, kept in ((0.9, True), (0.5, False)):
        run = Silent(gpu=0.5)
        while run.desired == 4:
            run.step()
        tried = run.desired
        restart(run)
        run.gpu = gpu
        decisions = run.run(SETTLE_SECONDS + MINUTE)
        assert decisions[0].desired == tried
        assert (4 in {decision.desired for decision in decisions}) != kept


def test_what_was_tried_in_another_attempt_says_nothing() -> None:
    run = Silent(gpu=0.5)
    run.run(20 * MINUTE)
    saved = save_memory(run.memory)
    assert saved.gpu is not None
    assert saved.gpu.failed_up is not None
    assert not isinstance(restore_memory(saved, run.now, run.now, 2), GpuPolicyMemory)


def test_its_memory_does_not_grow() -> None:
    run = Silent()
    run.run(60 * MINUTE)
    first = len(repr(run.memory))
    run.run(600 * MINUTE)
    assert len(repr(run.memory)) < 2 * first


def test_the_signal_may_change_while_it_runs() -> None:
    run = Silent()
    run.run(10 * MINUTE)
    assert isinstance(run.memory, GpuPolicyMemory)
    before = run.desired
    assert run.step("Rows").desired == before
    assert run.step("GpuUtilization").desired in range(1, 21)


@given(
    told=st.lists(st.none() | st.floats(0.0, 1.0), min_size=1, max_size=80),
    bounds=st.tuples(st.integers(1, 20), st.integers(0, 20)),
    attempts=st.lists(st.booleans(), max_size=80),
)
def test_the_number_is_within_its_bounds_whatever_gpus_tell(
    told: list[float | None], bounds: tuple[int, int], attempts: list[bool]
) -> None:
    rules = Rules(min_workers=bounds[0], max_workers=sum(bounds))
    run = Silent(desired=rules.max_workers, rules=rules)
    for index, value in enumerate(told):
        run.attempt += index < len(attempts) and attempts[index]
        run.gpu, run.hidden, before = value, value is None, run.desired
        run.step()
        assert rules.min_workers <= run.desired <= rules.max_workers
        if value is None:
            assert run.desired == before
