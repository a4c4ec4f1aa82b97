"""Rules about the cluster: detect its loss, create and correct its objects, wait for its pods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dataset_operator.api import (
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
    OWNED_OBJECT_REFUSED,
    PODS_READY,
    RAY_UNREACHABLE,
    REPLICA_FAILURE,
    TRAINERS,
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
from dataset_operator.builders.pod_templates import ClusterInput
from dataset_operator.builders.raycluster import build_ray_cluster
from dataset_operator.documents import Document, parse_time
from dataset_operator.plan.accepted import name_broken_seal
from dataset_operator.plan.attempt import blame_memory, fail_attempt
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.ending import POLL_SECONDS, stop_driver
from dataset_operator.plan.keeping_history import find_history_uri
from dataset_operator.plan.pod_rules import find_forbidden
from dataset_operator.quota import explain_quota
from dataset_operator.status import find_condition, fit_message

# Waiting pods may cause no event for minutes.
WAIT_SECONDS = 30.0
# A healthy kubelet removes a pod within this long of the end of its grace period.
LOST_SECONDS = 60.0
# How often to check whether a name is free again: foreign objects trigger no pass.
COLLISION_SECONDS = 60.0
# A starting head or a busy KubeRay may be silent for this long before it is reported.
SILENCE_SECONDS = 60.0


def watch_ray(draft: Draft) -> bool:
    """Record since when a ready head has not answered; until it does, no progress is known."""
    head = draft.observed.head
    if draft.observed.ray_reachable or head is None or not head.ready:
        draft.forget("unreachableTime")
    else:
        draft.status.setdefault("unreachableTime", draft.stamp())
        draft.look_again(POLL_SECONDS)
    return False


def yield_to_queue(draft: Draft) -> bool:
    """End the attempt without a failure if a queue takes its cluster back.

    The next attempt resumes once the queue admits the cluster again and this driver has ended.
    """
    submission, cluster, job = draft.submission, draft.observed.ray_cluster, draft.observed.job
    if submission is None or cluster is None:
        return False
    if not is_suspended(cluster) and draft.reason(draft.work) != WAITING_FOR_QUEUE:
        return False
    if job is not None and job.status == "SUCCEEDED":
        return False  # it ended before the queue took the cluster back: `judge_job` handles it
    heads = {pod.uid: pod for pod in draft.observed.pods if pod.role == HEAD}
    head = heads.get(submission["headPodUid"])
    if head is not None and (head.ends is None or draft.until(head.ends, LOST_SECONDS) > 0):
        if head.ends is None and not is_suspended(cluster):
            return False  # admitted again before KubeRay noticed the suspension
        message = "a queue reclaims the cluster: the driver saves its state and ends"
        draft.condition(draft.work, False, WAITING_FOR_QUEUE, message)
        draft.look_again(POLL_SECONDS)
        _is_queued(draft)
        return True
    draft.forget("submission")
    draft.has_finalizer = False
    message = f"a queue reclaimed the cluster of attempt {draft.attempt}; the next attempt resumes"
    draft.condition(draft.work, False, WAITING_FOR_QUEUE, message)
    return False


def is_suspended(cluster: Mapping[str, Any]) -> bool:
    """Return whether the cluster is suspended; `spec.suspend` belongs to a queue, not to us."""
    return bool(cluster.get("spec", {}).get("suspend"))


def recover_lost(draft: Draft) -> bool:
    """Fail the attempt if its head, its cluster or its token, which Ray requires, is gone."""
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
    """Replace the cluster after an edit of the part of the spec that it is made from.

    A running attempt is stopped for it only if updatePolicy allows that, and only if the API server
    accepts the new cluster.
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
        if draft.take(stop_driver(draft.situation)):
            return True
        draft.forget("submission")
        draft.has_finalizer = False
    draft.release_cluster()
    message = "the spec that the cluster is made from was edited"
    draft.condition(CLUSTER_READY, False, CLUSTER_CREATING, message)
    draft.look_again(WAIT_SECONDS)
    return True


def _is_going(draft: Draft) -> bool:
    """Return whether the previous cluster is still being deleted.

    KubeRay would take its pods for pods of the next cluster. A pod that outlives its grace period
    is on a lost node and may stay for ever, so nothing waits for it.
    """
    cluster = draft.observed.ray_cluster
    if cluster is not None:
        return "deletionTimestamp" in cluster["metadata"]
    return any(
        pod.ends is None or draft.until(pod.ends, LOST_SECONDS) > 0 for pod in draft.observed.pods
    )


def _render(draft: Draft) -> Document:
    """Build the cluster from the present spec, with the last number of data workers of this run."""
    source = ClusterInput(
        owner=draft.owner,
        spec=draft.cluster_spec,
        settings=draft.settings,
        spec_hash=draft.read_again(draft.cluster_spec).cluster_hash,
        history_uri=find_history_uri(draft.situation, draft.cluster_spec),
    )
    first = draft.settings.data_worker_replicas or draft.cluster_spec.data_workers.min_replicas
    workers = draft.status.get("dataWorkers", {}).get("desiredReplicas", first)
    labels = draft.observed.document["metadata"].get("labels")
    return build_ray_cluster(source, workers, labels)


