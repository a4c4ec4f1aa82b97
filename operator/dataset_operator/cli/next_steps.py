"""Advises users what to do next, by the reason of an experiment's headline condition."""

from __future__ import annotations

from dataset_operator import api
from dataset_operator.documents import Document
from dataset_operator.headline import find_headline
from dataset_operator.remedies import END_ADVICE
from pipeline_runtime.config import ExperimentStatus

_LOGS = "lastmile logs {name}"
# While one of these is the headline, advice about a pending change is more useful.
_GOING_WELL = frozenset({api.SUBMITTED, api.RUNNING})
_ADVICE = {
    api.INVALID_SPEC: "correct the fields named above, then: lastmile submit -f FILE",
    api.CHANGE_PENDING: "wait, or set updatePolicy: Restart: an edit of the cluster goes on from a "
    "checkpoint at once, an edit of the run begins it anew",
    api.CLUSTER_CREATING: "wait; KubeRay makes the pods",
    api.CLUSTER_REFUSED: "correct what the API server names above, or ask for quota",
    api.NAME_COLLISION: "delete or rename the object with that name, or rename the experiment",
    api.WAITING_FOR_PODS: "wait; if a pod cannot be scheduled, ask for less or add nodes",
    api.PODS_READY: "wait; the driver is submitted when the head answers",
    api.NOT_CORRECTED: "nothing needs to be done for the run; the next cluster is corrected again, "
    "as after: lastmile stop {name}, lastmile resume {name}",
    api.RAY_UNREACHABLE: "see whether the operator may reach port 8265 of the head: in a pod by "
    "the NetworkPolicy, by --dev with network.apiServerCidrs; it is asked again by itself",
    api.CLUSTER_LOST: f"wait for the next attempt, or look: {_LOGS}",
    api.SUBMITTED: f"wait; the driver starts: {_LOGS} -f",
    api.RUNNING: f"follow it: {_LOGS} -f",
    api.RETRYING: f"find out why: {_LOGS}; stop it if trying again is of no use",
    api.STOPPING: "wait; the driver saves its state",
    api.SUSPENDED_BY_SPEC: "go on with: lastmile resume {name}",
    api.SUCCEEDED: "see the report: lastmile artifacts {name} --download DIR",
    api.JOB_FAILED: f"find out why: {_LOGS}",
    api.OUT_OF_MEMORY: "give the pods more memory, or make batchSize or shuffle.windowRows smaller",
    api.NODE_LOST: "wait for the next attempt; spot nodes come and go",
    **END_ADVICE,
}


def advise(document: Document, status: ExperimentStatus) -> str:
    """Return one line that says what to do next."""
    name = document["metadata"]["name"]
    if "deletionTimestamp" in document["metadata"]:
        return (
            "wait, the driver is stopped; if no operator runs: lastmile operator release-finalizers"
        )
    headline, accepted = find_headline(status), status.find(api.ACCEPTED)
    if headline is None:
        return "wait; if nothing happens, see whether the operator runs and watches this namespace"
    reason = headline.reason
    if reason in _GOING_WELL and accepted is not None and accepted.reason == api.CHANGE_PENDING:
        reason = api.CHANGE_PENDING
    return _ADVICE.get(reason, "see the events below").format(name=name)
