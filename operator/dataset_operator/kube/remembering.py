"""What hardly ever changes is not asked for at every pass: a cluster's guards, a run's config.

A pass looks at ten objects of an experiment, every quarter of a minute while it trains; six of them
are as they were made. A look at one of those stands until the watch tells of a change, this
operator writes it, or some minutes are over, whichever comes first. What decisions rest on — the
experiment, as last accepted, its RayCluster and pods — is always asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dataset_operator.kube.client import Kube
from dataset_operator.observed import Document

Key = tuple[str, str, str]  # kind, namespace, name
# For how long a look may stand though no event came; Secrets and accounts are not watched, for want
# of a right that would show the operator everybody's.
_KEPT_SECONDS: Final[Mapping[str, float]] = {
    "ConfigMap": 300.0,
    "NetworkPolicy": 300.0,
    "PodDisruptionBudget": 300.0,
    "Secret": 60.0,
    "ServiceAccount": 60.0,
}
_LONGEST_SECONDS: Final = max(_KEPT_SECONDS.values())
# Of these only what cannot be edited.
_IMMUTABLE: Final = frozenset({"ConfigMap", "Secret"})
# Of metadata: what each write changes, one of the status too.
_OF_A_WRITE: Final = frozenset({"resourceVersion", "managedFields"})


@dataclass(frozen=True, slots=True)
class _Look:
    """An object as it was; None while it is asked for."""

    at: float
    text: bytes | None = None


@dataclass(slots=True)
class RememberingKube:
    """`Kube` over another, with a memory; `see` is for who watches.

    Attributes:
        kube: is asked.
        clock: seconds, monotonic.
    """

    kube: Kube
    clock: Callable[[], float] = time.monotonic
    _looks: dict[Key, _Look] = field(default_factory=dict)  # the oldest first

    def see(self, kind: str, event: str | None, document: Mapping[str, Any]) -> bool:
        """Take an event in; whether it tells more than the look that is kept.

        What others write into a status, as the number of pods that a budget guards, is not looked
        at, and comes with every pod.
        """
        key = (kind, document["metadata"]["namespace"], document["metadata"]["name"])
        look = self._looks.get(key)
        kept = look.text if look is not None and event == "MODIFIED" else None
        if kept is not None and _strip(json.loads(kept)) == _strip(document):
            return False
        self._forget(*key)
        return True

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        """See Kube."""
        if kind not in _KEPT_SECONDS:
            return await self.kube.get(kind, namespace, name)
        key = (kind, namespace, name)
        look = self._looks.get(key)
        if look and look.text and self.clock() - look.at < _KEPT_SECONDS[kind]:
            kept: Document = json.loads(look.text)  # its own for each who asks
            return kept
        self._drop_oldest()
        self._forget(*key)
        asked = self._looks[key] = _Look(self.clock())
        document = await self.kube.get(kind, namespace, name)
        if self._looks.get(key) is asked:
            self._forget(*key)
            if document is not None and _is_kept(document):
                self._looks[key] = _Look(asked.at, json.dumps(document).encode())
        return document

    async def list_objects(self, kind: str, namespace: str, selector: str) -> list[Document]:
        """See Kube."""
        return await self.kube.list_objects(kind, namespace, selector)

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

    async def write_status(self, document: Mapping[str, Any], status: Document) -> None:
        """See Kube."""
        await self.kube.write_status(document, status)

    async def write_finalizers(self, document: Mapping[str, Any], names: list[str]) -> None:
        """See Kube."""
        await self.kube.write_finalizers(document, names)

    def _forget(self, kind: str, namespace: str, name: str) -> None:
        """It changed, or may have: what was asked before now is not kept either."""
        self._looks.pop((kind, namespace, name), None)

    def _forget_document(self, document: Mapping[str, Any]) -> None:
        metadata = document["metadata"]
        self._forget(document["kind"], metadata["namespace"], metadata.get("name", ""))

    def _drop_oldest(self) -> None:
        """What nobody asks for any more, since its experiment is gone."""
        until = self.clock() - _LONGEST_SECONDS
        while self._looks and next(iter(self._looks.values())).at <= until:
            del self._looks[next(iter(self._looks))]


def _strip(document: Mapping[str, Any]) -> tuple[Document, Document]:
    """What a look is for: all but the status and what each write changes; and the metadata."""
    rest = {name: value for name, value in document.items() if name not in ("status", "metadata")}
    metadata = document["metadata"].items()
    return rest, {name: value for name, value in metadata if name not in _OF_A_WRITE}


def _is_kept(document: Document) -> bool:
    """Whether it stays as it is unless somebody deletes it, or its change is watched."""
    return document["kind"] not in _IMMUTABLE or bool(document.get("immutable"))