def ensure_children(draft: Draft) -> bool:
    """Create missing objects and undo edits by hand; what already runs keeps running."""
    observed, owner = draft.observed, draft.owner
    cluster = observed.ray_cluster
    if observed.foreign and (cluster is None or _find_wrong(draft)):
        return _refuse_collision(draft)
    if _is_going(draft):
        message = "the previous cluster is still being deleted"
        draft.condition(CLUSTER_READY, False, CLUSTER_CREATING, message)
        draft.look_again(WAIT_SECONDS)
        return True
    if cluster is None:
        return _make_cluster(draft)
    if not observed.has_token:
        draft.create.append(build_token_secret(owner, draft.token))
    draft.create += draft.find_missing_account()
    draft.apply += _find_wrong(draft)
    draft.status["gpus"] = draft.on_cluster.spec.num_gpus
    if draft.spec is not None:
        _correct(draft, cluster)
    return False


def _correct(draft: Draft, cluster: Mapping[str, Any]) -> None:
    """Undo edits by hand, unless the rendered spec is unknown or is not allowed any more."""
    rendered, workers = draft.observed.rendered, draft.cluster_spec.data_workers
    patch = correct(cluster, rendered, workers)
    if broken := name_broken_seal(draft.situation, "RayCluster"):
        draft.not_corrected = f"{broken} has annotations that the operator did not write"
    elif patch is not None and rendered is not None:
        made = {"kind": "RayCluster", "spec": rendered}
        if why := find_forbidden(draft.owner, draft.settings, made):
            draft.not_corrected = f"it was created with fields that are no longer allowed: {why}"
            patch = correct(cluster, None, workers)
    if patch is not None:
        draft.patches.append(("RayCluster", draft.owner.ray_cluster, patch))
        message = "the RayCluster was changed to match the spec"
        draft.tell(CLUSTER_CORRECTED, message, is_outcome=True)


def _refuse_collision(draft: Draft) -> bool:
    """Report foreign objects that have the names of ours; they are neither changed nor used."""
    names = ", ".join(draft.observed.foreign)
    message = (
        f"{names} in this namespace: not this experiment's, or damaged; delete it, or rename the "
        "experiment"
    )
    draft.condition(CLUSTER_READY, False, NAME_COLLISION, message, warns=True)
    draft.look_again(COLLISION_SECONDS)
    return True


def _make_cluster(draft: Draft) -> bool:
    cluster = draft.trial = _render(draft)
    draft.look_again(WAIT_SECONDS)
    if refusal := draft.observed.refusal:
        message = f"the API server refuses the RayCluster: {refusal.message}"
        draft.condition(CLUSTER_READY, False, CLUSTER_REFUSED, message, warns=True)
        return True
    if not draft.observed.has_token:
        draft.create.append(build_token_secret(draft.owner, draft.token))
    draft.create += draft.find_missing_account()
    draft.apply += _find_wrong(draft)
    draft.create.append(cluster)
    draft.status["rayClusterName"] = draft.owner.ray_cluster
    if draft.reason(CLUSTER_READY) != CLUSTER_REFUSED:  # an object may be refused again
        draft.condition(CLUSTER_READY, False, CLUSTER_CREATING, "the cluster is being created")
    return True


def _find_wrong(draft: Draft) -> list[Document]:
    """Build the owned objects that are missing or differ from what they should be."""
    owner, there = draft.owner, draft.observed.children
    guards = [
        build_network_policy(owner, draft.settings.network),
        *build_disruption_budgets(owner, draft.on_cluster.spec),
    ]
    wrong = [g for g in guards if not is_as_built(there.get(g["metadata"]["name"]), g)]
    run, run_hash = draft.status["run"], draft.status["runHash"]
    # Immutable: it keeps the spec that the run began with, also after an edit during the run.
    if owner.config_map(run, run_hash) not in there and not draft.is_run_changed:
        wrong.append(build_config_map(owner, run, run_hash, draft.build_config()))
    return wrong


def wait_for_pods(draft: Draft) -> bool:
    """Wait until the head, all trainers and one data worker are ready, which is enough to begin."""
    trainers = draft.on_cluster.spec.num_trainers
    needed: dict[Role, int] = {HEAD: 1, TRAINERS: trainers, DATA_WORKERS: 1}
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
    """Return whether the cluster is suspended, and set the condition if it is."""
    cluster = draft.observed.ray_cluster
    if cluster is None or not is_suspended(cluster):
        return False
    queue = (cluster["metadata"].get("labels") or {}).get(KUEUE_QUEUE_LABEL)
    by = f"the queue {queue} has not admitted it" if queue else "somebody has set spec.suspend"
    message = f"the RayCluster is suspended: {by}; it starts once spec.suspend is false"
    draft.condition(CLUSTER_READY, False, WAITING_FOR_QUEUE, message)
    draft.look_again(WAIT_SECONDS)
    return True


