"""Rules about the cluster: detect its loss, create and correct its objects, wait for its pods."""

from __future__ import annotations

import re
from collections.abc import Collection

from dataset_operator.api import (
    CLUSTER_CORRECTED,
    CLUSTER_CREATING,
    CLUSTER_LOST,
    CLUSTER_READY,
    CLUSTER_REFUSED,
    DATA_WORKERS,
    HEAD,
    NAME_COLLISION,
    NOT_CORRECTED,
    OUT_OF_MEMORY,
    OWNED_OBJECT_REFUSED,
    PODS_READY,
    RAY_UNREACHABLE,
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
from dataset_operator.documents import Document
from dataset_operator.groups import (
    Bounds,
    Group,
    count_needed,
    find_kind,
    find_scaled_bounds,
    list_scaled,
    resolve_groups,
)
from dataset_operator.observed import Cluster, Pod
from dataset_operator.plan.accepted import name_broken_seal
from dataset_operator.plan.attempt import blame_memory, fail_attempt
from dataset_operator.plan.cluster_objects import create_missing_account, release_cluster
from dataset_operator.plan.ending import POLL_SECONDS, stop_driver
from dataset_operator.plan.keeping_history import find_history_uri
from dataset_operator.plan.outcome import Apply, Create, Patch, Trial
from dataset_operator.plan.pod_rules import find_forbidden
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import (
    ATTEMPT_OVER,
    END,
    NOTHING,
    Verdict,
    act,
    change,
    clear_fields,
    look_again,
    record_event,
    set_condition,
)
from dataset_operator.quota import explain_quota
from dataset_operator.status import fit_message
from pipeline_runtime.config import WorkerStatus

# Waiting pods may cause no event for minutes.
WAIT_SECONDS = 30.0
# A healthy kubelet removes a pod within this long of the end of its grace period.
LOST_SECONDS = 60.0
# How often to check whether a name is free again: foreign objects trigger no pass.
COLLISION_SECONDS = 60.0
# A starting head or a busy KubeRay may be silent for this long before it is reported.
SILENCE_SECONDS = 60.0


def watch_ray(situation: Situation) -> Verdict:
    """Record since when a ready head has not answered; until it does, no progress is known."""
    head = situation.observed.head
    if situation.observed.ray_reachable or head is None or not head.ready:
        return clear_fields("unreachable_time")
    since = situation.status.unreachable_time or situation.stamp
    return change(unreachable_time=since) + look_again(POLL_SECONDS)


def yield_to_queue(situation: Situation) -> Verdict | None:
    """End the attempt without a failure if a queue takes its cluster back.

    The next attempt resumes once the queue admits the cluster again and this driver has ended.
    """
    cluster, job = situation.observed.cluster, situation.observed.job
    if situation.submission is None or cluster is None:
        return None
    is_reclaimed = cluster.is_suspended
    if not is_reclaimed and situation.reason(situation.work) != WAITING_FOR_QUEUE:
        return None
    if job is not None and job.status == "SUCCEEDED":
        return None  # it ended before the queue took the cluster back: `judge_job` handles it
    head = _find_head(situation)
    if head is not None and not is_on_lost_node(situation, head):
        if head.ends is None and not is_reclaimed:
            return None  # admitted again before KubeRay noticed the suspension
        message = "a queue reclaims the cluster: the driver saves its state and ends"
        reclaimed = set_condition(situation.work, False, WAITING_FOR_QUEUE, message)
        return reclaimed + _report_queued(situation) + look_again(POLL_SECONDS) + END
    attempt = situation.attempt
    message = f"a queue reclaimed the cluster of attempt {attempt}; the next attempt resumes"
    return ATTEMPT_OVER + set_condition(situation.work, False, WAITING_FOR_QUEUE, message)


def is_on_lost_node(situation: Situation, pod: Pod) -> bool:
    """Return whether a pod outlives its grace period, as only a pod on a lost node does."""
    return pod.ends is not None and situation.until(pod.ends, LOST_SECONDS) <= 0


def _find_head(situation: Situation) -> Pod | None:
    """Return the head that the present attempt was submitted to; None if it is gone."""
    submission = situation.submission
    heads = {pod.uid: pod for pod in situation.observed.pods if pod.role == HEAD}
    return heads.get(submission.head_pod_uid) if submission else None


def recover_lost(situation: Situation) -> Verdict | None:
    """Fail the attempt if its head, its cluster or its token, which Ray requires, is gone."""
    observed = situation.observed
    if observed.cluster is not None and not observed.has_token:
        released = release_cluster(situation) + look_again(WAIT_SECONDS) + END
        if situation.submission is None:
            return released
        return released + _lose(situation.after(released), "its token's Secret is gone")
    if situation.submission is None:
        return None
    if observed.cluster is None:
        return _lose(situation, "its RayCluster is gone")
    head = _find_head(situation)
    if head is not None and (why := blame_memory(situation, head)):
        return fail_attempt(situation, OUT_OF_MEMORY, why)
    others = (pod for pod in observed.pods if pod.role == HEAD and pod != head)
    if other := next(others, None):
        return _lose(situation, f"its head was replaced by {other.name}")
    return None


def _lose(situation: Situation, why: str) -> Verdict:
    return fail_attempt(situation, CLUSTER_LOST, f"the cluster was lost: {why}")


def replace_changed(situation: Situation) -> Verdict | None:
    """Replace the cluster after an edit of the part of the spec that it is made from.

    A running attempt is stopped for it only if updatePolicy allows that, and only if the API server
    accepts the new cluster.
    """
    job = situation.observed.job
    if situation.spec is None or not situation.is_cluster_changed or _is_going(situation):
        return None
    replaced = act(Trial(_render(situation)))
    if situation.observed.refusal is not None:
        return replaced
    if situation.submission is not None:
        has_ended = job is not None and job.status in ("SUCCEEDED", "FAILED")
        if has_ended or situation.wanted.update_policy == "AfterRun":
            return replaced
        if stopping := stop_driver(situation):
            return replaced + stopping
        replaced += ATTEMPT_OVER
    message = "the spec that the cluster is made from was edited"
    creating = set_condition(CLUSTER_READY, False, CLUSTER_CREATING, message)
    return replaced + release_cluster(situation) + creating + look_again(WAIT_SECONDS) + END


def _is_going(situation: Situation) -> bool:
    """Return whether the previous cluster is still being deleted.

    KubeRay would take its pods for pods of the next cluster. A pod on a lost node may stay for
    ever, so nothing waits for it.
    """
    cluster = situation.observed.cluster
    if cluster is not None:
        return cluster.is_going
    return not all(is_on_lost_node(situation, pod) for pod in situation.observed.pods)


def _render(situation: Situation) -> Document:
    """Build the cluster from the present spec, with the last numbers of workers of this run."""
    spec, settings = situation.cluster_spec, situation.settings
    groups = situation.observed.groups
    wanted = {
        group.role: group.find_numbers(situation.status).desired_replicas
        for group in resolve_groups(spec, list_scaled(groups))
    }
    if wanted.get(DATA_WORKERS) is None:
        wanted[DATA_WORKERS] = settings.data_worker_replicas
    source = ClusterInput(
        owner=situation.owner,
        spec=spec,
        settings=settings,
        spec_hash=situation.specs.read_again(spec).cluster_hash,
        history_uri=find_history_uri(situation, spec),
        replicas={role: number for role, number in wanted.items() if number is not None},
        groups=groups,
    )
    labels = situation.observed.document["metadata"].get("labels")
    return build_ray_cluster(source, labels)


def ensure_children(situation: Situation) -> Verdict:
    """Create missing objects and undo edits by hand; what already runs keeps running."""
    cluster, foreign = situation.observed.cluster, situation.observed.foreign
    wrong = act(*map(Apply, _find_wrong(situation)))
    if foreign and (cluster is None or wrong.actions):
        # Foreign objects that have the names of ours are neither changed nor used.
        message = (
            f"{', '.join(foreign)} in this namespace: not this experiment's, or damaged; delete "
            "it, or rename the experiment"
        )
        collision = set_condition(CLUSTER_READY, False, NAME_COLLISION, message, warns=True)
        return collision + look_again(COLLISION_SECONDS) + END
    if _is_going(situation):
        message = "the previous cluster is still being deleted"
        going = set_condition(CLUSTER_READY, False, CLUSTER_CREATING, message)
        return going + look_again(WAIT_SECONDS) + END
    wrong += create_missing_account(situation)
    if cluster is None:
        return _create_cluster(situation, wrong) + look_again(WAIT_SECONDS) + END
    patch = _find_correction(situation, cluster)
    if patch is not None:
        wrong += act(Patch("RayCluster", situation.owner.ray_cluster, patch))
        message = "the RayCluster was changed to match the spec"
        wrong += record_event(CLUSTER_CORRECTED, message, is_outcome=True)
    return wrong + change(gpus=situation.on_cluster.spec.num_gpus)


def _create_cluster(situation: Situation, others: Verdict) -> Verdict:
    """Create the cluster and the objects beside it, unless the API server refuses the cluster."""
    observed, owner, cluster = situation.observed, situation.owner, _render(situation)
    trial = act(Trial(cluster))
    if observed.refusal is not None:
        message = f"the API server refuses the RayCluster: {observed.refusal.message}"
        return trial + set_condition(CLUSTER_READY, False, CLUSTER_REFUSED, message, warns=True)
    is_token_missing = not observed.has_token
    token = [Create(build_token_secret(owner, observed.fresh_token))] if is_token_missing else []
    created = trial + act(*token) + others + act(Create(cluster))
    created += change(ray_cluster_name=owner.ray_cluster)
    if situation.reason(CLUSTER_READY) == CLUSTER_REFUSED:
        return created  # an object may be refused again
    message = "the cluster is being created"
    return created + set_condition(CLUSTER_READY, False, CLUSTER_CREATING, message)


def _find_correction(situation: Situation, cluster: Cluster) -> Document | None:
    """Return the patch that undoes edits by hand; None if there are none.

    Only the numbers of scaled groups are corrected if the rendered spec is unknown or not allowed
    any more, and nothing if the wanted spec is invalid.
    """
    if situation.spec is None:
        return None
    scaled = _find_scaled_bounds(situation, cluster)
    patch = correct(cluster.document, situation.observed.rendered, scaled)
    if patch is not None and _find_forbidden_parts(situation):
        return correct(cluster.document, None, scaled)
    return patch


def _find_scaled_bounds(situation: Situation, cluster: Cluster) -> dict[Role, Bounds]:
    """Return the bounds of the groups that policies scale.

    A group that the spec has no more, or under another name, keeps its numbers until the next
    cluster, since the run still calls its pods.
    """
    groups = situation.observed.groups
    bounds = find_scaled_bounds(situation.cluster_spec, groups)
    for seen in cluster.document["spec"].get("workerGroupSpecs") or ():
        role = seen["groupName"]
        kind = find_kind(role, groups)
        if kind is not None and kind.scaled_by == "Policy" and role not in bounds:
            least, most = seen.get("minReplicas", 0), seen.get("maxReplicas", 0)
            bounds[role] = Bounds(least, least, most)
    return bounds


def _find_forbidden_parts(situation: Situation) -> str:
    """Return what the platform does not allow of the cluster as it was rendered; "" if nothing."""
    rendered = situation.observed.rendered
    made = {"kind": "RayCluster", "spec": rendered}
    return find_forbidden(situation.owner, situation.settings, made) if rendered else ""


def _find_uncorrected(situation: Situation, cluster: Cluster) -> str:
    """Return why edits by hand are not undone; "" if they are, or if there are none."""
    if situation.spec is None:
        return ""
    if broken := name_broken_seal(situation, "RayCluster"):
        return f"{broken} has annotations that the operator did not write"
    why = _find_forbidden_parts(situation)
    scaled = _find_scaled_bounds(situation, cluster)
    if not why or correct(cluster.document, situation.observed.rendered, scaled) is None:
        return ""
    return f"it was created with fields that are no longer allowed: {why}"


def _find_wrong(situation: Situation) -> list[Document]:
    """Build the owned objects that are missing or differ from what they should be."""
    owner, there = situation.owner, situation.observed.children
    guards = [
        build_network_policy(owner, situation.settings.network),
        *build_disruption_budgets(owner, situation.on_cluster.spec, situation.observed.groups),
    ]
    wrong = [g for g in guards if not is_as_built(there.get(g["metadata"]["name"]), g)]
    run, run_hash = situation.run, situation.status.run_hash
    assert run_hash is not None  # every run has one
    # Immutable: it keeps the spec that the run began with, also after an edit during the run.
    if owner.config_map(run, run_hash) not in there and not situation.is_run_changed:
        manifest = situation.specs.build_manifest(situation.running.spec)
        wrong.append(build_config_map(owner, run, run_hash, manifest))
    return wrong


def wait_for_pods(situation: Situation) -> Verdict:
    """Wait until the pods that each group needs are ready, which is enough to begin."""
    observed, has = situation.observed, situation.on_cluster.spec
    assert observed.cluster is not None  # ensure_children
    needed = _count_needed(situation, observed.cluster)
    short = {role: number for role, number in needed.items() if observed.ready(role) < number}
    counted = _count_workers(situation, observed.cluster)
    if situation.submission is None and situation.is_rank_count_wrong:
        ranks, needs = has.trainers.world_size, situation.running.spec.trainers.world_size
        message = f"the cluster has {ranks} ranks, but with preserveOrder the run needs {needs}"
        cause = observed.refusal.message if observed.refusal else ""
    elif not short:
        return counted + _report_ready(situation, observed.cluster)
    elif observed.cluster.is_suspended:
        return counted + _report_queued(situation) + END
    else:
        parts = (
            f"{observed.ready(role)} of {needed} {role} ready" for role, needed in short.items()
        )
        message, cause = ", ".join(parts), _find_cause(situation, observed.cluster, short)
    return counted + _report_waiting(situation, message, cause) + look_again(WAIT_SECONDS) + END


def _count_needed(situation: Situation, cluster: Cluster) -> dict[Role, int]:
    """Return the pods that each role needs; none of a group that only the next cluster has."""
    groups = situation.observed.groups
    later = {
        group.role
        for group in resolve_groups(situation.on_cluster.spec, groups)
        if group.kind.is_list and cluster.find_group(group.role) is None
    }
    needed = count_needed(situation.on_cluster.spec, groups)
    return {role: number for role, number in needed.items() if role not in later}


def _report_queued(situation: Situation) -> Verdict:
    """Report that the cluster is suspended; nothing if it is not."""
    cluster = situation.observed.cluster
    if cluster is None or not cluster.is_suspended:
        return NOTHING
    queue = cluster.queue
    by = f"the queue {queue} has not admitted it" if queue else "somebody has set spec.suspend"
    message = f"the RayCluster is suspended: {by}; it starts once spec.suspend is false"
    queued = set_condition(CLUSTER_READY, False, WAITING_FOR_QUEUE, message)
    return queued + look_again(WAIT_SECONDS)


def _report_ready(situation: Situation, cluster: Cluster) -> Verdict:
    """Report that the cluster is ready, or a problem of it that does not stop the training."""
    refusal, since = situation.observed.refusal, situation.status.unreachable_time
    if since and situation.until(since, SILENCE_SECONDS) <= 0:
        message = f"the pods are up, but Ray does not answer: {situation.observed.ray_failure}"
        return set_condition(CLUSTER_READY, False, RAY_UNREACHABLE, message, warns=True)
    if refusal is not None and not situation.will(Trial):
        message = f"the cluster is up, but the API server refuses an object: {refusal.message}"
        return set_condition(CLUSTER_READY, True, OWNED_OBJECT_REFUSED, message, warns=True)
    if not_corrected := _find_uncorrected(situation, cluster):
        message = f"the cluster is up, but edits by hand are not undone: {not_corrected}"
        return set_condition(CLUSTER_READY, True, NOT_CORRECTED, message, warns=True)
    if situation.will(Apply, Patch) and situation.reason(CLUSTER_READY) == OWNED_OBJECT_REFUSED:
        return NOTHING  # it is retried now
    groups = resolve_groups(situation.on_cluster.spec, situation.observed.groups)
    *nouns, last = dict.fromkeys(f"{group.kind.noun}s" for group in groups)
    message = f"{', '.join(['head', *nouns])} and {last} are up"
    return set_condition(CLUSTER_READY, True, PODS_READY, message)


def _report_waiting(situation: Situation, short: str, cause: str) -> Verdict:
    """Report that pods are not ready; warn once it is known why they do not start."""
    message = fit_message(f"{short}: {cause}" if cause else short)
    before = situation.status.find(CLUSTER_READY)
    if before is not None and _identify_cause(before.message) == _identify_cause(message):
        message = before.message  # the kubelet alternates between two words
    waiting = set_condition(CLUSTER_READY, False, WAITING_FOR_PODS, message, warns=bool(cause))
    if before is None or before.reason != WAITING_FOR_PODS:
        return waiting
    if cause and ": " not in before.message:
        waiting += record_event(WAITING_FOR_PODS, message, warns=True)
    return waiting


def _identify_cause(message: str) -> str:
    """Reduce a message to what identifies its cause: no numbers, one word for failed pulls."""
    words = message.replace("ImagePullBackOff", "ErrImagePull").split(": ")
    return re.sub(r"\d+", "#", ": ".join(words[:3]))


def _find_cause(situation: Situation, cluster: Cluster, short: Collection[Role]) -> str:
    """Return why pods of the given roles do not start; "" if nothing reports it."""
    pods = [pod for pod in situation.observed.pods if pod.role in short]
    if stuck := next((pod for pod in pods if is_on_lost_node(situation, pod)), None):
        # KubeRay still counts it and creates no replacement. It may still run on a node that does
        # not answer, so a person has to decide whether to give it up.
        command = f"kubectl delete pod {stuck.name} -n {situation.owner.namespace} --force"
        why = "does not end and its node does not answer; if the node is gone, run"
        return f"{stuck.name} {why} {command}"
    if waiting := next((pod.waiting for pod in pods if pod.waiting), ""):
        return waiting
    if cluster.failure and cluster.failure.message:
        return explain_quota(cluster.failure.message)  # a quota or an admission policy
    is_ignored = not cluster.is_handled and not situation.observed.pods
    if is_ignored and cluster.created and situation.until(cluster.created, SILENCE_SECONDS) <= 0:
        return "KubeRay does not act on the RayCluster; ask your administrator whether KubeRay runs"
    return ""


def _count_workers(situation: Situation, cluster: Cluster) -> Verdict:
    """Record the present numbers of each group that a policy scales."""
    counted = NOTHING
    for kind in list_scaled(situation.observed.groups):
        groups = resolve_groups(situation.cluster_spec, [kind])
        numbers = [_count_group(situation, cluster, group) for group in groups]
        counted += change(**kind.write_numbers(numbers))
    return counted


def _count_group(situation: Situation, cluster: Cluster, group: Group) -> WorkerStatus:
    workers, observed = group.find_numbers(situation.status), situation.observed
    seen = cluster.find_group(group.role)
    if seen and seen.replicas is not None:  # else this pass restores the previous number
        workers = workers.change(desired_replicas=seen.replicas)
    return workers.change(
        current_replicas=sum(pod.role == group.role for pod in observed.pods),
        ready_replicas=observed.ready(group.role),
    )
