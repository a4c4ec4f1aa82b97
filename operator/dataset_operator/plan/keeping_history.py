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

from collections.abc import Mapping
from typing import Any, Literal

from dataset_operator.api import FINALIZER, HEAD, HISTORY_FAILED
from dataset_operator.builders.history_writers import (
    build_history_pod,
    build_history_policy,
    is_store,
    locate_history,
)
from dataset_operator.builders.pod_templates import ClusterInput, build_pod_template
from dataset_operator.observed import Document, parse_time
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.pod_rules import find_forbidden
from dataset_operator.plan.scaling_log import build_entry, list_decisions
from dataset_operator.status import fit_message
from pipeline_runtime.config import ExperimentSpec

POLL_SECONDS = 5.0
PENDING: Literal["Pending"] = "Pending"
_PENDING_FIELDS = ("podName", "time", "rayClusterUid", "attempt")
_State = Literal["Pending", "Kept", "Failed", "Skipped"]
_MAX_PODS = 64  # pods described in the history; the logs of all pods are stored
_NO_STORE = "the artifacts are not in a store that outlives the pods"
_NO_SPEC = "the ConfigMap with the accepted spec of the run is missing or not valid"


def find_history_uri(draft: Draft, spec: ExperimentSpec) -> str | None:
    """Return the URI of the present run's history; None if none is stored."""
    uri = draft.status.get("artifactsUri")
    if not draft.settings.history.enabled or uri is None:
        return None
    source = ClusterInput(owner=draft.owner, spec=spec, settings=draft.settings)
    [ray, *_] = build_pod_template(source, HEAD)["spec"]["containers"]
    if not is_store(uri, ray):
        return None
    return locate_history(uri, draft.owner.run_id(draft.status["run"]))


def release(draft: Draft) -> None:
    """Release the cluster; it is deleted once its history is stored."""
    draft.release_cluster(deletes=not hold(draft))


def settle(draft: Draft) -> bool:
    """Finish storing a history that was begun, and delete its pod."""
    history = _get(draft)
    if history.get("state") != PENDING:
        _clean(draft, history)
        return False
    if hold(draft):
        return True
    _clean(draft, _get(draft))
    draft.release_cluster()
    draft.has_finalizer = False
    draft.look_again(0.0)
    return True


def hold(draft: Draft) -> bool:
    """Return whether the cluster must stay for its history; begin to store it if necessary."""
    history, cluster = _get(draft), draft.observed.ray_cluster
    if history.get("state") == PENDING:
        is_held = _go_on(draft, history)
    elif cluster is None or "deletionTimestamp" in cluster["metadata"]:
        is_held = False
    else:
        about = {"rayClusterUid": cluster["metadata"]["uid"], "attempt": draft.attempt}
        is_done = all(history.get(name) == value for name, value in about.items())
        is_held = not is_done and _begin(draft, about)
    if is_held:
        # Without the finaliser, a deletion would remove everything before the pod has written.
        draft.has_finalizer |= has_finalizer(draft)
    return is_held


def has_finalizer(draft: Draft) -> bool:
    """Return whether our finaliser is there; the history alone never adds it."""
    return FINALIZER in (draft.observed.document["metadata"].get("finalizers") or ())


def _get(draft: Draft) -> Mapping[str, Any]:
    history: Mapping[str, Any] = draft.status.get("history") or {}
    is_whole = history.get("state") != PENDING or all(field in history for field in _PENDING_FIELDS)
    return history if is_whole else {}


def _begin(draft: Draft, about: Document) -> bool:
    draft.status["history"] = {**about, "time": draft.stamp()}
    accepted = draft.accepted
    if not draft.settings.history.enabled:
        _set(draft, "Skipped", "history.enabled is false in the operator's settings")
    elif accepted is None:
        _set(draft, "Failed", _NO_SPEC)
    elif find_history_uri(draft, accepted.valid.spec) is None:
        _set(draft, "Skipped", _NO_STORE)
    else:
        _set(draft, PENDING, "")
        name = draft.owner.history_pod(draft.status["run"], draft.attempt)
        draft.status["history"] = {**draft.status["history"], "podName": name}
        draft.look_again(0.0)  # `observe` collects the history once the status is Pending
        return True
    return False


