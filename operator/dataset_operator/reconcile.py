"""One pass over one experiment: observe, plan, execute.

Level-triggered: what woke it does not matter, and it can be cut off and run again anywhere. Who
calls it sees to it that no two passes of one experiment overlap.

A pass writes the status once, before all that it announces: an attempt must be in it before Ray
hears of it. One exception: a write or a submission that is refused afterwards, which no dry run
foresees, is said by a second status write of the same pass. It cannot wait for the next pass, which
would announce the same again, be refused again, and never say why.
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
from dataset_operator.quota import explain_quota
from dataset_operator.ray.endpoints import Connect
from dataset_operator.settings import OperatorSettings
from dataset_operator.sources.base import MetricsSource
from pipeline_runtime.config import KIND

_TOKEN_BYTES = 32


def _build_refusal(refused: KubeRefused) -> Refusal:
    """In the words of the experiment's own fields."""
    message = explain_quota(str(refused))
    for theirs, ours in RENDERED_FROM.items():
        message = message.replace(theirs, ours)
    return Refusal(message=message, is_invalid=refused.is_invalid)


def _build_child_refusal(refused: KubeRefused) -> Refusal:
    """Of a child that is not made from the spec alone, which therefore is not to blame."""
    return Refusal(message=explain_quota(str(refused)), is_invalid=False)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """Passes over experiments; holds what all of them share."""

    kube: Kube
    connect: Connect
    source: MetricsSource
    settings: OperatorSettings
    now: Callable[[], datetime] = field(default=_now)
    # What the law of scaling remembers of which run, by namespace and name; lost with the process.
    memories: dict[tuple[str, str], tuple[Any, Memory]] = field(default_factory=dict)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass; seconds until the next is due without an event, None if none is.

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
        if decision.memory is not None:  # also of what is refused: it is decided anew in a period
            run = (observed.owner.uid, decision.status.get("run"))
            self.memories[namespace, name] = (run, decision.memory)
        try:
            await execute(self.kube, jobs, observed, decision)
        except KubeRefused as refused:
            if await self._say(observed, refused):
                raise
            return None  # its objects go with it, and so a write for them is refused
        except RayRefused as refused:
            return await self._fail_attempt(observed, str(refused))
        return decision.again_seconds

    async def _fail_attempt(self, observed: Observed, why: str) -> float | None:
        """Record an attempt that Ray never took as failed, like one that it took and that ended."""
        fresh = await self._fetch_again(observed)
        if fresh is None:
            return None
        failed = replace(observed, document=fresh, job=Job(status="FAILED", message=why))
        decision = plan(failed, self.settings, self.now(), "")
        await execute(self.kube, None, failed, decision)
        return decision.again_seconds

    async def _decide(self, observed: Observed, token: str) -> tuple[Observed, Decision]:
        """The plan; made again if a dry run tells that the API server refuses what it would make.

        Nothing is given up for a cluster that cannot be made.
        """
        decision = plan(observed, self.settings, self.now(), token)
        if decision.trial is None:
            return observed, decision
        try:
            await self.kube.try_out(decision.trial)
        except KubeRefused as refused:
            observed = replace(observed, refusal=_build_refusal(refused))
            return observed, plan(observed, self.settings, self.now(), token)
        return observed, decision

    async def _say(self, observed: Observed, refused: KubeRefused) -> bool:
        """Report what a dry run did not foresee: a quota of another kind, a missing right.

        Returns:
            Whether the experiment still exists.
        """
        fresh = await self._fetch_again(observed)
        if fresh is None:
            return False
        observed = replace(observed, document=fresh, refusal=_build_child_refusal(refused))
        said = plan(observed, self.settings, self.now(), "")
        # What would have come of the write that was refused has not.
        events = tuple(event for event in said.events if not event.is_outcome)
        only_said = Decision(status=said.status, has_finalizer=said.has_finalizer, events=events)
        await execute(self.kube, None, observed, only_said)
        return True

    async def _fetch_again(self, observed: Observed) -> Document | None:
        """Fetch the experiment; None if it was deleted meanwhile, be there another of its name."""
        owner = observed.owner
        fresh = await self.kube.get(KIND, owner.namespace, owner.name)
        is_same = fresh is not None and fresh["metadata"]["uid"] == owner.uid
        return fresh if is_same else None
