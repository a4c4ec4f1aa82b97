"""Rules about the cluster: lost ones, children that are to be there, pods to wait for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dataset_operator.api import (
    CHILD_REFUSED,
    CLUSTER_CORRECTED,
    CLUSTER_CREATING,
    CLUSTER_LOST,
    CLUSTER_READY,
    CLUSTER_REFUSED,
    DATA_WORKERS,
    HEAD,
    KUEUE_QUEUE_LABEL,
    NAME_COLLISION,
    NOT_CORRECTED,
    OUT_OF_MEMORY,
    PODS_READY,
    RAY_UNREACHABLE,
    REPLICA_FAILURE,
    TRAINERS,
    TRAINING,
    WAITING_FOR_PODS,
    WAITING_FOR_QUEUE,
    Role,
)
from dataset_operator.builders.children import (
    build_config_map,
    build_disruption_budgets,
    build_network_policy,
    build_token_secret,
)
from dataset_operator.builders.frozen import correct, is_as_built
from dataset_operator.builders.pods import ClusterInput
from dataset_operator.builders.raycluster import build_ray_cluster
from dataset_operator.observed import Document, parse_time
from dataset_operator.plan.accepted import name_broken_seal
from dataset_operator.plan.attempt import blame_memory, fail_attempt
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.ending import POLL_SECONDS, stop_driver
from dataset_operator.plan.history import find_history_uri
from dataset_operator.plan.pod_rules import find_forbidden
from dataset_operator.quota import explain_quota
from dataset_operator.status import find_condition, fit_message

# Pods that wait give no events of their own for minutes at a time.
WAIT_SECONDS = 30.0
# A kubelet that lives has removed a pod so long after its time to end.
LOST_SECONDS = 60.0
# How often it is looked whether a name is free again: what is not ours wakes nobody.
COLLISION_SECONDS = 60.0
# A head that starts, or a busy KubeRay, is silent for a while; then somebody has to look.
SILENCE_SECONDS = 60.0


def watch_ray(draft: Draft) -> bool:
    """Since when a head that is up does not answer; without it nobody knows how training stands."""
    head = draft.observed.head
    if draft.observed.ray_reachable or head is None or not head.ready:
        draft.forget("unreachableTime")
    else:
        draft.status.setdefault("unreachableTime", draft.stamp())
        draft.look_again(POLL_SECONDS)
    return False


def yield_to_queue(draft: Draft) -> bool:
    """A cluster that a queue takes back while it trains is no failure of the attempt: the next one
    resumes once the queue admits it again, and not before the driver of this one has ended.
    """
    submission, cluster, job = draft.submission, draft.observed.ray_cluster, draft.observed.job
    if submission is None or cluster is None:
        return False
    if not is_suspended(cluster) and draft.reason(TRAINING) != WAITING_FOR_QUEUE:
        return False
    if job is not None and job.status == "SUCCEEDED":
        return False  # it ended before it could be taken back, and is judged
    heads = {pod.uid: pod for pod in draft.observed.pods if pod.role == HEAD}
    head = heads.get(submission["headPodUid"])
    if head is not None and (head.ends is None or draft.until(head.ends, LOST_SECONDS) > 0):
        if head.ends is None and not is_suspended(cluster):
            return False  # admitted again before KubeRay heard of it
        message = "a queue takes the cluster back: the driver writes a checkpoint and ends"
        draft.condition(TRAINING, False, WAITING_FOR_QUEUE, message)
        draft.look_again(POLL_SECONDS)
        _is_queued(draft)
        return True
    draft.forget("submission")
    draft.has_finalizer = False
    message = f"a queue took the cluster of attempt {draft.attempt} back; the next one resumes"
    draft.condition(TRAINING, False, WAITING_FOR_QUEUE, message)
    return False


def is_suspended(cluster: Mapping[str, Any]) -> bool:
    """Whether its pods are not to be: `spec.suspend` is a queue's field, not ours."""
    return bool(cluster.get("spec", {}).get("suspend"))


def recover_lost(draft: Draft) -> bool:
    """A driver whose head, cluster or token is gone has ended; without a token nobody gets in."""
    cluster, submission = draft.observed.ray_cluster, draft.submission
    if cluster is not None and not draft.observed.has_token:
        draft.release_cluster()
        draft.look_again(WAIT_SECONDS)
        _lose(draft, "its token's Secret is gone")
        return True
    if submission is None:
        return False
    if cluster is None:
        return _lose(draft, "its RayCluster is gone")
    heads = {pod.uid: pod for pod in draft.observed.pods if pod.role == HEAD}
    head = heads.pop(submission["headPodUid"], None)
    if head is not None and (why := blame_memory(draft, head)):
        return fail_attempt(draft, OUT_OF_MEMORY, why)
    if heads:
        return _lose(draft, f"its head was replaced by {next(iter(heads.values())).name}")
    return False


