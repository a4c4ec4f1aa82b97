"""The plan of an experiment, whatever happens to it: stories, and rules that hold in all."""

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from facts import assert_told
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples
from world import World, build_document, running

from dataset_operator.api import DATA_WORKERS, HEAD, TRAINERS
from dataset_operator.documents import parse_time
from dataset_operator.observed import Refusal
from dataset_operator.plan import decide
from dataset_operator.plan.attempt import backoff_seconds
from dataset_operator.plan.outcome import Stop

COMPLETE, FAILED, TRAINING = "Complete", "Failed", "Training"


def test_from_apply_to_a_driver_that_trains() -> None:
    world = World(build_document())
    first = world.step()
    kinds = [child["kind"] for child in (*first.create, *first.apply)]
    assert kinds[:3] == ["Secret", "ServiceAccount", "RayCluster"]
    assert sorted(kinds[3:]) == [
        *["ConfigMap"] * 2,
        "NetworkPolicy",
        *["PodDisruptionBudget"] * 3,
    ]
    assert world.condition("ClusterReady") == ("False", "ClusterCreating")
    world.settle()
    assert world.condition("ClusterReady") == ("True", "PodsReady")
    assert world.condition(TRAINING) == ("True", "Running")
    assert (world.status["run"], world.status["attempt"], world.status["failures"]) == (1, 1, 0)
    assert world.status["phase"] == "Training"
    assert world.finalizer
    [submit] = world.submitted
    assert submit.submission_id == f"clicks-{world.document['metadata']['uid']}-1"
    assert not submit.resume


def test_nothing_is_submitted_before_the_pods_are_ready() -> None:
    world = World(build_document(), unready={TRAINERS})
    world.settle()
    assert world.submitted == []
    found = [c for c in world.status["conditions"] if c["type"] == "ClusterReady"]
    assert_told(found[0]["message"], "… 0 … 1 … trainers … no GPU is free")
    assert not world.finalizer


def test_success_completes_and_gives_the_cluster_back() -> None:
    world = running()
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.condition(COMPLETE) == ("True", "Succeeded")
    assert world.ray_cluster is None
    assert not world.finalizer
    assert world.status["phase"] == "Complete"
    assert world.step().again_seconds is None  # a finished experiment wakes nobody


def test_a_failure_is_tried_again_after_a_pause_and_resumes() -> None:
    world = running(backoffLimit=1)
    world.end_job("FAILED", message="boom", exit_code=1)
    world.settle()
    assert world.condition(TRAINING) == ("False", "Retrying")
    assert len(world.submitted) == 1
    world.step(seconds=backoff_seconds(1))
    world.settle()
    assert world.condition(TRAINING) == ("True", "Running")
    assert [submit.resume for submit in world.submitted] == [False, True]
    assert (world.status["attempt"], world.status["failures"]) == (2, 1)
    world.end_job("FAILED", message="boom", exit_code=1)
    world.settle()
    assert world.condition(FAILED) == ("True", "BackoffLimitExceeded")
    assert world.ray_cluster is None
    assert world.events[-1] == "Warning BackoffLimitExceeded"


def test_attempts_of_one_run_share_an_id_and_no_other_run_has_it() -> None:
    world = running(updatePolicy="Restart")
    world.lose_head()
    world.settle()
    world.step(seconds=backoff_seconds(1))
    for edit in ({"suspend": True}, {"suspend": False}, {"training": {"batchSize": 7}}):
        world.edit(**edit)
        world.settle()
    assert [submit.run_id for submit in world.submitted] == [*["0f3c6c1e-1"] * 3, "0f3c6c1e-2"]

    applied_again = World(build_document())
    applied_again.document["metadata"]["uid"] = "77aa88bb-1111-2222-3333-444455556666"
    applied_again.settle()
    assert [submit.run_id for submit in applied_again.submitted] == ["77aa88bb-1"]


