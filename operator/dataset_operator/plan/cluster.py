"""Rules about the cluster: lost ones, children that are to be there, pods to wait for."""

from __future__ import annotations

from dataset_operator.api import (
    CLUSTER_CREATING,
    CLUSTER_LOST,
    CLUSTER_READY,
    DATA_WORKERS,
    HEAD,
    PODS_READY,
    TRAINERS,
    WAITING_FOR_PODS,
    Role,
)
from dataset_operator.builders.children import (
    build_config_map,
    build_disruption_budgets,
    build_network_policy,
    build_token_secret,
)
from dataset_operator.builders.pods import ClusterInput
from dataset_operator.builders.raycluster import build_ray_cluster
from dataset_operator.observed import Document
from dataset_operator.plan.attempt import fail_attempt
from dataset_operator.plan.draft import Draft

# Pods that wait give no events of their own for minutes at a time.
WAIT_SECONDS = 30.0


def recover_lost(draft: Draft) -> bool:
    """A driver whose head, cluster or token is gone has ended; without a token nobody gets in."""
    cluster, head, submission = draft.observed.ray_cluster, draft.observed.head, draft.submission
    if cluster is not None and not draft.observed.has_token:
        draft.release_cluster()
        draft.look_again(WAIT_SECONDS)
        _lose(draft, "its token's Secret is gone")
        return True
    if submission is None:
        return False
    if cluster is None:
        return _lose(draft, "its RayCluster is gone")
    if head is not None and head.uid != submission["headPodUid"]:
        return _lose(draft, f"its head was replaced by {head.name}")
    return False


def _lose(draft: Draft, why: str) -> bool:
    if draft.submission is None:
        return False
    return fail_attempt(draft, CLUSTER_LOST, f"the cluster was lost: {why}")


def ensure_children(draft: Draft) -> bool:
    """What is not there is made; a cluster that runs is left as it was rendered."""
    observed, owner = draft.observed, draft.owner
    cluster = observed.ray_cluster
    if cluster is not None and "deletionTimestamp" in cluster["metadata"]:
        message = "the cluster before is going"
        draft.condition(CLUSTER_READY, False, CLUSTER_CREATING, message)
        draft.look_again(WAIT_SECONDS)
        return True
    if not observed.has_token:
        draft.create.append(build_token_secret(owner, draft.token))
    beside = _build_beside(draft)
    if cluster is None:
        source = ClusterInput(owner=owner, spec=draft.running.spec, settings=draft.settings)
        workers = draft.running.spec.data_workers.min_replicas
        draft.apply += [*beside, build_ray_cluster(source, workers)]
        draft.status["rayClusterName"] = owner.ray_cluster
        draft.condition(CLUSTER_READY, False, CLUSTER_CREATING, "the cluster is being made")
        draft.look_again(WAIT_SECONDS)
        return True
    draft.apply += [c for c in beside if c["metadata"]["name"] in observed.missing_children]
    return False


def _build_beside(draft: Draft) -> list[Document]:
    owner = draft.owner
    document = dict(draft.observed.document)
    config = {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "metadata": {"name": owner.name},
        "spec": draft.running.spec.to_document(),
    }
    return [
        build_config_map(owner, draft.status["runHash"], config),
        build_network_policy(owner, draft.settings.network),
        *build_disruption_budgets(owner, draft.running.spec),
    ]


def wait_for_pods(draft: Draft) -> bool:
    """Ready is: the head, every trainer, and one data worker, which is enough to begin."""
    needed: dict[Role, int] = {
        HEAD: 1,
        TRAINERS: draft.running.spec.trainers.replicas,
        DATA_WORKERS: 1,
    }
    short = [role for role, number in needed.items() if draft.observed.ready(role) < number]
    _count_workers(draft)
    if not short:
        draft.condition(CLUSTER_READY, True, PODS_READY, "head, trainers and data workers are up")
        return False
    message = ", ".join(
        f"{draft.observed.ready(role)} of {needed[role]} {role} ready" for role in short
    )
    waits = next((p.waiting for p in draft.observed.pods if p.role in short and p.waiting), "")
    message += f": {waits}" if waits else ""
    draft.condition(CLUSTER_READY, False, WAITING_FOR_PODS, message)
    draft.look_again(WAIT_SECONDS)
    return True


def _count_workers(draft: Draft) -> None:
    cluster = draft.observed.ray_cluster
    assert cluster is not None
    groups = {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}
    draft.status["dataWorkers"] = {
        "currentReplicas": sum(pod.role == DATA_WORKERS for pod in draft.observed.pods),
        "readyReplicas": draft.observed.ready(DATA_WORKERS),
        "desiredReplicas": groups[DATA_WORKERS]["replicas"],
    }
