"""One reconcile pass over one experiment: observe, plan, execute.

Planning runs in a thread, since it is pure and may take long; requests stay on the event loop.

Level-triggered: a pass does not depend on its trigger, and can be cut off anywhere and run again.
The caller never runs two passes of one experiment at once.

A pass writes the status once, before the writes that the status announces: an attempt is recorded
before Ray gets it. One exception: if a write or a submission is refused afterwards, which no dry
run foresees, the same pass writes the status again with the reason. The next pass could not report
it: it would announce the same, be refused again, and never give the reason.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from dataset_operator.autoscaling.history import Memory
from dataset_operator.builders.raycluster import RENDERED_FROM
from dataset_operator.errors import KubeRefused, RayRefused
from dataset_operator.kube.client import Kube
from dataset_operator.kube.execute import execute
from dataset_operator.kube.observe import observe
from dataset_operator.observed import Document, Job, Observed, Refusal
from dataset_operator.plan import plan
from dataset_operator.plan.decision import Decision
from dataset_operator.plan.readings import Readings
from dataset_operator.quota import explain_quota
from dataset_operator.ray.endpoints import Connect
from dataset_operator.settings import OperatorSettings
from dataset_operator.sources.base import MetricsSource
from dataset_operator.threads import Threads
from pipeline_runtime.config import KIND

_TOKEN_BYTES = 32


def _build_refusal(refused: KubeRefused) -> Refusal:
    """Build the refusal of a RayCluster, with the experiment's field paths in its message."""
    message = explain_quota(str(refused))
    for theirs, ours in RENDERED_FROM.items():
        message = message.replace(theirs, ours)
    return Refusal(message=message, is_invalid=refused.is_invalid)


def _build_child_refusal(refused: KubeRefused) -> Refusal:
    """Build the refusal of an owned object; it may have causes beside the spec."""
    return Refusal(message=explain_quota(str(refused)), is_invalid=False)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """Runs passes over experiments, and holds the clients and settings that they share."""

    kube: Kube
    connect: Connect
    source: MetricsSource
    settings: OperatorSettings
    now: Callable[[], datetime] = field(default=_now)
    readings: Readings = field(default_factory=Readings)
    threads: Threads = field(default_factory=Threads)
    # The autoscaling policy's memory and its run, by namespace and name; lost with the process.
    memories: dict[tuple[str, str], tuple[Any, Memory]] = field(default_factory=dict)

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
        observed, jobs = await observe(self.kube, self.connect, self.source, document)
        run, memory = self.memories.get((namespace, name), (None, None))
        if run == (observed.owner.uid, observed.status.get("run")):
            observed = replace(observed, scaling=replace(observed.scaling, memory=memory))
        fresh_token = secrets.token_urlsafe(_TOKEN_BYTES)
        observed, decision = await self._decide(observed, fresh_token)
        if decision.memory is not None:  # kept after a refusal too: the next period decides anew
            run = (observed.owner.uid, decision.status.get("run"))
            self.memories[namespace, name] = (run, decision.memory)
        try:
            await execute(self.kube, jobs, observed, decision)
        except KubeRefused as refused:
            if await self._say(observed, refused):
                raise
            return None  # the API server refuses objects of a deleted experiment
        except RayRefused as refused:
            return await self._fail_attempt(observed, str(refused))
        return decision.again_seconds

    async def _fail_attempt(self, observed: Observed, why: str) -> float | None:
        """Record an attempt that Ray never took as failed, like one that it took and that ended."""
        fresh = await self._fetch_again(observed)
        if fresh is None:
            return None
        failed = replace(observed, document=fresh, job=Job(status="FAILED", message=why))
        decision = await self._plan(failed)
        await execute(self.kube, None, failed, decision)
        return decision.again_seconds

    async def _decide(self, observed: Observed, token: str) -> tuple[Observed, Decision]:
        """Plan; plan again with the refusal if a dry run shows that the API server refuses it.

        So no running cluster is deleted for one that cannot be made.
        """
        decision = await self._plan(observed, token)
        if decision.trial is None:
            return observed, decision
        try:
            await self.kube.try_out(decision.trial)
        except KubeRefused as refused:
            observed = replace(observed, refusal=_build_refusal(refused))
            return observed, await self._plan(observed, token)
        return observed, decision

    async def _plan(self, observed: Observed, token: str = "") -> Decision:
        """Plan in a thread."""
        now = self.now()

        def work() -> Decision:
            return plan(observed, self.settings, now, token, self.readings)

        return await self.threads.run(observed.owner.namespace, work)

    async def _say(self, observed: Observed, refused: KubeRefused) -> bool:
        """Write a refusal that no dry run foresaw, such as a quota, into the status.

        Returns:
            Whether the experiment still exists.
        """
        fresh = await self._fetch_again(observed)
        if fresh is None:
            return False
        observed = replace(observed, document=fresh, refusal=_build_child_refusal(refused))
        said = await self._plan(observed)
        # Events that announce the outcome of the refused write would be false.
        events = tuple(event for event in said.events if not event.is_outcome)
        only_said = Decision(status=said.status, has_finalizer=said.has_finalizer, events=events)
        await execute(self.kube, None, observed, only_said)
        return True

    async def _fetch_again(self, observed: Observed) -> Document | None:
        """Fetch the experiment again; None if it was deleted, even if another has its name now."""
        owner = observed.owner
        fresh = await self.kube.get(KIND, owner.namespace, owner.name)
        is_same = fresh is not None and fresh["metadata"]["uid"] == owner.uid
        return fresh if is_same else None