def _lose(draft: Draft, why: str) -> bool:
    if draft.submission is None:
        return False
    return fail_attempt(draft, CLUSTER_LOST, f"the cluster was lost: {why}")


def replace_changed(draft: Draft) -> bool:
    """The cluster side of the spec was edited: another cluster, for which no attempt is cut short
    unless updatePolicy says so, and none is given up for one that the API server refuses.
    """
    observed = draft.observed
    if draft.spec is None or not draft.is_cluster_changed or _is_going(draft):
        return False
    draft.trial = _render(draft)
    if observed.refusal is not None:
        return False
    if draft.submission is not None:
        has_ended = observed.job is not None and observed.job.status in ("SUCCEEDED", "FAILED")
        if has_ended or draft.wanted.update_policy == "AfterRun":
            return False
        if stop_driver(draft):
            return True
        draft.forget("submission")
        draft.has_finalizer = False
    draft.release_cluster()
    draft.condition(CLUSTER_READY, False, CLUSTER_CREATING, "the spec's cluster side was edited")
    draft.look_again(WAIT_SECONDS)
    return True


def _is_going(draft: Draft) -> bool:
    """Whether the cluster before is not gone yet: KubeRay takes its pods for those of the next.

    A pod whose time to end is over and that is still there is on a node that is lost: it may stay
    for ever, and is not waited for.
    """
    cluster = draft.observed.ray_cluster
    if cluster is not None:
        return "deletionTimestamp" in cluster["metadata"]
    return any(
        pod.ends is None or draft.until(pod.ends, LOST_SECONDS) > 0 for pod in draft.observed.pods
    )


def _render(draft: Draft) -> Document:
    """The cluster as it would be made now, with as many data workers as it last had in this run."""
    source = ClusterInput(
        owner=draft.owner,
        spec=draft.cluster_spec,
        settings=draft.settings,
        spec_hash=draft.read_again(draft.cluster_spec).cluster_hash,
        history_uri=find_history_uri(draft, draft.cluster_spec),
    )
    first = draft.settings.data_worker_replicas or draft.cluster_spec.data_workers.min_replicas
    workers = draft.status.get("dataWorkers", {}).get("desiredReplicas", first)
    labels = draft.observed.document["metadata"].get("labels")
    return build_ray_cluster(source, workers, labels)


def ensure_children(draft: Draft) -> bool:
    """What is not there is made, what was edited by hand is put back; what runs stays as it is."""
    observed, owner = draft.observed, draft.owner
    cluster = observed.ray_cluster
    if observed.foreign and (cluster is None or _find_wrong(draft)):
        return _refuse_collision(draft)
    if _is_going(draft):
        message = "the cluster before is going"
        draft.condition(CLUSTER_READY, False, CLUSTER_CREATING, message)
        draft.look_again(WAIT_SECONDS)
        return True
    if cluster is None:
        return _make_cluster(draft)
    if not observed.has_token:
        draft.create.append(build_token_secret(owner, draft.token))
    draft.create += draft.find_missing_account()
    draft.apply += _find_wrong(draft)
    trainers = draft.on_cluster.spec.trainers
    draft.status["gpus"] = trainers.replicas * trainers.gpus_per_replica
    if draft.spec is not None:
        _correct(draft, cluster)
    return False


def _correct(draft: Draft, cluster: Mapping[str, Any]) -> None:
    """Undo edits by hand, unless nobody knows what the cluster was or it may no longer be that."""
    rendered, workers = draft.observed.rendered, draft.cluster_spec.data_workers
    patch = correct(cluster, rendered, workers)
    if broken := name_broken_seal(draft, "RayCluster"):
        draft.not_corrected = f"{broken} holds annotations that the operator did not store there"
    elif patch is not None and rendered is not None:
        made = {"kind": "RayCluster", "spec": rendered}
        if why := find_forbidden(draft.owner, draft.settings, made):
            draft.not_corrected = f"it was made with what is not allowed any more: {why}"
            patch = correct(cluster, None, workers)
    if patch is not None:
        draft.patches.append(("RayCluster", draft.owner.ray_cluster, patch))
        message = "the RayCluster was made to agree with the spec again"
        draft.tell(CLUSTER_CORRECTED, message, is_outcome=True)


