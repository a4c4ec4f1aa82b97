"""Lists the experiments now and then, so that a watch that has died is noticed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from typing import Any, Protocol

from dataset_operator.errors import KubeRefused, OperatorError
from dataset_operator.telemetry.watched import Key, Watched
from pipeline_runtime.config import KIND

# A metadata-only list a minute is little even with thousands of experiments; a watch that is two
# minutes behind an answered list does not come back by itself (platform facts, Kopf).
LIST_SECONDS = 60.0
DEAD_SECONDS = 120.0
_LOG = logging.getLogger(__name__)


class Lister(Protocol):
    """Lists objects by their metadata alone; `KubeClient` does."""

    def list_metadata(self, kind: str, namespace: str) -> AsyncIterator[dict[str, Any]]:
        """Raises KubeRefused, KubeUnavailable."""
        ...


async def compare_forever(
    kube: Lister, namespaces: Collection[str], watched: Watched, every_seconds: float
) -> None:
    """Hold what is listed against what was watched, again and again.

    An API server that does not answer is no verdict: restarting the operator would not mend it.
    """
    while True:
        asked = watched.clock()
        try:
            asked_of = [name for name in namespaces or ("",) if name not in watched.refused]
            watched.compare(await _list_versions(kube, asked_of), asked)
        except OperatorError as error:
            _LOG.warning("cannot list the experiments: %s", error)
        # Soon again until the first time that nothing is missed: readiness waits for it.
        await asyncio.sleep(every_seconds if watched.is_synced else 1.0)


async def _list_versions(kube: Lister, namespaces: Collection[str]) -> dict[Key, str]:
    """List resource versions, without namespaces that refuse it: their watch fails visibly."""
    listed = {}
    for namespace in namespaces:
        try:
            async for metadata in kube.list_metadata(KIND, namespace):
                key = (metadata["namespace"], metadata["name"])
                listed[key] = metadata["resourceVersion"]
        except KubeRefused:
            if not namespace:
                raise
    return listed


def find_staleness(watched: Watched) -> str | None:
    """Return why the watch counts as dead; None while it is alive."""
    missed = watched.find_oldest_missed()
    if missed is None or missed[1] <= DEAD_SECONDS:
        return None
    (namespace, name), seconds = missed
    return (
        f"the watch of experiments is dead: {namespace}/{name} as listed {seconds:.0f} s ago has "
        f"not come through it (limit {DEAD_SECONDS:.0f} s)"
    )
