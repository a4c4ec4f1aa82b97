"""Events are warnings, emitted once, if somebody has to act; all others are Normal."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from facts import assert_told
from world import World, build_document, running

from dataset_operator.api import CLUSTER_READY, TRAINERS
from dataset_operator.cli.describe import build_summary
from dataset_operator.cli.next_steps import advise
from dataset_operator.documents import format_time
from dataset_operator.observed import Progress, Refusal
from dataset_operator.plan import decide
from dataset_operator.plan.ray_cluster import SILENCE_SECONDS
from dataset_operator.shapes import parse_status

TIME = "2026-01-01T00:00:00Z"
FORBIDDEN = Refusal(message='networkpolicies "clicks" is forbidden', is_invalid=False)


def test_starting_pods_cause_no_warning() -> None:
    world = World(build_document(), unready={TRAINERS}, waiting="")
    world.settle()
    assert "Normal WaitingForPods" in world.events
    assert not any(event.startswith("Warning") for event in world.events)


def test_pods_that_cannot_start_cause_a_warning() -> None:
    world = World(build_document(), unready={TRAINERS}, waiting="")
    world.settle()
    for waiting in ("0/3 nodes have a GPU", "0/4 nodes have a GPU", "0/4 nodes have a GPU"):
        world.waiting = waiting
        world.step(30)
    assert world.events.count("Warning WaitingForPods") == 1


@pytest.mark.parametrize(
    ("befallen", "reason"),
    [
        ({"refused": Refusal(message="exceeded quota", is_invalid=False)}, "ClusterRefused"),
        ({"foreign": ("Secret clicks",)}, "NameCollision"),
        ({"unready": {TRAINERS}}, "WaitingForPods"),
    ],
    ids=["a quota", "a name that is taken", "no node has room, which is known at once"],
)
def test_obstacles_of_a_cluster_cause_a_warning(befallen: dict[str, Any], reason: str) -> None:
    world = World(build_document(), **befallen)
    world.settle()
    world.step(60)
    assert world.events.count(f"Warning {reason}") == 1


def test_a_silent_head_causes_a_warning_after_a_while() -> None:
    world = World(build_document(), reachable=False)
    world.settle()
    assert world.condition("ClusterReady") == ("True", "PodsReady")
    for _ in range(2):
        world.step(SILENCE_SECONDS)
    assert world.condition("ClusterReady") == ("False", "RayUnreachable")
    assert "connection refused" in world.status["conditions"][1]["message"]
    assert "port 8265" in advise(world.document, world.observe().status)
    world.reachable = True
    world.settle()
    assert world.condition("ClusterReady") == ("True", "PodsReady")
    assert world.condition("Training") == ("True", "Running")
    assert world.events.count("Warning RayUnreachable") == 1

    world.reachable = False  # a dead dashboard would hide the end of the driver
    world.step()
    world.step(SILENCE_SECONDS)
    assert world.condition("ClusterReady") == ("False", "RayUnreachable")
    assert world.status["phase"] == "Training"
    assert world.status["attempt"] == 1


def test_a_refused_object_is_reported_until_it_exists() -> None:
    world = running()
    policy = next(n for n, child in world.children.items() if child["kind"] == "NetworkPolicy")
    kept = world.children.pop(policy)
    for _ in range(3):  # as `Reconciler` does: a write fails, and it plans again
        world.document["status"] = world.decide().status.to_document()
        said = decide(replace(world.observe(), refusal=FORBIDDEN), world.now)
        world.document["status"] = said.status.to_document()
        world.events += [f"{event.type} {event.reason}" for event in said.events]
        assert world.condition("ClusterReady") == ("True", "OwnedObjectRefused")
        assert FORBIDDEN.message in str(world.status["conditions"])
    assert world.events.count("Warning OwnedObjectRefused") == 1
    world.children[policy] = kept
    world.settle()
    assert world.condition("ClusterReady") == ("True", "PodsReady")
    assert world.condition("Training") == ("True", "Running")


def training_message(world: World) -> str:
    [found] = [c for c in world.status["conditions"] if c["type"] == "Training"]
    return str(found["message"])


def test_trainers_without_a_gpu_are_reported() -> None:
    world = running(trainers={"replicas": 2, "gpusPerReplica": 1})
    for progress in (Progress(cpu_ranks=1), Progress(cpu_ranks=2), None, Progress(cpu_ranks=2)):
        world.progress = progress
        world.step(10)
    assert_told(training_message(world), "attempt 1 … 2 … GPU")
    assert world.condition("Training") == ("True", "Running")
    assert world.events.count("Warning GpusMissing") == 2  # one rank, then both


def test_damaged_checkpoints_are_reported_once() -> None:
    world = running(trainers={"replicas": 2, "gpusPerReplica": 1})
    damaged = Progress(damaged_checkpoints=3)
    for progress in (damaged, None, damaged, replace(damaged, cpu_ranks=2)):
        world.progress = progress
        world.step(10)
    assert_told(training_message(world), "attempt 1 … 3 … 2 … GPU")
    assert world.condition("Training") == ("True", "Running")
    assert world.events.count("Warning CheckpointsDamaged") == 1
    assert world.events.count("Warning GpusMissing") == 1


@pytest.mark.parametrize(
    ("trainers", "progress"),
    [
        ({"gpusPerReplica": 0}, Progress(cpu_ranks=1)),
        ({"gpusPerReplica": 1}, Progress(cpu_ranks=0)),
        ({"gpusPerReplica": 1}, Progress(ratio=0.5)),
    ],
    ids=["none was asked for", "all have one", "an older runtime does not say"],
)
def test_no_gpu_warning_without_missing_gpus(trainers: dict[str, Any], progress: Progress) -> None:
    world = running(trainers=trainers)
    world.progress = progress
    world.settle()
    assert "attempt 1" in training_message(world)
    assert "GPU" not in training_message(world)
    assert "Warning GpusMissing" not in world.events


ADVICE = {
    "more attempts failed than allowed": (
        [("Failed", "True", "BackoffLimitExceeded")],
        "… checkpoint",
    ),
    "it took too long": ([("Failed", "True", "DeadlineExceeded")], "… checkpoint"),
    "it never began": (
        [("Failed", "True", "PreRunningDeadlineExceeded")],
        "… checkpoint",
    ),
    "an edit waits while it trains": (
        [("Accepted", "True", "ChangePending"), ("Training", "True", "Running")],
        "… updatePolicy: Restart … checkpoint",
    ),
}


@pytest.mark.parametrize(("conditions", "says"), ADVICE.values(), ids=ADVICE)
def test_advice_names_what_an_edit_keeps(conditions: list[tuple[str, str, str]], says: str) -> None:
    names, more = ("type", "status", "reason"), {"message": "", "lastTransitionTime": TIME}
    known = [dict(zip(names, values, strict=True)) | more for values in conditions]
    status = {"conditions": known}
    assert_told(advise({"metadata": {"name": "clicks"}}, parse_status(status)), says)


def refuse_checkpoint(world: World) -> None:
    world.end_job("FAILED", exit_code=4, message="the checkpoint is of run abc")


# the event that fails a run; its reason; text in the condition besides the advice
ENDINGS: dict[str, tuple[Callable[[World], Any], str, str]] = {
    "more attempts failed than allowed": (
        lambda world: world.end_job("FAILED", exit_code=1, message="boom"),
        "BackoffLimitExceeded",
        "… experiments/clicks/ … JobFailed … boom",
    ),
    "it took too long": (lambda world: world.step(seconds=100), "DeadlineExceeded", "…"),
    "its checkpoint is refused": (
        refuse_checkpoint,
        "CheckpointRefused",
        "… the checkpoint is of run abc",
    ),
    "its output is refused": (
        lambda world: world.end_job("FAILED", exit_code=5, message="holds the table of run abc"),
        "OutputRefused",
        "… holds the table of run abc",
    ),
}


@pytest.mark.parametrize(("befall", "reason", "cause"), ENDINGS.values(), ids=ENDINGS)
def test_a_failed_run_gives_advice_once(
    befall: Callable[[World], Any], reason: str, cause: str
) -> None:
    world = running(backoffLimit=0, activeDeadlineSeconds=100)
    befall(world)
    world.settle()
    [failed] = [c for c in world.status["conditions"] if c["type"] == "Failed"]
    assert failed["reason"] == reason
    advice = advise(world.document, world.observe().status)
    assert advice in failed["message"]
    assert_told(failed["message"], cause)
    summary = dict(build_summary(world.document, world.observe().status))
    assert summary["Next"] == advice
    assert_told(summary["Phase"], f"Failed{cause}")
    assert advice not in summary["Phase"]


def test_an_idle_kuberay_is_reported_after_a_minute() -> None:
    world = World(build_document())
    world.step()
    world.unready |= {"head", "trainers", "data-workers"}
    assert world.ray_cluster is not None
    world.ray_cluster["metadata"]["creationTimestamp"] = format_time(world.now)

    def without_pods() -> str:
        seen = replace(world.observe(), pods=())
        world.document["status"] = decide(seen, world.now).status.to_document()
        return str(
            next(c["message"] for c in world.status["conditions"] if c["type"] == CLUSTER_READY)
        )

    assert "KubeRay" not in without_pods()
    world.now += timedelta(seconds=61)
    assert "KubeRay" in without_pods()
    world.ray_cluster["status"] = {"state": "suspended"}
    assert "KubeRay" not in without_pods()