# what befalls a running experiment, the condition and its reason that follow at once
FATES: dict[str, tuple[Callable[[World], Any], str, str]] = {
    "the user's code fails": (
        lambda world: world.end_job("FAILED", exit_code=1),
        TRAINING,
        "Retrying",
    ),
    "a bad manifest is not tried again": (
        lambda world: world.end_job("FAILED", exit_code=2),
        FAILED,
        "InvalidSpec",
    ),
    "a refused checkpoint is not tried again": (
        lambda world: world.end_job("FAILED", exit_code=4),
        FAILED,
        "CheckpointRefused",
    ),
    "a refused output is not tried again": (
        lambda world: world.end_job("FAILED", exit_code=5),
        FAILED,
        "OutputRefused",
    ),
    "somebody else stops the job": (lambda world: world.end_job("STOPPED"), TRAINING, "Retrying"),
    "the head is replaced": (World.lose_head, TRAINING, "Retrying"),
    "the cluster is deleted by hand": (World.lose_cluster, TRAINING, "Retrying"),
    "the token is deleted": (
        lambda world: setattr(world, "has_token", False),
        TRAINING,
        "Retrying",
    ),
    "a trainer is lost": (
        lambda world: world.unready.add(TRAINERS),
        "ClusterReady",
        "WaitingForPods",
    ),
    "all data workers are lost": (
        lambda world: world.unready.add(DATA_WORKERS),
        "ClusterReady",
        "WaitingForPods",
    ),
    "suspend": (lambda world: world.edit(suspend=True), "Suspended", "SuspendedBySpec"),
    "a bad edit": (lambda world: world.edit(backoffLimit=-1), "Accepted", "InvalidSpec"),
    "an edit of the run": (
        lambda world: world.edit(training={"batchSize": 7}),
        "Accepted",
        "ChangePending",
    ),
}


@pytest.mark.parametrize(("befall", "kind", "reason"), FATES.values(), ids=FATES)
def test_what_befalls_a_run_is_said(befall: Callable[[World], Any], kind: str, reason: str) -> None:
    world = running()
    befall(world)
    world.settle()
    found = world.condition(kind)
    assert found is not None
    assert found[1] == reason


@pytest.mark.parametrize(
    "befall",
    [World.lose_head, World.lose_cluster, lambda world: setattr(world, "has_token", False)],
)
def test_a_lost_cluster_is_made_again_and_the_run_resumes(befall: Callable[[World], Any]) -> None:
    world = running()
    befall(world)
    world.settle()
    world.step(seconds=backoff_seconds(1))
    world.settle()
    assert world.condition(TRAINING) == ("True", "Running")
    assert world.has_token
    assert (world.status["attempt"], world.status["failures"]) == (2, 1)
    assert world.submitted[-1].resume


def test_an_out_of_memory_driver_is_told_from_others() -> None:
    world = running()
    world.end_job("FAILED", out_of_memory=True)
    world.settle()
    found = [c for c in world.status["conditions"] if c["type"] == TRAINING]
    assert "(OutOfMemory)" in found[0]["message"]


def test_the_drivers_last_words_are_told_not_its_first() -> None:
    log = "\n".join(f"line {index}" for index in range(1000))
    world = running(backoffLimit=0)
    world.end_job("FAILED", exit_code=1, message=f"failed with exit code 1, logs:\n{log}\nboom")
    world.settle()
    [told] = [c["message"] for c in world.status["conditions"] if c["type"] == FAILED]
    assert "failed with exit code 1, logs:" in told
    assert told.endswith("line 999\nboom")
    assert len(told) < 1024


def test_suspend_releases_the_cluster_and_resume_goes_on_without_a_failure() -> None:
    world = running()
    world.edit(suspend=True)
    stop = world.step()
    assert isinstance(stop.job, Stop)
    world.settle()
    assert world.ray_cluster is None
    assert not world.finalizer
    world.edit(suspend=False)
    world.settle()
    assert world.condition("Suspended") == ("False", "Resumed")
    assert world.condition(TRAINING) == ("True", "Running")
    assert (world.status["run"], world.status["attempt"], world.status["failures"]) == (1, 2, 0)
    assert world.submitted[-1].resume


def test_a_run_that_ended_while_it_was_suspended_is_complete() -> None:
    world = running()
    world.end_job("SUCCEEDED")
    world.edit(suspend=True)
    world.settle()
    assert world.condition(COMPLETE) == ("True", "Succeeded")


def test_an_experiment_may_be_born_suspended() -> None:
    world = World(build_document(suspend=True))
    world.settle()
    assert world.condition("Suspended") == ("True", "SuspendedBySpec")
    assert world.ray_cluster is None
    assert not world.has_token


def test_a_changed_run_waits_for_the_end_of_the_one_before() -> None:
    world = running()
    world.edit(training={"batchSize": 7})
    world.settle()
    assert world.condition(TRAINING) == ("True", "Running")
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.status["run"] == 2
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert world.condition(TRAINING) == ("True", "Running")
    assert not world.submitted[-1].resume
    assert world.submitted[-1].experiment["spec"]["training"]["batchSize"] == 7


