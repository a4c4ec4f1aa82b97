"""Keep objects that hardly ever change between passes: a cluster's guards, a run's config.

A pass reads ten objects of an experiment, every 15 seconds while it trains, and six of them never
change. The answer for one of those is used again until the watch reports a change, this operator
writes the object, or some minutes have passed. Every pass fetches the objects that decisions depend
on: the experiment, the accepted spec, its RayCluster and pods.

The watch carries only metadata, so passes also report each experiment that they read or wrote.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from dataset_operator.documents import Document
from dataset_operator.kube.client import Keep, Kube, keep_whole
from dataset_operator.kube.metadata import find_edit
from pipeline_runtime.config import KIND

Key = tuple[str, str, str]  # kind, namespace, name
# Time for which an answer is used again without an event. Secrets and accounts are not watched,
# since the operator would need the right to read all of them.
_KEPT_SECONDS: Final[Mapping[str, float]] = {
    "ConfigMap": 300.0,
    "NetworkPolicy": 300.0,
    "PodDisruptionBudget": 300.0,
    "Secret": 60.0,
    "ServiceAccount": 60.0,
}
_LONGEST_SECONDS: Final = max(_KEPT_SECONDS.values())
# Kinds of which only immutable objects are kept.
_IMMUTABLE: Final = frozenset({"ConfigMap", "Secret"})
# Every pass fetches a larger object. A run's config has 66 KB at most, a guard 2 KB.
_MAX_KEPT_BYTES: Final = 128 << 10


class Follower(Protocol):
    """Records experiments as passes read and wrote them; the watch has only their metadata."""

    def record(self, document: Mapping[str, Any]) -> None:
        """Record an experiment as the API server returned it."""

    def record_write(self, document: Mapping[str, Any], status: Document, version: str) -> None:
        """Record a status that the operator wrote, and the new resourceVersion."""


@dataclass(frozen=True, slots=True)
class _Look:
    """An object as it was, and the digest of its metadata; both None while it is fetched."""

    at: float
    text: bytes | None = None
    edit: int | None = None


@dataclass(slots=True)
class RememberingKube:
    """`Kube` that remembers objects of another `Kube`; `see` records events of the watch.

    Attributes:
        kube: sends the requests.
        follower: records each experiment that was read or written.
        clock: seconds, monotonic.
    """

    kube: Kube
    follower: Follower | None = None
    clock: Callable[[], float] = time.monotonic
    _looks: dict[Key, _Look] = field(default_factory=dict)  # the oldest first

    def see(self, kind: str, event: str | None, document: Mapping[str, Any]) -> bool:
        """Record an event; return whether the object differs from the remembered one.

        The generation in the metadata changes with the spec. Only a status changes without it, such
        as the number of pods that a budget counts.
        """
        key = (kind, document["metadata"]["namespace"], document["metadata"]["name"])
        look = self._looks.get(key)
        kept = look.edit if look is not None and event == "MODIFIED" else None
        if kept is not None and kept == find_edit(document["metadata"]):
            return False
        self._forget(*key)
        return True

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        """See Kube."""
        if kind not in _KEPT_SECONDS:
            found = await self.kube.get(kind, namespace, name)
            if kind == KIND and found is not None and self.follower is not None:
                self.follower.record(found)
            return found
        key = (kind, namespace, name)
        look = self._looks.get(key)
        if look and look.text and self.clock() - look.at < _KEPT_SECONDS[kind]:
            kept: Document = json.loads(look.text)  # a copy for each caller
            return kept
        self._drop_oldest()
        self._forget(*key)
        asked = self._looks[key] = _Look(self.clock())
        document = await self.kube.get(kind, namespace, name)
        if self._looks.get(key) is asked:
            self._forget(*key)
            text = json.dumps(document).encode()
            if document is not None and _is_kept(document) and len(text) <= _MAX_KEPT_BYTES:
                self._looks[key] = _Look(asked.at, text, find_edit(document["metadata"]))
        return document

    async def list_objects(
        self, kind: str, namespace: str, selector: str, keep: Keep = keep_whole
    ) -> list[Document]:
        """See Kube."""
        return await self.kube.list_objects(kind, namespace, selector, keep)

    async def create(self, document: Document) -> None:
        """See Kube."""
        self._forget_document(document)
        await self.kube.create(document)

    async def apply(self, document: Document) -> None:
        """See Kube."""
        self._forget_document(document)
        await self.kube.apply(document)

    async def try_out(self, document: Document) -> None:
        """See Kube."""
        await self.kube.try_out(document)

    async def patch(self, kind: str, namespace: str, name: str, patch: Document) -> bool:
        """See Kube."""
        self._forget(kind, namespace, name)
        return await self.kube.patch(kind, namespace, name, patch)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """See Kube."""
        self._forget(kind, namespace, name)
        await self.kube.delete(kind, namespace, name, uid)

    async def delete_observed(self, document: Mapping[str, Any]) -> None:
        """See Kube."""
        self._forget_document(document)
        await self.kube.delete_observed(document)

    async def write_status(self, document: Mapping[str, Any], status: Document) -> str:
        """See Kube."""
        version = await self.kube.write_status(document, status)
        if self.follower is not None:
            self.follower.record_write(document, status, version)
        return version

    async def write_finalizers(self, document: Mapping[str, Any], names: list[str]) -> None:
        """See Kube."""
        await self.kube.write_finalizers(document, names)

    def _forget(self, kind: str, namespace: str, name: str) -> None:
        """Forget an object that may have changed, and an answer that was requested before."""
        self._looks.pop((kind, namespace, name), None)

    def _forget_document(self, document: Mapping[str, Any]) -> None:
        metadata = document["metadata"]
        self._forget(document["kind"], metadata["namespace"], metadata.get("name", ""))

    def _drop_oldest(self) -> None:
        """Forget objects that no pass asks for any more, since their experiment is gone."""
        until = self.clock() - _LONGEST_SECONDS
        while self._looks and next(iter(self._looks.values())).at <= until:
            del self._looks[next(iter(self._looks))]


def _is_kept(document: Document) -> bool:
    """Return whether the object is immutable, or of a kind that may be kept although it is not."""
    return document["kind"] not in _IMMUTABLE or bool(document.get("immutable"))