def _wait_for_ranks(draft: Draft) -> bool:
    """Wait for a cluster with the number of ranks that a run in order can resume on."""
    has, needs = draft.on_cluster.spec.trainers, draft.running.spec.trainers
    message = (
        f"the cluster has {has.world_size} ranks, but with preserveOrder the run needs "
        f"{needs.world_size}"
    )
    refusal = draft.observed.refusal
    _say_waiting(draft, message, refusal.message if refusal else "")
    draft.look_again(WAIT_SECONDS)
    return True


def _say_up(draft: Draft) -> None:
    """Report that the cluster is ready, or a problem of it that does not stop the training."""
    refusal, is_wrong = draft.observed.refusal, draft.apply or draft.patches
    silent_since = draft.status.get("unreachableTime")
    if silent_since and draft.until(parse_time(silent_since), SILENCE_SECONDS) <= 0:
        message = f"the pods are up, but Ray does not answer: {draft.observed.ray_failure}"
        draft.condition(CLUSTER_READY, False, RAY_UNREACHABLE, message, warns=True)
    elif refusal is not None and draft.trial is None:
        message = f"the cluster is up, but the API server refuses an object: {refusal.message}"
        draft.condition(CLUSTER_READY, True, OWNED_OBJECT_REFUSED, message, warns=True)
    elif draft.not_corrected:
        message = f"the cluster is up, but edits by hand are not undone: {draft.not_corrected}"
        draft.condition(CLUSTER_READY, True, NOT_CORRECTED, message, warns=True)
    elif not (
        is_wrong and draft.reason(CLUSTER_READY) == OWNED_OBJECT_REFUSED
    ):  # it is retried now
        pods = "head and data workers" if draft.is_writing else "head, trainers and data workers"
        draft.condition(CLUSTER_READY, True, PODS_READY, f"{pods} are up")


def _say_waiting(draft: Draft, short: str, cause: str) -> None:
    """Report that pods are not ready; warn once it is known why they do not start."""
    message = fit_message(f"{short}: {cause}" if cause else short)
    before = find_condition(draft.status, CLUSTER_READY)
    if before is not None and _causes(before["message"]) == _causes(message):
        message = before["message"]  # the kubelet alternates between two words
    draft.condition(CLUSTER_READY, False, WAITING_FOR_PODS, message, warns=bool(cause))
    waited = before is not None and before["reason"] == WAITING_FOR_PODS
    if waited and cause and not _names_cause(before):
        draft.tell(WAITING_FOR_PODS, message, warns=True)


def _names_cause(condition: Mapping[str, Any] | None) -> bool:
    return condition is not None and ": " in condition["message"]


def _causes(message: str) -> str:
    """Reduce a message to what identifies its cause: no numbers, one word for failed pulls."""
    words = message.replace("ImagePullBackOff", "ErrImagePull").split(": ")
    return re.sub(r"\d+", "#", ": ".join(words[:3]))


def _find_stuck(draft: Draft, short: Sequence[Role]) -> str:
    """Describe a pod that should be gone for long; "" if there is none.

    KubeRay still counts it and creates no replacement. It may still run on a node that does not
    answer, so a person has to decide whether to give it up.
    """
    for pod in draft.observed.pods:
        is_late = pod.ends is not None and draft.until(pod.ends, LOST_SECONDS) <= 0
        if is_late and pod.role in short:
            command = f"kubectl delete pod {pod.name} -n {draft.owner.namespace} --force"
            why = "does not end and its node does not answer; if the node is gone, run"
            return f"{pod.name} {why} {command}"
    return ""


def _replica_failure(draft: Draft) -> str:
    """Return why KubeRay cannot create pods, such as a quota or an admission policy."""
    cluster = draft.observed.ray_cluster
    found = find_condition((cluster or {}).get("status") or {}, REPLICA_FAILURE)
    return explain_quota(found.get("message", "")) if found and found["status"] == "True" else ""


def _find_silence(draft: Draft) -> str:
    """Describe that KubeRay ignores the cluster, if it has for long; "" if it does not."""
    cluster = draft.observed.ray_cluster or {}
    created = cluster.get("metadata", {}).get("creationTimestamp")
    if created is None or cluster.get("status") or draft.observed.pods:
        return ""
    if draft.until(parse_time(created), SILENCE_SECONDS) > 0:
        return ""
    return "KubeRay does not act on the RayCluster; ask your administrator whether KubeRay runs"


def _count_workers(draft: Draft) -> None:
    cluster = draft.observed.ray_cluster
    assert cluster is not None
    groups = cluster["spec"].get("workerGroupSpecs") or ()
    wanted = [group.get("replicas") for group in groups if group["groupName"] == DATA_WORKERS]
    draft.status["dataWorkers"] = {
        **draft.status.get("dataWorkers", {}),
        "currentReplicas": sum(pod.role == DATA_WORKERS for pod in draft.observed.pods),
        "readyReplicas": draft.observed.ready(DATA_WORKERS),
        # If the group or its number is missing, keep the previous value: this pass restores it.
        **({"desiredReplicas": wanted[0]} if wanted and wanted[0] is not None else {}),
    }
