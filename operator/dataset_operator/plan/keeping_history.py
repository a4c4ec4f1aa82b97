"""Rules that store the history of a cluster before it is deleted.

    release   a run has ended or is suspended: store the history, then delete the cluster
    settle    until the history is stored, nothing else is decided; then delete the cluster, even if
              storing failed

The history has what only the operator observes, such as events. The operator has no credentials of
the store, so a short pod writes it, with the credentials of the experiment's head. `status.history`
records the cluster and the state. Nothing waits longer than `history.timeoutSeconds`, and a
deletion no longer than it would for a driver.
"""

from __future__ import annotations

from typing import Literal

from dataset_operator.api import FINALIZER, HEAD, HISTORY_FAILED
from dataset_operator.builders.history_writers import (
    build_history_pod,
    build_history_policy,
    is_store,
    locate_history,
)
from dataset_operator.builders.pod_templates import ClusterInput, build_pod_template
from dataset_operator.documents import Document
from dataset_operator.plan.cluster_objects import create_missing_account, release_cluster
from dataset_operator.plan.outcome import Apply, Create, Delete
from dataset_operator.plan.pod_rules import find_forbidden
from dataset_operator.plan.scaling_log import build_entry, list_decisions
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import (
    END,
    NOTHING,
    Verdict,
    act,
    change,
    look_again,
    record_event,
)
from dataset_operator.status import fit_message
from pipeline_runtime.config import ExperimentSpec, ExperimentStatus, HistoryStatus

POLL_SECONDS = 5.0
PENDING: Literal["Pending"] = "Pending"
_State = Literal["Pending", "Kept", "Failed", "Skipped"]
_MAX_PODS = 64  # pods described in the history; the logs of all pods are stored
_NO_STORE = "the artifacts are not in a store that outlives the pods"
_NO_SPEC = "the ConfigMap with the accepted spec of the run is missing or not valid"


def find_history_uri(situation: Situation, spec: ExperimentSpec) -> str | None:
    """Return the URI of the present run's history; None if none is stored."""
    uri = situation.status.artifacts_uri
    if not situation.settings.history.enabled or uri is None:
        return None
    source = ClusterInput(owner=situation.owner, spec=spec, settings=situation.settings)
    [ray, *_] = build_pod_template(source, HEAD)["spec"]["containers"]
    if not is_store(uri, ray):
        return None
    return locate_history(uri, situation.owner.run_id(situation.run))


def release(situation: Situation) -> Verdict:
    """Release the cluster; it is deleted once its history is stored."""
    is_held, holding = hold(situation)
    return holding + release_cluster(situation, deletes=not is_held)


def settle(situation: Situation) -> Verdict | None:
    """Finish storing a history that was begun, and delete its pod."""
    if _read(situation.status).state != PENDING:
        return _clean(situation)
    is_held, holding = hold(situation)
    if is_held:
        return holding + END
    released = holding + release_cluster(situation) + Verdict(has_finalizer=False)
    return released + _clean(situation.after(holding)) + look_again(0.0) + END


def hold(situation: Situation) -> tuple[bool, Verdict]:
    """Return whether the cluster must stay for its history; begin to store it if necessary."""
    history, cluster = _read(situation.status), situation.observed.cluster
    if history.state == PENDING:
        is_held, verdict = _go_on(situation, history)
    elif cluster is None or cluster.is_going:
        return False, NOTHING
    else:
        attempt = situation.attempt
        if (history.ray_cluster_uid, history.attempt) == (cluster.uid, attempt):
            return False, NOTHING  # it is stored, or cannot be
        new = HistoryStatus(ray_cluster_uid=cluster.uid, attempt=attempt, time=situation.stamp)
        is_held, verdict = _begin(situation, new)
    if is_held and has_finalizer(situation):
        # Without the finaliser, a deletion would remove everything before the pod has written.
        verdict += Verdict(has_finalizer=True)
    return is_held, verdict


def has_finalizer(situation: Situation) -> bool:
    """Return whether our finaliser is there; the history alone never adds it."""
    return FINALIZER in (situation.observed.document["metadata"].get("finalizers") or ())


def _read(status: ExperimentStatus) -> HistoryStatus:
    history = status.history or HistoryStatus()
    needed = (history.pod_name, history.time, history.ray_cluster_uid, history.attempt)
    return history if history.state != PENDING or None not in needed else HistoryStatus()


