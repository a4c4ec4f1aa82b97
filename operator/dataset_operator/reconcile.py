"""One pass over one experiment: observe, plan, execute.

Level-triggered: what woke it does not matter, and it can be cut off and run again anywhere. Who
calls it sees to it that no two passes of one experiment overlap.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dataset_operator.api import TOKEN_KEY
from dataset_operator.kube.client import Kube
from dataset_operator.kube.execute import execute
from dataset_operator.kube.observe import observe
from dataset_operator.names import Owner
from dataset_operator.plan import plan
from dataset_operator.ray.jobs import RayJobs
from dataset_operator.settings import OperatorSettings
from pipeline_runtime.config import KIND

_TOKEN_BYTES = 32
# The one endpoint resolver: how the Jobs API of an experiment's cluster is reached.
Connect = Callable[[Owner, str], RayJobs]


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """Passes over experiments; holds what all of them share."""

    kube: Kube
    connect: Connect
    settings: OperatorSettings
    now: Callable[[], datetime] = field(default=_now)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass; seconds until the next is due without an event, None if none is.

        Raises:
            KubeConflict: look again at once.
            KubeUnavailable, KubeRefused: look again later.
        """
        document = await self.kube.get(KIND, namespace, name)
        if document is None:
            return None
        owner = Owner(name=name, namespace=namespace, uid=document["metadata"]["uid"])
        jobs = await self._connect(owner)
        observed = await observe(self.kube, jobs, document)
        fresh_token = secrets.token_urlsafe(_TOKEN_BYTES)
        decision = plan(observed, self.settings, self.now(), fresh_token)
        await execute(self.kube, jobs, observed, decision)
        return decision.again_seconds

    async def _connect(self, owner: Owner) -> RayJobs | None:
        secret = await self.kube.get("Secret", owner.namespace, owner.token_secret)
        if secret is None:
            return None
        return self.connect(owner, base64.b64decode(secret["data"][TOKEN_KEY]).decode())
