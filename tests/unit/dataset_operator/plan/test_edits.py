"""Edits of an experiment: live edits, edits that start a new attempt or run, and waiting edits."""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from facts import assert_told
from world import World, build_document, running

from dataset_operator.api import DATA_WORKERS, TRAINERS
from dataset_operator.observed import Pod, Refusal
from dataset_operator.plan.attempt import backoff_seconds
from dataset_operator.plan.ending import STOP_SECONDS
from dataset_operator.plan.outcome import Stop
from dataset_operator.plan.ray_cluster import LOST_SECONDS
from pipeline_runtime.config import parse_experiment, run_hash

NEW_RUN = {"training": {"batchSize": 7}}
NEW_RANKS = {"trainers": {"replicas": 2}}
NEW_CLUSTER = {"env": [{"name": "TEAM", "value": "ads"}]}
LIVE = {"backoffLimit": 5, "activeDeadlineSeconds": 9999}
RESTART = {"updatePolicy": "Restart"}
TRUSTING = {"training": {"checkpoint": {"trustPickle": True}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The effect of an edit: run, attempt and failures in the status, and a condition's reason."""

    run: int = 1
    attempt: int = 1
    failures: int = 0
    is_same_cluster: bool = True
    accepted: str = "ValidSpec"


# edit of a running experiment → its effect before the present attempt ends
AT_ONCE: dict[str, tuple[dict[str, Any], Outcome]] = {
    "live fields": (LIVE, Outcome()),
    "bounds of the data workers": ({"dataWorkers": {"maxReplicas": 9}}, Outcome()),
    "the run": (NEW_RUN, Outcome(accepted="ChangePending")),
    "the run, Restart": (NEW_RUN | RESTART, Outcome(run=2, attempt=2)),
    "the number of ranks": (NEW_RANKS, Outcome(accepted="ChangePending")),
    "the number of ranks, Restart": (
        NEW_RANKS | RESTART,
        Outcome(attempt=2, is_same_cluster=False),
    ),
    "the cluster": (NEW_CLUSTER, Outcome(accepted="ChangePending")),
    "the cluster, Restart": (NEW_CLUSTER | RESTART, Outcome(attempt=2, is_same_cluster=False)),
    "the image": ({"image": "mine:2"}, Outcome(accepted="ChangePending")),
    "the image, Restart": (
        {"image": "mine:2"} | RESTART,
        Outcome(run=2, attempt=2, is_same_cluster=False),
    ),
    "a template, Restart": (
        {"dataWorkers": {"template": {"spec": {"nodeSelector": {"spot": "true"}}}}} | RESTART,
        Outcome(attempt=2, is_same_cluster=False),
    ),
    "nothing but the policy": (RESTART, Outcome()),
    "suspend": ({"suspend": True}, Outcome(is_same_cluster=False)),
    "a bad value": ({"backoffLimit": -1}, Outcome(accepted="InvalidSpec")),
}


@pytest.mark.parametrize(("edit", "outcome"), AT_ONCE.values(), ids=AT_ONCE)
def test_edits_of_a_running_experiment(edit: dict[str, Any], outcome: Outcome) -> None:
    world = running()
    head = world.head_uid
    world.edit(**edit)
    world.settle()
    status, accepted = world.status, world.condition("Accepted")
    assert accepted is not None
    assert outcome == Outcome(
        run=status["run"],
        attempt=status["attempt"],
        failures=status["failures"],
        is_same_cluster=world.head_uid == head,
        accepted=accepted[1],
    )


@pytest.mark.parametrize(
    ("edit", "run", "resumes"),
    [(NEW_RUN, 2, False), (NEW_RANKS, 1, True), (NEW_CLUSTER, 1, True)],
)
def test_an_attempt_after_an_edit_resumes_only_its_own_run(
    edit: dict[str, Any], run: int, resumes: bool
) -> None:
    world = running()
    world.edit(**edit, **RESTART)
    world.settle()
    assert world.status["run"] == run
    assert world.submitted[-1].resume is resumes


def test_resume_starts_a_new_attempt_of_the_same_run() -> None:
    world = running()
    for suspend in (True, False):
        world.edit(suspend=suspend)
        world.settle()
    assert [world.status[field] for field in ("run", "attempt", "failures")] == [1, 2, 0]
    assert world.submitted[-1].resume


def test_a_cluster_edit_takes_effect_before_the_next_attempt() -> None:
    world = running()
    head = world.head_uid
    world.edit(**NEW_CLUSTER)
    world.end_job("FAILED", exit_code=1)
    world.settle()
    world.step(seconds=backoff_seconds(1))
    world.settle()
    assert world.head_uid != head
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert [world.status[field] for field in ("run", "attempt", "failures")] == [1, 2, 1]


@pytest.mark.parametrize("edit", [NEW_RUN, NEW_CLUSTER, NEW_RANKS])
def test_edits_before_the_first_submission_do_not_wait(edit: dict[str, Any]) -> None:
    world = World(build_document(), unready={TRAINERS})
    world.settle()
    world.edit(**edit)
    world.unready.clear()
    world.settle()
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert world.condition("Training") == ("True", "Running")
    submitted = world.submitted[-1].experiment["spec"]
    assert {key: submitted[key] for key in edit} == edit


@pytest.mark.parametrize(
    ("is_invalid", "kind", "reason"),
    [(True, "Accepted", "InvalidSpec"), (False, "ClusterReady", "ClusterRefused")],
)
def test_a_refused_cluster_is_not_created(is_invalid: bool, kind: str, reason: str) -> None:
    world = World(build_document())
    world.refused = Refusal(message="exceeded quota: team", is_invalid=is_invalid)
    world.settle()
    assert world.condition(kind) == ("False", reason)
    assert not world.has_token
    assert world.children == {}
    world.refused = None
    world.settle()
    assert world.condition("Training") == ("True", "Running")


def test_a_refused_edit_keeps_the_running_cluster() -> None:
    world = running()
    world.refused = Refusal(message="spec.head.template: unknown field", is_invalid=True)
    world.edit(**NEW_CLUSTER, **RESTART)
    assert not isinstance(world.step().job, Stop)
    world.settle()
    assert world.condition("Training") == ("True", "Running")
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.status["attempt"] == 1


def data_workers(world: World) -> dict[str, Any]:
    assert world.ray_cluster is not None
    group: dict[str, Any] = world.ray_cluster["spec"]["workerGroupSpecs"][1]
    assert group["groupName"] == DATA_WORKERS
    return group


def set_replicas(number: int) -> Callable[[World], None]:
    return lambda world: data_workers(world).update(replicas=number)


def break_template(world: World) -> None:
    container = data_workers(world)["template"]["spec"]["containers"][0]
    container["image"] = "other:1"


@pytest.mark.parametrize(
    ("by_hand", "replicas"),
    [
        (set_replicas(3), 3),  # a number within the bounds is adopted
        (set_replicas(99), 50),
        (set_replicas(0), 1),
        (break_template, 1),
        (lambda world: data_workers(world).update(minReplicas=7), 1),
        (lambda world: data_workers(world).pop("replicas"), 1),
        (lambda world: world.ray_cluster["spec"]["workerGroupSpecs"].pop(), 1),
        (lambda world: world.ray_cluster["spec"].pop("workerGroupSpecs"), 1),
    ],
)
def test_edits_of_the_cluster_by_hand_are_undone(
    by_hand: Callable[[World], Any], replicas: int
) -> None:
    world = running()
    before = copy.deepcopy(data_workers(world))
    by_hand(world)
    world.settle()
    assert data_workers(world) == before | {"replicas": replicas}
    assert world.status["dataWorkers"]["desiredReplicas"] == replicas
    assert world.status["attempt"] == 1


def test_bounds_apply_live_and_suspending_keeps_the_number() -> None:
    world = running()
    set_replicas(6)(world)
    world.edit(dataWorkers={"minReplicas": 2, "maxReplicas": 8})
    world.settle()
    for suspend in (True, False):
        world.edit(suspend=suspend)
        world.settle()
    group = data_workers(world)
    assert (group["minReplicas"], group["replicas"], group["maxReplicas"]) == (2, 6, 8)


def test_changed_or_deleted_policies_and_budgets_are_restored() -> None:
    world = running()
    good = dict(world.children)
    policy, budget = world.owner.network_policy, world.owner.disruption_budget(TRAINERS)
    world.children[policy] = {**good[policy], "spec": {"podSelector": {}}}
    del world.children[budget]
    world.settle()
    assert world.children == good


def test_a_new_cluster_waits_for_the_old_pods() -> None:
    world = running()
    world.edit(suspend=True)
    world.settle()
    ends = world.now + timedelta(seconds=30)
    world.lingering = (Pod(name="head-0", uid="x", role="head", ready=False, ends=ends),)
    world.edit(suspend=False)
    world.settle()
    assert world.ray_cluster is None
    assert world.condition("ClusterReady") == ("False", "ClusterCreating")
    world.lingering = ()
    world.settle()
    assert world.condition("Training") == ("True", "Running")


def test_a_stuck_pod_does_not_block_the_next_cluster_for_ever() -> None:
    ends = World(build_document()).now
    lost = Pod(name="head-0", uid="x", role="head", ready=False, ends=ends)
    world = World(build_document(), lingering=(lost,))
    world.settle()
    assert world.ray_cluster is None
    world.step(seconds=LOST_SECONDS)
    assert world.ray_cluster is not None


def test_a_stuck_pod_is_named_in_the_condition() -> None:
    lost = Pod(name="head-x", uid="x", role="head", ready=False, ends=World(build_document()).now)
    world = World(build_document(), lingering=(lost,), unready={"head"}, waiting="")
    world.step(seconds=LOST_SECONDS)
    world.settle()
    [said] = [c for c in world.status["conditions"] if c["type"] == "ClusterReady"]
    assert said["reason"] == "WaitingForPods"
    assert "kubectl delete pod head-x -n team --force" in said["message"]


def test_foreign_objects_are_not_changed() -> None:
    world = World(build_document(), foreign=("RayCluster clicks-0f3c6",))
    decision = world.step()
    assert (decision.create, decision.apply, decision.delete) == ((), (), ())
    assert world.condition("ClusterReady") == ("False", "NameCollision")
    world.foreign = ()
    world.settle()
    assert world.condition("Training") == ("True", "Running")


def test_only_allowed_service_accounts_are_accepted() -> None:
    template = {"spec": {"serviceAccountName": "admin"}}
    world = World(build_document(trainers={"template": template}))
    world.settle()
    found = world.status["conditions"][0]
    assert found["reason"] == "InvalidSpec"
    assert "spec.trainers.template.spec.serviceAccountName" in found["message"]
    assert world.ray_cluster is None


# The CRD accepts it, and the operator refuses it.
BAD = {"trainers": {"replicas": 1, "template": {"spec": {"serviceAccountName": "admin"}}}}


@pytest.mark.parametrize(
    ("first", "live"),
    [
        ({"activeDeadlineSeconds": 100}, {"activeDeadlineSeconds": 9999}),
        ({"updatePolicy": "Restart"}, NEW_CLUSTER),
        ({"dataWorkers": {"maxReplicas": 4}}, {"dataWorkers": {"maxReplicas": 40}}),
    ],
)
def test_an_invalid_edit_keeps_earlier_valid_edits(
    first: dict[str, Any], live: dict[str, Any]
) -> None:
    world = running(**first)
    world.edit(**live)
    world.settle()
    set_replicas(30)(world)
    world.settle()
    before, attempt = copy.deepcopy(world.ray_cluster), world.status["attempt"]
    world.edit(**BAD)
    world.settle()
    world.step(seconds=200)
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition("Training") == ("True", "Running")
    assert (world.ray_cluster, world.status["attempt"]) == (before, attempt)


def test_an_invalid_edit_of_a_finished_experiment_deletes_nothing() -> None:
    world = running(ttlSecondsAfterFinished=50)
    world.edit(ttlSecondsAfterFinished=None)
    world.settle()
    world.end_job("SUCCEEDED")
    world.settle()
    world.edit(**BAD)
    world.step(seconds=100)
    assert not world.gone


def test_a_waiting_run_edit_keeps_an_earlier_cluster_edit() -> None:
    world = running()
    world.edit(**NEW_CLUSTER, **RESTART)
    world.settle()
    world.edit(**NEW_RUN, updatePolicy="AfterRun")
    world.end_job("FAILED", exit_code=1)
    world.settle()
    head = world.head_uid
    world.step(seconds=backoff_seconds(1))
    world.settle()
    assert world.head_uid == head
    assert world.status["run"] == 1
    assert world.submitted[-1].experiment["spec"]["env"] == NEW_CLUSTER["env"]


def test_a_version_with_other_hashes_starts_no_new_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = running()
    module = sys.modules[run_hash.__module__]
    monkeypatch.setattr(module, "RUN_CONFIG_VERSION", 3)
    assert run_hash(parse_experiment(world.document)) != world.status["runHash"]
    world.settle()
    assert world.condition("Accepted") == ("True", "ValidSpec")
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.condition("Complete") == ("True", "Succeeded")
    assert world.status["run"] == 1


@pytest.mark.parametrize(
    ("edit", "back"),
    [
        ({"suspend": True}, {"suspend": False}),
        ({**NEW_CLUSTER, **RESTART}, {"env": []}),
        ({"suspend": True}, BAD),
    ],
)
def test_a_revoked_stop_is_not_a_failure(edit: dict[str, Any], back: dict[str, Any]) -> None:
    world = running(backoffLimit=0)
    world.edit(**edit)
    world.step()
    world.edit(**back)
    world.settle()
    assert world.condition("Training") == ("True", "Running")
    assert [world.status[field] for field in ("attempt", "failures")] == [2, 0]
    assert world.submitted[-1].resume


def test_a_stop_that_never_arrived_does_not_shorten_a_later_one() -> None:
    world = running()
    world.reachable = False
    world.edit(suspend=True)
    world.step()
    world.reachable = True
    world.edit(suspend=False)
    world.settle()
    world.edit(suspend=True)
    assert isinstance(world.step(seconds=10 * STOP_SECONDS).job, Stop)


@pytest.mark.parametrize("edit", [NEW_CLUSTER, {"backoffLimit": 1}, TRUSTING])
def test_a_failed_run_continues_after_an_edit_of_its_cause(edit: dict[str, Any]) -> None:
    world = running(backoffLimit=0)
    world.end_job("FAILED", exit_code=1, out_of_memory=True)
    world.settle()
    assert world.condition("Failed") == ("True", "BackoffLimitExceeded")
    world.edit(**edit)
    world.settle()
    assert world.condition("Failed") is None
    assert world.condition("Training") == ("True", "Running")
    assert [world.status[field] for field in ("run", "attempt", "failures")] == [1, 2, 0]
    assert world.submitted[-1].resume


def test_two_drivers_never_run_on_one_cluster() -> None:
    world = running()
    head = world.head_uid
    world.reachable = False
    world.edit(**NEW_RUN, **RESTART)
    world.step()
    world.step(seconds=STOP_SECONDS)
    assert world.head_uid != head, "whoever cannot be told to stop goes with its cluster"
    world.reachable = True
    world.settle()
    assert world.status["run"] == 2
    assert len(world.jobs) == 1


def test_a_run_that_succeeded_in_time_is_complete_after_its_deadline() -> None:
    world = running(activeDeadlineSeconds=100)
    world.end_job("SUCCEEDED")
    world.step(seconds=101)
    assert world.condition("Complete") == ("True", "Succeeded")


def test_a_deadline_leaves_time_for_a_checkpoint() -> None:
    world = running(activeDeadlineSeconds=100)
    assert isinstance(world.step(seconds=100).job, Stop)
    assert world.ray_cluster is not None
    world.settle()
    assert world.condition("Failed") == ("True", "DeadlineExceeded")
    assert world.ray_cluster is None


def test_the_start_deadline_applies_again_after_a_resume() -> None:
    world = running(preRunningDeadlineSeconds=60)
    world.edit(suspend=True)
    world.settle()
    world.unready = {TRAINERS}
    world.edit(suspend=False)
    world.settle()
    world.step(seconds=61)
    world.settle()
    assert world.condition("Failed") == ("True", "PreRunningDeadlineExceeded")


def test_suspending_does_not_wait_for_an_unknown_job() -> None:
    world = running()
    world.jobs.clear()
    world.edit(suspend=True)
    world.settle()
    assert world.condition("Suspended") == ("True", "SuspendedBySpec")


def test_alternating_kubelet_messages_are_written_once() -> None:
    world = World(build_document(), unready={TRAINERS})
    for words in ("trainers-0: ErrImagePull: no", "trainers-0: ImagePullBackOff: Back-off") * 3:
        world.waiting = words
        world.settle()
    told = [c["message"] for c in world.status["conditions"] if c["type"] == "ClusterReady"]
    [said] = told
    assert_told(said, "… 0 … 1 … trainers-0: ErrImagePull: no")