def _begin(situation: Situation, history: HistoryStatus) -> tuple[bool, Verdict]:
    accepted = situation.specs.accepted
    if not situation.settings.history.enabled:
        why = "history.enabled is false in the operator's settings"
        return False, _set(history, "Skipped", why)
    if accepted is None:
        return False, _set(history, "Failed", _NO_SPEC)
    if find_history_uri(situation, accepted.valid.spec) is None:
        return False, _set(history, "Skipped", _NO_STORE)
    name = situation.owner.history_pod(situation.run, situation.attempt)
    # `observe` collects the history once the status is Pending.
    return True, _set(history.change(pod_name=name), PENDING, "") + look_again(0.0)


def _go_on(situation: Situation, history: HistoryStatus) -> tuple[bool, Verdict]:
    """Create the pod or check its state; return whether to wait for it."""
    pod, refusal = situation.observed.history_pod, situation.observed.refusal
    assert history.time is not None
    timeout_seconds = situation.settings.history.timeout_seconds
    left = situation.until(history.time, timeout_seconds)
    if pod is not None and pod.phase == "Succeeded" and not pod.is_going:
        return False, _set(history, "Kept", "")
    if pod is not None and pod.phase == "Failed" and not pod.is_going:
        return _fail(history, pod.message or "its pod failed")
    if refusal is not None:
        return _fail(history, f"the API server refuses its pod: {refusal.message}")
    if left <= 0:
        waits = f": {pod.message}" if pod is not None and pod.message else ""
        limit = f"history.timeoutSeconds ({timeout_seconds})"
        return _fail(history, f"its pod did not finish within {limit}{waits}")
    accepted, uri = situation.specs.accepted, situation.status.artifacts_uri
    if accepted is None or uri is None:
        return _fail(history, _NO_SPEC)
    verdict = look_again(min(POLL_SECONDS, left))
    if pod is not None:
        return True, verdict
    built = _build_pod(situation, history, accepted.valid.spec)
    if why := find_forbidden(situation.owner, situation.settings, built):
        return _fail(history, why)
    policy = build_history_policy(situation.owner, situation.settings.network)
    # A cluster that an older operator made may have no account.
    account = create_missing_account(situation)
    return True, verdict + act(Apply(policy)) + account + act(Create(built))


def _build_pod(situation: Situation, history: HistoryStatus, spec: ExperimentSpec) -> Document:
    owner, settings = situation.owner, situation.settings
    source = ClusterInput(owner=owner, spec=spec, settings=settings)
    task = {
        "artifacts": situation.status.artifacts_uri,
        "runId": owner.run_id(situation.run),
        "payload": _build_payload(situation),
    }
    template = build_pod_template(source, HEAD)
    assert history.pod_name is not None
    return build_history_pod(owner, history.pod_name, template, settings, task)


def _build_payload(situation: Situation) -> Document:
    observed = situation.observed
    metadata = observed.document["metadata"]
    named = ("name", "namespace", "uid", "creationTimestamp", "generation", "labels")
    status = situation.status.change(history=None).to_document()
    return {
        "version": 1,
        "experiment": {
            **observed.accepted,  # type: ignore[dict-item]  # checked by `_go_on`
            "metadata": {field: metadata[field] for field in named if field in metadata},
        },
        "status": status,
        "events": list(observed.happened.events),
        "pods": list(observed.happened.pods[:_MAX_PODS]),
        "decisions": [
            build_entry(decision)
            for decision in list_decisions(situation.status)
            if "inputs" in decision.model_fields_set or decision.log_state
        ],
    }


def _fail(history: HistoryStatus, why: str) -> tuple[bool, Verdict]:
    event = record_event(
        HISTORY_FAILED, f"the history of the cluster was not stored: {why}", warns=True
    )
    return False, _set(history, "Failed", why) + event


def _set(history: HistoryStatus, state: _State, message: str) -> Verdict:
    kept = fit_message(message) if message else None
    return change(history=history.change(state=state, message=kept))


def _clean(situation: Situation) -> Verdict:
    """Delete the pod of a stored history; its name is kept until it is gone."""
    history, pod = _read(situation.status), situation.observed.history_pod
    if history.pod_name is None or history.state == PENDING:
        return NOTHING
    if pod is None:
        return change(history=history.change(pod_name=None))
    deleted = NOTHING if pod.is_going else act(Delete("Pod", pod.name))
    return deleted + look_again(POLL_SECONDS)
