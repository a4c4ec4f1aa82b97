"""The rules of one stage have no order; the stages have one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from random import Random

import pytest
from trained import draining, request_number, trained
from world import World, build_document, running

from dataset_operator.observed import CatalogTables, Observed, Progress, Refusal
from dataset_operator.plan import STAGES, Stage, decide
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import Verdict, look_again, set_condition
from dataset_operator.readings import Readings
from pipeline_runtime.config import MaterializationStatus

NUM_ORDERS = 3
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
Seen = tuple[Observed, datetime]


def shuffle(seed: int) -> tuple[Stage, ...]:
    """Return the stages with the rules of each in another order."""
    random = Random(seed)
    return tuple(
        stage._replace(rules=tuple(random.sample(stage.rules, len(stage.rules))))
        for stage in STAGES
    )


def watch(world: World, *events: Callable[[World], object]) -> Iterator[Seen]:
    """Yield what the operator observes while events happen, one after another."""
    world.readings = Readings()
    for happen in (lambda world: None, *events):
        happen(world)
        for seconds in (0, 0, 15, 45, 120):
            world.now += timedelta(seconds=seconds)
            observed = world.observe()
            pods = tuple(replace(pod, scheduled=pod.created or BEGAN) for pod in observed.pods)
            observed = replace(observed, pods=pods)
            yield observed, world.now
            yield replace(observed, refusal=Refusal(message="no", is_invalid=False)), world.now
            world.step()


def suspend(world: World) -> None:
    world.edit(suspend=True)


def resume(world: World) -> None:
    world.edit(suspend=False)


def edit_run(world: World) -> None:
    world.edit(seed=7)


def edit_cluster(world: World) -> None:
    world.edit(env=[{"name": "A", "value": "b"}], updatePolicy="Restart")


def break_spec(world: World) -> None:
    world.edit(pipeline=[{"filter": {"where": "1 +"}}])


def let_queue_take(world: World) -> None:
    assert world.ray_cluster is not None
    world.ray_cluster["spec"]["suspend"] = True
    world.is_evicted = True


def fail(world: World) -> None:
    world.end_job("FAILED", message="boom")


def succeed(world: World) -> None:
    world.end_job("SUCCEEDED")


def lose_ray(world: World) -> None:
    world.reachable = False


def see_progress(world: World) -> None:
    table = MaterializationStatus(
        catalog="lake", table="a.b", state="Miss", partitions=4, complete_partitions=1
    )
    world.progress = Progress(ratio=0.4, tables=CatalogTables(materialization=table))


CACHE = {"iceberg": {"catalog": "lake", "table": "a.b"}, "bucketBy": "id", "buckets": 4}
MATERIALIZED = {
    "catalogs": [{"name": "lake", "type": "Sql", "uri": "sqlite:////mnt/lake.db"}],
    "dataset": {"iceberg": {"catalog": "lake", "table": "a.rows"}, "rowKey": ["id"]},
    "pipeline": [{"materialize": CACHE}],
}
STORIES: dict[str, Callable[[], Iterator[Seen]]] = {
    "begins": lambda: watch(World(build_document())),
    "is suspended": lambda: watch(running(), suspend, resume),
    "is edited": lambda: watch(running(), edit_run, edit_cluster, break_spec),
    "is edited and suspended": lambda: watch(
        running(), lambda world: (edit_run(world), suspend(world))
    ),
    "is queued": lambda: watch(running(), lose_ray, let_queue_take),
    "loses its head": lambda: watch(running(), World.lose_head, World.lose_cluster),
    "fails": lambda: watch(running(backoffLimit=1), fail, fail, edit_cluster),
    "is late": lambda: watch(running(activeDeadlineSeconds=100)),
    "succeeds": lambda: watch(running(), succeed, World.delete),
    "is deleted": lambda: watch(running(), World.delete),
    "materializes": lambda: watch(running(**MATERIALIZED), see_progress, fail),
    "drains": lambda: watch(draining().world, World.lose_cluster),
    "is scaled": lambda: watch(trained(demand=350.0).world, lambda world: request_number(world, 5)),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_rules_of_one_stage_have_no_order(story: Callable[[], Iterator[Seen]]) -> None:
    orders = [shuffle(seed) for seed in range(NUM_ORDERS)]
    for observed, now in story():
        decision = decide(observed, now)
        for stages in orders:
            assert decide(observed, now, stages) == decision


def test_rules_of_each_stage_act_together() -> None:
    """Otherwise their order would not matter in the test above, whatever they did."""
    alone = {stage.name for stage in STAGES if len(stage.rules) > 1}
    assert alone
    for observed, now in chain.from_iterable(story() for story in STORIES.values()):
        situation = Situation.begin(observed, now)
        for stage in STAGES:
            if sum(verdict != Verdict() for verdict in stage.find_verdicts(situation)) > 1:
                alone.discard(stage.name)
            situation = stage.judge(situation)
    assert not alone


def count_attempts(situation: Situation) -> Verdict | None:
    """Report the attempts in a condition of its own: the smallest rule."""
    if situation.attempt == 0:
        return None
    message = f"{situation.attempt} attempts so far"
    return set_condition("Attempted", True, "Counted", message) + look_again(7)


def test_a_rule_is_a_function_in_a_stage() -> None:
    world = running()
    stages = (Stage("toy", (count_attempts,)), *STAGES)
    decision = decide(world.observe(), world.now, stages)
    found = decision.status.find("Attempted")
    assert found is not None
    assert (found.status, found.reason, found.message) == ("True", "Counted", "1 attempts so far")
    assert [event.reason for event in decision.events] == ["Counted"]
    assert decision.again_seconds == 7