def _go_on(draft: Draft, history: Mapping[str, Any]) -> bool:
    """Create the pod or check its state; return whether to wait for it."""
    pod, refusal = draft.observed.history_pod, draft.observed.refusal
    left = draft.until(parse_time(history["time"]), draft.settings.history.timeout_seconds)
    if pod is not None and pod.phase == "Succeeded" and not pod.is_going:
        _set(draft, "Kept", "")
        return False
    if pod is not None and pod.phase == "Failed" and not pod.is_going:
        return _fail(draft, pod.message or "its pod failed")
    if refusal is not None:
        return _fail(draft, f"the API server refuses its pod: {refusal.message}")
    if left <= 0:
        waits = f": {pod.message}" if pod is not None and pod.message else ""
        limit = f"history.timeoutSeconds ({draft.settings.history.timeout_seconds})"
        return _fail(draft, f"its pod did not finish within {limit}{waits}")
    accepted = draft.accepted
    if accepted is None or "artifactsUri" not in draft.status:
        return _fail(draft, _NO_SPEC)
    if pod is None and (why := _make(draft, history["podName"], accepted.valid.spec)):
        return _fail(draft, why)
    draft.look_again(min(POLL_SECONDS, left))
    return True


def _make(draft: Draft, name: str, spec: ExperimentSpec) -> str:
    """Create the pod; return why it is not allowed, or ""."""
    owner, status = draft.owner, draft.status
    source = ClusterInput(owner=owner, spec=spec, settings=draft.settings)
    task = {
        "artifacts": status["artifactsUri"],
        "runId": owner.run_id(status["run"]),
        "payload": _build_payload(draft),
    }
    template = build_pod_template(source, HEAD)
    pod = build_history_pod(owner, name, template, draft.settings, task)
    if why := find_forbidden(owner, draft.settings, pod):
        return why
    draft.apply.append(build_history_policy(owner, draft.settings.network))
    draft.create += draft.find_missing_account()  # of a cluster that an older operator made
    draft.create.append(pod)
    return ""


def _build_payload(draft: Draft) -> Document:
    metadata = draft.observed.document["metadata"]
    named = ("name", "namespace", "uid", "creationTimestamp", "generation", "labels")
    return {
        "version": 1,
        "experiment": {
            **draft.observed.accepted,  # type: ignore[dict-item]  # checked by `_go_on`
            "metadata": {field: metadata[field] for field in named if field in metadata},
        },
        "status": {field: value for field, value in draft.status.items() if field != "history"},
        "events": list(draft.observed.happened.events),
        "pods": list(draft.observed.happened.pods[:_MAX_PODS]),
        "decisions": [
            build_entry(decision)
            for decision in list_decisions(draft.status)
            if "inputs" in decision or "logState" in decision
        ],
    }


def _fail(draft: Draft, why: str) -> bool:
    _set(draft, "Failed", why)
    draft.tell(HISTORY_FAILED, f"the history of the cluster was not stored: {why}", warns=True)
    return False


def _set(draft: Draft, state: _State, message: str) -> None:
    kept = {name: value for name, value in _get(draft).items() if name != "message"}
    said = {"message": fit_message(message)} if message else {}
    draft.status["history"] = {**kept, "state": state, **said}


def _clean(draft: Draft, history: Mapping[str, Any]) -> None:
    """Delete the pod of a stored history; its name is kept until it is gone."""
    if "podName" not in history or history.get("state") == PENDING:
        return
    pod = draft.observed.history_pod
    if pod is None:
        draft.status["history"] = {k: value for k, value in history.items() if k != "podName"}
        return
    if not pod.is_going:
        draft.delete.append(("Pod", pod.name))
    draft.look_again(POLL_SECONDS)
