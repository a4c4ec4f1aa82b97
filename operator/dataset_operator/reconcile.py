"""One reconcile pass over one experiment: observe, decide, execute.

Deciding runs in a thread, since it is pure and may take long; requests stay on the event loop.

Level-triggered: a pass does not depend on its trigger, and can be cut off anywhere and run again.
The caller never runs two passes of one experiment at once.

A pass writes the status once, before the writes that the status announces: an attempt is recorded
before Ray gets it. There is one exception: if a later write or submission is refused, which no dry
run foresees, the same pass writes the status again with the reason. The next pass could not report
it: it would announce the same, be refused again, and never record the reason.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from dataset_operator.builders.raycluster import name_templates
from dataset_operator.documents import Document, parse_time
from dataset_operator.errors import KubeRefused, RayRefused
from dataset_operator.kube.client import Kube
from dataset_operator.kube.execute import execute, release
from dataset_operator.kube.observe import observe
from dataset_operator.observed import Job, Observed, Refusal, Scaling
from dataset_operator.plan import decide
from dataset_operator.plan.ending import RELEASE_SECONDS
from dataset_operator.plan.outcome import Decision
from dataset_operator.plan.pod_rules import find_refusal
from dataset_operator.quota import explain_quota
from dataset_operator.ray.endpoints import Connect
from dataset_operator.readings import Readings
from dataset_operator.scheduling.threads import Threads
from dataset_operator.sealing import Seal
from dataset_operator.settings import OperatorSettings
from dataset_operator.sources.base import MetricsSource
from pipeline_runtime.config import KIND

_TOKEN_BYTES = 32


def _name_fields(refusal: Refusal, cluster: Document) -> Refusal:
    """Return the refusal of a RayCluster with the experiment's field paths in its message."""
    message = refusal.message
    for theirs, ours in name_templates(cluster).items():
        message = message.replace(theirs, ours)
    return replace(refusal, message=message)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """Runs passes over experiments, and holds the clients and settings that they share."""

    kube: Kube
    connect: Connect
    source: MetricsSource
    settings: OperatorSettings
    # By default the process has its own key, so the seals of other processes are not valid.
    seal: Seal = field(default_factory=Seal.generate)
    now: Callable[[], datetime] = field(default=_now)
    readings: Readings = field(default_factory=Readings)
    threads: Threads = field(default_factory=Threads)
    # The run and the memories of its autoscaling policies (`memory` and `inference` alone), by
    # namespace and name; lost with the process.
    memories: dict[tuple[str, str], tuple[Any, Scaling]] = field(default_factory=dict)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Run one pass; return the seconds until the next is due without an event, if one is.

        Raises:
            KubeConflict: look again at once.
            KubeUnavailable, KubeRefused: look again later.
        """
        document = await self.kube.get(KIND, namespace, name)
        if document is None:
            self.memories.pop((namespace, name), None)
            return None
        if self._is_overdue(document):
            self.memories.pop((namespace, name), None)
            await release(self.kube, document)
            return None
        known = Observed(
            document=document,
            settings=self.settings,
            readings=self.readings,
            fresh_token=secrets.token_urlsafe(_TOKEN_BYTES),
        )
        run, memories = self.memories.get((namespace, name), (None, Scaling()))
        if run == (known.owner.uid, known.status.run):
            known = replace(known, scaling=memories)
        observed, jobs = await observe(self.kube, self.connect, self.source, known, self.seal)
        observed, decision = await self._decide_twice(observed)
        run = (observed.owner.uid, decision.status.run)
        memories = Scaling(
            memory=decision.memory or known.scaling.memory,
            inference={**known.scaling.inference, **decision.inference},
        )
        if decision.memory is not None or decision.inference:  # also after a refusal
            self.memories[namespace, name] = (run, memories)
        try:
            await execute(self.kube, jobs, observed, decision.seal(self.seal))
        except KubeRefused as refused:
            if await self._report(observed, refused):
                raise
            return None  # the API server refuses objects of a deleted experiment
        except RayRefused as refused:
            return await self._fail_attempt(observed, str(refused))
        return decision.again_seconds

    def _is_overdue(self, document: Document) -> bool:
        """Return whether an experiment was deleted so long ago that its finaliser is removed.

        Only its metadata counts, so no object that is broken or unreadable holds the finaliser.
        """
        deleted_at = document["metadata"].get("deletionTimestamp")
        if deleted_at is None:
            return False
        return (self.now() - parse_time(deleted_at)).total_seconds() >= RELEASE_SECONDS

    async def _fail_attempt(self, observed: Observed, why: str) -> float | None:
        """Record an attempt that Ray refused as failed, like an attempt whose job failed."""
        fresh = await self._fetch_again(observed)
        if fresh is None:
            return None
        failed = replace(observed, document=fresh, job=Job(status="FAILED", message=why))
        decision = await self._decide(failed)
        await execute(self.kube, None, failed, decision.seal(self.seal))
        return decision.again_seconds

    async def _decide_twice(self, observed: Observed) -> tuple[Observed, Decision]:
        """Decide; decide again with the refusal if the cluster to be made is not allowed.

        The platform's rules are checked first, then the API server does a dry run. So no running
        cluster is deleted for one that cannot be made.
        """
        decision = await self._decide(observed)
        if decision.trial is None:
            return observed, decision
        refusal = find_refusal(observed.owner, self.settings, decision.trial)
        if refusal is None:
            try:
                await self.kube.try_out(decision.trial)
                return observed, decision
            except KubeRefused as refused:
                refusal = Refusal(
                    message=explain_quota(str(refused)), is_invalid=refused.is_invalid
                )
        observed = replace(observed, refusal=_name_fields(refusal, decision.trial))
        return observed, await self._decide(observed)

    async def _decide(self, observed: Observed) -> Decision:
        """Decide in a thread."""
        now = self.now()
        return await self.threads.run(observed.owner.namespace, lambda: decide(observed, now))

    async def _report(self, observed: Observed, refused: KubeRefused) -> bool:
        """Write a refusal that no dry run foresaw, such as a quota, into the status.

        Returns:
            Whether the experiment still exists.
        """
        fresh = await self._fetch_again(observed)
        if fresh is None:
            return False
        # An owned object may be refused for other causes than the spec.
        refusal = Refusal(message=explain_quota(str(refused)), is_invalid=False)
        observed = replace(observed, document=fresh, refusal=refusal)
        new = await self._decide(observed)
        # Events that announce the outcome of the refused write would be false.
        events = tuple(event for event in new.events if not event.is_outcome)
        report = Decision(status=new.status, has_finalizer=new.has_finalizer, events=events)
        await execute(self.kube, None, observed, report)
        return True

    async def _fetch_again(self, observed: Observed) -> Document | None:
        """Fetch the experiment again; None if it was deleted, even if another has its name now."""
        owner = observed.owner
        fresh = await self.kube.get(KIND, owner.namespace, owner.name)
        is_same = fresh is not None and fresh["metadata"]["uid"] == owner.uid
        return fresh if is_same else None
