"""Verdicts that several rules share: complete the objects of a cluster, and release them."""

from __future__ import annotations

from collections.abc import Callable

from dataset_operator.api import SCALING_ACTIVE, SCALING_LIMITED
from dataset_operator.builders.children import build_service_account
from dataset_operator.groups import list_scaled
from dataset_operator.plan.outcome import Create, Delete
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import (
    NOTHING,
    Verdict,
    act,
    change,
    clear_conditions,
    clear_fields,
)
from pipeline_runtime.config import InferenceWorkerStatus, WorkerStatus


def create_missing_account(situation: Situation) -> Verdict:
    """Create the pods' service account if the settings name none and it does not exist yet."""
    is_named = situation.settings.service_account is not None
    if is_named or situation.owner.service_account in situation.observed.children:
        return NOTHING
    return act(Create(build_service_account(situation.owner)))


def release_cluster(situation: Situation, *, deletes: bool = True) -> Verdict:
    """Delete the RayCluster with its pods, and clear its status; keep it without `deletes`."""
    verdict = clear_fields("ray_cluster_name", "gpus", "unreachable_time")
    verdict += clear_conditions(SCALING_ACTIVE, SCALING_LIMITED)
    verdict += change_numbers(situation, _forget_pods)
    if deletes and situation.observed.cluster is not None:
        verdict += act(Delete("RayCluster", situation.owner.ray_cluster))
    return verdict


def _forget_pods(workers: WorkerStatus) -> WorkerStatus:
    workers = forget_drain(workers).change(current_replicas=0, ready_replicas=0)
    is_explained = isinstance(workers, InferenceWorkerStatus)
    return workers.change(reason=None, message=None) if is_explained else workers


def change_numbers(
    situation: Situation, find: Callable[[WorkerStatus], WorkerStatus | None]
) -> Verdict:
    """Change the numbers of each group that a policy scales.

    Args:
        find: returns the new numbers; None clears them.
    """
    verdict = NOTHING
    for kind in list_scaled(situation.observed.groups):
        numbers = filter(None, map(find, kind.list_numbers(situation.status)))
        verdict += change(**kind.write_numbers(tuple(numbers)))
    return verdict


def forget_drain(workers: WorkerStatus) -> WorkerStatus:
    """Forget the draining workers; the wanted number is the number that was to stay."""
    if not workers.draining:
        return workers
    staying = workers.draining_to
    wanted = workers.desired_replicas if staying is None else staying
    return workers.change(draining=None, draining_to=None, desired_replicas=wanted)