def _refuse_collision(draft: Draft) -> bool:
    """What bears a child's name and is somebody else's is left alone: nothing is built on it."""
    names = ", ".join(draft.observed.foreign)
    message = f"{names} of this namespace is not ours; delete it, or rename the experiment"
    draft.condition(CLUSTER_READY, False, NAME_COLLISION, message, warns=True)
    draft.look_again(COLLISION_SECONDS)
    return True


def _make_cluster(draft: Draft) -> bool:
    cluster = draft.trial = _render(draft)
    draft.look_again(WAIT_SECONDS)
    if refusal := draft.observed.refusal:
        message = f"the API server refuses it: {refusal.message}"
        draft.condition(CLUSTER_READY, False, CLUSTER_REFUSED, message, warns=True)
        return True
    if not draft.observed.has_token:
        draft.create.append(build_token_secret(draft.owner, draft.token))
    draft.create += draft.find_missing_account()
    draft.apply += _find_wrong(draft)
    draft.create.append(cluster)
    draft.status["rayClusterName"] = draft.owner.ray_cluster
    if draft.reason(CLUSTER_READY) != CLUSTER_REFUSED:  # a child may be refused again
        draft.condition(CLUSTER_READY, False, CLUSTER_CREATING, "the cluster is being made")
    return True


def _find_wrong(draft: Draft) -> list[Document]:
    """Children that are not there, or no longer say what they should."""
    owner, there = draft.owner, draft.observed.children
    guards = [
        build_network_policy(owner, draft.settings.network),
        *build_disruption_budgets(owner, draft.on_cluster.spec),
    ]
    wrong = [g for g in guards if not is_as_built(there.get(g["metadata"]["name"]), g)]
    run, run_hash = draft.status["run"], draft.status["runHash"]
    # Immutable: it says what the run began as, also after an edit of what may change.
    if owner.config_map(run, run_hash) not in there and not draft.is_run_changed:
        wrong.append(build_config_map(owner, run, run_hash, draft.build_config()))
    return wrong


def wait_for_pods(draft: Draft) -> bool:
    """Ready is: the head, every trainer, and one data worker, which is enough to begin."""
    needed: dict[Role, int] = {
        HEAD: 1,
        TRAINERS: draft.on_cluster.spec.trainers.replicas,
        DATA_WORKERS: 1,
    }
    short = [role for role, number in needed.items() if draft.observed.ready(role) < number]
    _count_workers(draft)
    if draft.submission is None and draft.is_rank_count_wrong:
        return _wait_for_ranks(draft)
    if not short:
        _say_up(draft)
        return False
    if _is_queued(draft):
        return True
    message = ", ".join(
        f"{draft.observed.ready(role)} of {needed[role]} {role} ready" for role in short
    )
    waits = next((p.waiting for p in draft.observed.pods if p.role in short and p.waiting), "")
    cause = _find_stuck(draft, short) or waits or _replica_failure(draft) or _find_silence(draft)
    _say_waiting(draft, message, cause)
    draft.look_again(WAIT_SECONDS)
    return True


def _is_queued(draft: Draft) -> bool:
    """Whether a queue has not admitted the cluster yet, or not again."""
    cluster = draft.observed.ray_cluster
    if cluster is None or not is_suspended(cluster):
        return False
    queue = (cluster["metadata"].get("labels") or {}).get(KUEUE_QUEUE_LABEL)
    by = f"the queue {queue} has not admitted it" if queue else "somebody has set spec.suspend"
    message = f"the RayCluster is suspended: {by}; it starts once that is taken back"
    draft.condition(CLUSTER_READY, False, WAITING_FOR_QUEUE, message)
    draft.look_again(WAIT_SECONDS)
    return True


def _wait_for_ranks(draft: Draft) -> bool:
    """The cluster that the run needs cannot be made yet; on this one it could not be resumed."""
    has, needs = draft.on_cluster.spec.trainers, draft.running.spec.trainers
    message = (
        f"the cluster is one of {has.world_size} ranks, and in order the run needs "
        f"{needs.world_size}"
    )
    refusal = draft.observed.refusal
    _say_waiting(draft, message, refusal.message if refusal else "")
    draft.look_again(WAIT_SECONDS)
    return True