def test_a_changed_run_restarts_at_once_if_it_is_told_to() -> None:
    world = running()
    world.edit(training={"batchSize": 7}, updatePolicy="Restart")
    assert isinstance(world.step().job, Stop)
    world.settle()
    assert (world.status["run"], world.status["failures"]) == (2, 0)
    assert len(world.configs) == 2  # a copy of each run's config
    assert world.submitted[-1].experiment["spec"]["training"]["batchSize"] == 7


def test_a_failure_while_a_change_waits_is_retried_as_it_was_accepted() -> None:
    world = running()
    world.edit(training={"batchSize": 7})
    world.end_job("FAILED", exit_code=1)
    world.settle()
    world.step(seconds=backoff_seconds(1))
    world.settle()
    assert world.status["run"] == 1
    assert "training" not in world.submitted[-1].experiment["spec"]


def test_a_bad_edit_touches_nothing_and_its_correction_is_taken() -> None:
    world = running()
    before = copy.deepcopy(world.ray_cluster)
    world.edit(backoffLimit=-1)
    world.settle()
    assert world.condition(TRAINING) == ("True", "Running")
    assert world.ray_cluster == before
    world.edit(backoffLimit=3)
    world.settle()
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert len(world.submitted) == 1


def test_an_invalid_spec_from_the_start_makes_nothing() -> None:
    world = World(build_document(backoffLimit=-1))
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.ray_cluster is None
    found = world.status["conditions"][0]
    assert "spec.backoffLimit: " in found["message"]
    assert world.status["phase"] == "Invalid"


def test_deadlines_end_a_run() -> None:
    world = running(activeDeadlineSeconds=100)
    world.step(seconds=99)
    assert world.condition(FAILED) is None
    world.step(seconds=1)  # the boundary
    world.settle()
    assert world.condition(FAILED) == ("True", "DeadlineExceeded")
    assert world.ray_cluster is None


def test_a_cluster_that_never_comes_up_is_given_up() -> None:
    world = World(build_document(preRunningDeadlineSeconds=60), unready={TRAINERS})
    world.settle()
    assert world.step().again_seconds == pytest.approx(30)
    world.step(seconds=60)
    world.settle()
    assert world.condition(FAILED) == ("True", "PreRunningDeadlineExceeded")
    found = [c for c in world.status["conditions"] if c["type"] == FAILED]
    assert "no GPU is free" in found[0]["message"]


def test_a_driver_that_runs_in_time_is_not_given_up_for_being_seen_late() -> None:
    world = World(build_document(preRunningDeadlineSeconds=60))
    while not world.submitted:
        world.step()
    world.reachable = False  # nobody sees that it runs
    world.step(seconds=61)
    world.settle()
    assert world.condition(FAILED) is None
    world.reachable = True
    world.settle()
    assert world.condition(TRAINING) == ("True", "Running")


def test_a_head_that_nobody_reaches_is_given_up_with_why() -> None:
    world = World(build_document(preRunningDeadlineSeconds=60), reachable=False)
    world.settle()
    world.step(seconds=60)
    [found] = [c for c in world.status["conditions"] if c["type"] == FAILED]
    assert found["reason"] == "PreRunningDeadlineExceeded"
    assert "connection refused" in found["message"]


def test_a_bad_edit_takes_no_deadline_away() -> None:
    world = running(activeDeadlineSeconds=100)
    world.edit(pipeline=[{"filter": {"where": "price >"}}])
    world.step(seconds=100)
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition(FAILED) == ("True", "DeadlineExceeded")


def test_a_head_that_wanted_memory_is_told_from_a_lost_cluster() -> None:
    world = running()
    observed = world.observe()
    began = parse_time(world.status["submission"]["time"])
    killed = [
        replace(pod, ready=False, out_of_memory=began + timedelta(seconds=5))
        if pod.role == HEAD
        else pod
        for pod in observed.pods
    ]
    decision = decide(
        replace(observed, pods=tuple(killed), ray_reachable=False, job=None),
        world.now + timedelta(seconds=9),
    )
    training = decision.status.find(TRAINING)
    assert training is not None
    assert training.reason == "Retrying"
    assert "(OutOfMemory)" in training.message
    assert_told(training.message, "… head-0 … spec.head.resources.limits.memory")


def test_time_to_live_deletes_a_finished_experiment() -> None:
    world = running(ttlSecondsAfterFinished=50)
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.step(seconds=49).again_seconds == pytest.approx(1)
    assert not world.gone
    world.step(seconds=1)
    assert world.gone


def test_deletion_stops_the_driver_and_lets_go() -> None:
    world = running()
    world.delete()
    assert isinstance(world.step().job, Stop)
    world.step(seconds=2)
    assert not world.gone, "the driver writes its checkpoint"
    world.step(seconds=2)
    assert world.gone


