"""The number of ranks: of the cluster's side, but in order, where a checkpoint fits its own alone.

An attempt has the ranks of the cluster that it runs on, whatever the spec says meanwhile.
"""

import copy
from typing import Any

import pytest
from facts import assert_told
from world import World, build_document, running

from dataset_operator.api import TRAINERS, TRAINERS_ANNOTATION
from dataset_operator.builders.frozen import read_trainers, thaw_trainers
from dataset_operator.observed import Progress, Refusal
from dataset_operator.plan.attempt import backoff_seconds
from dataset_operator.plan.outcome import Submit
from pipeline_runtime.config import Trainers

ONE, TWO = {"trainers": {"replicas": 1}}, {"trainers": {"replicas": 2}}
TWO_GPUS = {"trainers": {"replicas": 1, "gpusPerReplica": 2}}
IN_ORDER = {"pipelineOptions": {"preserveOrder": True}}
RESTART = {"updatePolicy": "Restart"}
QUOTA = Refusal(message="exceeded quota: team", is_invalid=False)
BAD = Refusal(message="spec.trainers.template: unknown field", is_invalid=True)


def fail(world: World) -> None:
    """The attempt fails, and the pause after it is over."""
    world.end_job("FAILED", exit_code=1)
    world.settle()
    world.step(seconds=backoff_seconds(world.status["failures"]))
    world.settle()


def counts(world: World) -> list[int]:
    return [world.status[field] for field in ("run", "attempt", "failures")]


def ranks_of(submit: Submit) -> tuple[int, int]:
    trainers = submit.experiment["spec"]["trainers"]
    return trainers["replicas"], trainers.get("gpusPerReplica", 1)


def trainers_of(world: World) -> int:
    """Trainers of the cluster that is there."""
    assert world.ray_cluster is not None
    number: int = world.ray_cluster["spec"]["workerGroupSpecs"][0]["replicas"]
    return number


@pytest.mark.parametrize(("before", "after"), [(ONE, TWO), (TWO, ONE), (ONE, TWO_GPUS)])
def test_an_attempt_that_trains_goes_on_while_more_or_fewer_ranks_wait(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    world = running(**before)
    guards, cluster = copy.deepcopy(world.children), copy.deepcopy(world.ray_cluster)
    gpus = world.status["gpus"]
    world.edit(**after)
    world.settle()
    assert world.condition("Accepted") == ("True", "ChangePending")
    assert world.condition("ClusterReady") == ("True", "PodsReady")
    assert world.condition("Training") == ("True", "Running")
    assert (world.ray_cluster, world.status["gpus"]) == (cluster, gpus)
    budget = world.owner.disruption_budget(TRAINERS)
    assert world.children[budget] == guards[budget]


@pytest.mark.parametrize(("before", "after"), [(ONE, TWO), (TWO, ONE), (ONE, TWO_GPUS)])
def test_the_next_attempt_resumes_on_as_many_ranks_as_are_wanted_by_then(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    world = running(**before)
    head = world.head_uid
    world.edit(**after)
    fail(world)
    assert "Warning NodeLost" not in world.events
    assert world.head_uid != head
    assert counts(world) == [1, 2, 1]
    first, second = world.submitted
    assert (second.run_id, second.resume) == (first.run_id, True)
    assert second.experiment["spec"]["trainers"] == after["trainers"]
    assert trainers_of(world) == after["trainers"]["replicas"]
    assert world.condition("Accepted") == ("True", "ValidSpec")


def test_ranks_without_a_gpu_are_counted_of_those_that_train() -> None:
    world = running()
    world.edit(**TWO)
    world.progress = Progress(cpu_ranks=1)
    world.settle()
    [said] = [c["message"] for c in world.status["conditions"] if c["type"] == "Training"]
    assert_told(said, "attempt 1 … 1 of 1 … GPU")


@pytest.mark.parametrize("refused", [QUOTA, BAD])
def test_an_attempt_has_the_ranks_of_the_cluster_while_another_is_refused(
    refused: Refusal,
) -> None:
    world = running()
    world.refused = refused
    world.edit(**TWO_GPUS)
    fail(world)
    assert world.condition("Training") == ("True", "Running")
    assert ranks_of(world.submitted[-1]) == (1, 1)
    world.refused = None
    fail(world)
    assert ranks_of(world.submitted[-1]) == (1, 2)
    assert counts(world) == [1, 3, 2]


@pytest.mark.parametrize("annotations", [None, {}, {TRAINERS_ANNOTATION: "two"}])
def test_a_cluster_that_does_not_say_its_trainers_has_those_that_are_wanted(
    annotations: dict[str, str] | None,
) -> None:
    wanted = Trainers(replicas=2)
    assert (
        thaw_trainers(read_trainers({"metadata": {"annotations": annotations}}), wanted) == wanted
    )


def test_in_order_another_number_of_ranks_is_another_run() -> None:
    world = running(**IN_ORDER)
    world.edit(**TWO)
    world.settle()
    assert world.condition("Accepted") == ("True", "ChangePending")
    fail(world)
    assert counts(world) == [1, 2, 1]
    assert ranks_of(world.submitted[-1]) == (1, 1)
    world.end_job("SUCCEEDED")
    world.settle()
    assert counts(world) == [2, 3, 0]
    assert not world.submitted[-1].resume
    assert ranks_of(world.submitted[-1]) == (2, 1)
    assert world.submitted[-1].run_id != world.submitted[0].run_id


def test_in_order_a_run_begins_with_its_own_ranks_or_waits() -> None:
    world = running(**IN_ORDER)
    world.refused = QUOTA
    world.edit(**TWO_GPUS, **RESTART)
    world.settle()
    assert counts(world) == [2, 1, 0]
    assert world.condition("ClusterReady") == ("False", "WaitingForPods")
    assert QUOTA.message in str(world.status["conditions"])
    world.refused = None
    world.settle()
    assert world.condition("Training") == ("True", "Running")
    assert ranks_of(world.submitted[-1]) == (1, 2)


def test_in_order_a_wait_for_ranks_survives_a_bad_edit() -> None:
    world = World(build_document(**IN_ORDER))
    world.settle()
    world.refused = QUOTA
    world.edit(**TWO, **RESTART)
    world.settle()
    world.edit(backoffLimit=-1)
    world.settle()
    assert len(world.submitted) == 1