def _say_up(draft: Draft) -> None:
    """Ready; what cannot be put right meanwhile is said until it is, and told once."""
    refusal, is_wrong = draft.observed.refusal, draft.apply or draft.patches
    silent_since = draft.status.get("unreachableTime")
    if silent_since and draft.until(parse_time(silent_since), SILENCE_SECONDS) <= 0:
        message = f"the pods are up, Ray does not answer the operator: {draft.observed.ray_failure}"
        draft.condition(CLUSTER_READY, False, RAY_UNREACHABLE, message, warns=True)
    elif refusal is not None and draft.trial is None:
        message = f"the cluster is up; the API server refuses a part of it: {refusal.message}"
        draft.condition(CLUSTER_READY, True, CHILD_REFUSED, message, warns=True)
    elif draft.not_corrected:
        message = f"the cluster is up; edits of it by hand stay: {draft.not_corrected}"
        draft.condition(CLUSTER_READY, True, NOT_CORRECTED, message, warns=True)
    elif not (is_wrong and draft.reason(CLUSTER_READY) == CHILD_REFUSED):  # it is tried again now
        draft.condition(CLUSTER_READY, True, PODS_READY, "head, trainers and data workers are up")


def _say_waiting(draft: Draft, short: str, cause: str) -> None:
    """Not ready; a warning once it is known that pods do not come up by themselves."""
    message = fit_message(f"{short}: {cause}" if cause else short)
    before = find_condition(draft.status, CLUSTER_READY)
    if before is not None and _causes(before["message"]) == _causes(message):
        message = before["message"]  # the kubelet says the same in two ways by turns
    draft.condition(CLUSTER_READY, False, WAITING_FOR_PODS, message, warns=bool(cause))
    waited = before is not None and before["reason"] == WAITING_FOR_PODS
    if waited and cause and not _names_cause(before):
        draft.tell(WAITING_FOR_PODS, message, warns=True)


def _names_cause(condition: Mapping[str, Any] | None) -> bool:
    return condition is not None and ": " in condition["message"]


def _causes(message: str) -> str:
    """What a message says but for its numbers and for the kubelet's two words for one thing."""
    words = message.replace("ImagePullBackOff", "ErrImagePull").split(": ")
    return re.sub(r"\d+", "#", ": ".join(words[:3]))


def _find_stuck(draft: Draft, short: Sequence[Role]) -> str:
    """A pod that should be gone for long: KubeRay counts it, and makes no other in its place.

    It may still run where nobody can look, so whether it is to be given up a person has to say.
    """
    for pod in draft.observed.pods:
        is_late = pod.ends is not None and draft.until(pod.ends, LOST_SECONDS) <= 0
        if is_late and pod.role in short:
            command = f"kubectl delete pod {pod.name} -n {draft.owner.namespace} --force"
            return f"{pod.name} does not end, its node does not answer: if that is gone, {command}"
    return ""


def _replica_failure(draft: Draft) -> str:
    """Why KubeRay cannot make a pod at all: a quota, an admission policy."""
    cluster = draft.observed.ray_cluster
    found = find_condition((cluster or {}).get("status") or {}, REPLICA_FAILURE)
    return explain_quota(found.get("message", "")) if found and found["status"] == "True" else ""


def _find_silence(draft: Draft) -> str:
    """That KubeRay has not looked at the cluster, long after it was made."""
    cluster = draft.observed.ray_cluster or {}
    created = cluster.get("metadata", {}).get("creationTimestamp")
    if created is None or cluster.get("status") or draft.observed.pods:
        return ""
    if draft.until(parse_time(created), SILENCE_SECONDS) > 0:
        return ""
    return "KubeRay does nothing about its RayCluster: ask who runs the cluster whether it is up"


def _count_workers(draft: Draft) -> None:
    cluster = draft.observed.ray_cluster
    assert cluster is not None
    groups = cluster["spec"].get("workerGroupSpecs") or ()
    wanted = [group.get("replicas") for group in groups if group["groupName"] == DATA_WORKERS]
    draft.status["dataWorkers"] = {
        **draft.status.get("dataWorkers", {}),
        "currentReplicas": sum(pod.role == DATA_WORKERS for pod in draft.observed.pods),
        "readyReplicas": draft.observed.ready(DATA_WORKERS),
        # Without the group, or its number, as before: it is put back in this pass.
        **({"desiredReplicas": wanted[0]} if wanted and wanted[0] is not None else {}),
    }