def test_deletion_lets_go_in_time_though_ray_does_not_answer() -> None:
    world = running()
    world.reachable = False
    world.delete()
    world.step(seconds=59)
    assert not world.gone
    world.step(seconds=1)
    assert world.gone


def test_a_pass_cut_off_before_the_job_was_posted_posts_the_same_one() -> None:
    world = running()
    world.jobs = {}  # status was written, Ray heard nothing
    world.settle()
    assert len(world.submitted) == 2
    assert world.submitted[0].submission_id == world.submitted[1].submission_id
    assert world.status["attempt"] == 1


ACTIONS: dict[str, Callable[[World], Any]] = {
    "succeed": lambda w: w.status.get("submission") and w.end_job("SUCCEEDED"),
    "fail": lambda w: w.status.get("submission") and w.end_job("FAILED", exit_code=1),
    "suspend": lambda w: w.edit(suspend=True),
    "resume": lambda w: w.edit(suspend=False),
    "edit": lambda w: w.edit(training={"batchSize": w.document["metadata"]["generation"]}),
    "restart": lambda w: w.edit(updatePolicy="Restart"),
    "bad edit": lambda w: w.edit(head={"template": {"spec": {"serviceAccountName": "x"}}}),
    "good edit": lambda w: w.edit(head={}),
    "lose head": lambda w: w.ray_cluster and w.lose_head(),
    "lose cluster": World.lose_cluster,
    "lose token": lambda w: setattr(w, "has_token", False),
    "unready": lambda w: w.unready.add(HEAD),
    "ready": lambda w: w.unready.clear(),
    "cut off": lambda w: setattr(w, "reachable", False),
    "back": lambda w: setattr(w, "reachable", True),
    "wait": lambda w: w.step(seconds=400),
    "deadlines": lambda w: w.edit(activeDeadlineSeconds=900, preRunningDeadlineSeconds=600),
    "edit cluster": lambda w: w.edit(env=[{"name": "X", "value": str(w.now)}]),
    "more ranks": lambda w: w.edit(trainers={"replicas": 2}),
    "fewer ranks": lambda w: w.edit(trainers={"replicas": 1}),
    "in order": lambda w: w.edit(pipelineOptions={"preserveOrder": True}),
    "refuse": lambda w: setattr(w, "refused", Refusal(message="no", is_invalid=True)),
    "quota": lambda w: setattr(w, "refused", Refusal(message="no", is_invalid=False)),
    "allow": lambda w: setattr(w, "refused", None),
    "pass": World.step,
}


def is_at_rest(world: World) -> bool:
    """Return whether only an edit can change anything."""
    return (
        any(world.condition(kind) is not None for kind in (COMPLETE, FAILED))
        or world.condition("Accepted") == ("False", "InvalidSpec")
        or world.condition("Suspended") == ("True", "SuspendedBySpec")
    )


@settings(max_examples=examples(40), deadline=None)
@given(story=st.lists(st.sampled_from(sorted(ACTIONS)), max_size=14))
def test_in_every_story(story: list[str]) -> None:
    world = World(build_document())
    for action in story:
        ACTIONS[action](world)
        stops = bool(world.stopping)  # drivers that end while this pass goes on
        decision = world.step()
        # A pass that sees what it left decides nothing new to say or write but what waits for time.
        again = world.decide()
        acted = decision.delete or decision.job or decision.create or decision.apply or stops
        if not acted and decision.again_seconds != 0:
            assert again.status == decision.status
            assert again.events == ()
        # It wakes by itself where no event might come.
        assert decision.again_seconds is not None or is_at_rest(world)
        assert world.status["failures"] <= 3 if "failures" in world.status else True
        assert len(world.status["conditions"]) == len(
            {condition["type"] for condition in world.status["conditions"]}
        )
    ids = [submit.submission_id for submit in world.submitted]
    assert ids == sorted(ids, key=lambda name: int(name.rpartition("-")[2]))

    # Whatever it was, once all is well it trains or has ended.
    world.unready.clear()
    world.reachable = True
    world.refused = None
    world.edit(suspend=False, head={})
    for _ in range(4):
        world.settle()
        world.step(seconds=400)
    world.settle()  # a deadline may have passed just then
    assert world.condition(TRAINING) == ("True", "Running") or is_at_rest(world)

    # Deleted at whatever moment, it lets go within a minute.
    world.delete()
    world.step()
    world.step(seconds=60)
    assert world.gone
