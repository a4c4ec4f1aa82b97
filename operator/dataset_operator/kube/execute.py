"""Carry out a decision: write the finaliser and the status first, then everything they announce.

A pass that is cut off in between is completed by the next one: the status names the attempt, and
every other write can be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dataset_operator.api import FIELD_MANAGER, FINALIZER
from dataset_operator.documents import Document, format_time
from dataset_operator.errors import RayRefused, RayUnreachable
from dataset_operator.kube.client import Kube
from dataset_operator.observed import Observed
from dataset_operator.plan.outcome import Decision, Drain, Event, KeepLog, Stop, Submit
from dataset_operator.ray.jobs import RayJobs
from dataset_operator.ray.nodes import name_drain
from dataset_operator.status import fit_message
from pipeline_runtime.config import API_VERSION, KIND, ExperimentStatus

_LOG = logging.getLogger(__name__)


async def execute(kube: Kube, jobs: RayJobs | None, observed: Observed, decision: Decision) -> None:
    """Carry out a decision.

    Raises:
        KubeConflict: the experiment changed since it was observed; nothing else was done.
        KubeUnavailable, KubeRefused: a write failed; the writes before it were made.
    """
    document = observed.document
    if decision.has_finalizer:  # before a driver can be running
        document = await _hold(kube, document, holds=True)
    status = decision.status.to_document()
    if observed.status.to_document() != status and not decision.delete_self:
        await kube.write_status(document, _keep_newer(observed, status))
    await _emit(kube, observed, [event for event in decision.events if not event.is_outcome])
    await _update_job(jobs, decision.job)
    for drain in decision.drains:
        await _drain(jobs, drain)
    for child in decision.apply:
        await kube.apply(child)
    for child in decision.create:
        await kube.create(child)
    place = observed.owner.namespace
    changed = [await kube.patch(kind, place, name, patch) for kind, name, patch in decision.patches]
    await _keep_log(jobs, decision.log)
    if not changed or any(changed):  # else every pass would emit the event again
        await _emit(kube, observed, [event for event in decision.events if event.is_outcome])
    for kind, name in decision.delete:
        await kube.delete(kind, observed.owner.namespace, name, _uid_of(observed, kind))
    if not decision.has_finalizer:
        await release(kube, document)
    if decision.delete_self:
        await kube.delete_observed(document)


def _keep_newer(observed: Observed, status: Document) -> Document:
    """Return a status with the fields that only a newer operator knows."""
    written = observed.document.get("status")
    known = {field.alias for field in ExperimentStatus.model_fields.values()}
    there = written if isinstance(written, Mapping) else {}
    return {name: value for name, value in there.items() if name not in known} | status


def _uid_of(observed: Observed, kind: str) -> str:
    """Return the uid of an owned object to delete, so that no new object of its name is deleted."""
    if kind == "Pod":
        assert observed.history_pod is not None
        return observed.history_pod.uid
    assert observed.cluster is not None
    return observed.cluster.uid


async def _emit(kube: Kube, observed: Observed, events: Sequence[Event]) -> None:
    for event in events:
        if event.is_logged:
            _LOG.warning("%s", event.message, extra={"reason": event.reason})
        await kube.create(_build_event(observed, event))


def _build_event(observed: Observed, event: Event) -> Document:
    """Build a core/v1 event about the experiment, which `kubectl describe` shows."""
    metadata, now = observed.document["metadata"], format_time(datetime.now(UTC))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{metadata['name']}.",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": fit_message(event.message),
        "source": {"component": FIELD_MANAGER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


async def _hold(kube: Kube, document: Mapping[str, Any], *, holds: bool) -> Mapping[str, Any]:
    """Add the operator's finaliser to the experiment; return the experiment as it is then."""
    metadata = document["metadata"]
    names = list(metadata.get("finalizers") or ())
    if FINALIZER in names or "deletionTimestamp" in metadata:
        return document
    await kube.write_finalizers(document, [*names, FINALIZER])
    fresh: Document | None = await kube.get(KIND, metadata["namespace"], metadata["name"])
    return fresh or document


async def release(kube: Kube, document: Mapping[str, Any]) -> None:
    """Remove the operator's finaliser; read the experiment again, since its status was written."""
    metadata = document["metadata"]
    if FINALIZER not in (metadata.get("finalizers") or ()):
        return
    fresh = await kube.get(KIND, metadata["namespace"], metadata["name"])
    if fresh is not None:
        names = fresh["metadata"].get("finalizers") or []
        await kube.write_finalizers(fresh, [name for name in names if name != FINALIZER])


async def _drain(jobs: RayJobs | None, drain: Drain) -> None:
    """Have Ray drain the nodes of these pods; the next pass retries after a failure."""
    if jobs is None:
        return
    try:
        known = [node for node in await jobs.nodes() if node.ip in drain.addresses]
        ids = [node.id for node in known if node.is_alive]
        if ids:
            name = name_drain(drain.submission_id, [node.id for node in known])
            await jobs.drain(name, ids, deadline_seconds=drain.deadline_seconds, why=drain.why)
    except (RayUnreachable, RayRefused) as error:
        _LOG.warning("draining workers failed: %s", error)


async def _keep_log(jobs: RayJobs | None, log: KeepLog | None) -> None:
    """Have a job write decisions to the artifacts; the next pass retries after a failure."""
    if log is None or jobs is None:
        return
    try:
        await jobs.keep_log(log)
    except (RayUnreachable, RayRefused) as error:
        _LOG.warning("keeping decisions of the autoscaler failed: %s", error)


async def _update_job(jobs: RayJobs | None, job: Submit | Stop | None) -> None:
    if job is None or jobs is None:
        return
    try:
        if isinstance(job, Submit):
            await jobs.submit(job)
        else:
            await jobs.stop(job.submission_id)
    except RayUnreachable as error:
        # The next pass observes that Ray does not know the job, or that it still runs.
        _LOG.warning("submitting or stopping %s failed: %s", job.submission_id, error)
