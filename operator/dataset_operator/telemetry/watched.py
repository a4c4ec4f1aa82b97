"""Records the events of experiments, and compares them with the list of the API server.

A watch can end while its process lives (kopf#1276), so a live process may still miss every change.
A listed version that never came through the watch shows that. `freshness` fetches the lists, and
`probes` reads the result.

The watch carries only metadata. The content of a status (phase, conditions, usage) comes from the
passes over the experiment, which read and write it anyway (`record`, `record_write`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dataset_operator.documents import Document
from dataset_operator.headline import find_headline
from dataset_operator.kube.metadata import find_edit, find_finalizers
from dataset_operator.scheduling.passes import Trigger
from dataset_operator.shapes import fit_object, read_status
from dataset_operator.telemetry.standing import Standing, read_standing
from pipeline_runtime.config import KIND, Condition

Key = tuple[str, str]  # namespace, name
# Fields of a status that no decision depends on: the progress and the usage of a run.
_PROGRESS = frozenset({"trainer", "output", "usage"})
# An event may come after the pass that caused it, but not many passes later.
_NUM_OWN_VERSIONS = 8
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """An experiment as a pass last read or wrote it.

    Attributes:
        version: its resourceVersion; a pass that reads the same version again changes nothing.
        headline: the headline's type, status and reason.
    """

    version: str
    attempt: int | None
    headline: tuple[str, str, str] | None
    standing: Standing


@dataclass(slots=True, kw_only=True)
class _Seen:
    """An experiment as it last came through the watch.

    Attributes:
        edited: digest of the fields that users write.
        finalizers: digest of its finalisers.
        own: the resourceVersions that the operator's latest writes of its status made.
        is_unexplained: whether the latest event, which changed neither of the digests, came while a
            pass was running, which may have written the status.
        has_news: whether the running pass wrote a status that the next pass may act on.
    """

    version: str
    uid: str
    edited: int
    finalizers: int
    at: float
    known: _Known | None = None
    own: tuple[str, ...] = ()
    is_unexplained: bool = False
    has_news: bool = False


@dataclass(slots=True)
class Follow:
    """One pass over an experiment.

    Attributes:
        has_news: whether another pass is needed at once; known at the end.
    """

    has_news: bool = False


@dataclass(slots=True)
class Watched:
    """The experiments that exist, and how far the watch is behind.

    Attributes:
        clock: seconds, monotonic.
        phases: number of experiments in each phase; a phase that is empty now stays, with 0.
        is_synced: True once everything that was listed has come through the watch.
        refused: namespaces that the operator may not watch at present.
    """

    clock: Callable[[], float] = time.monotonic
    phases: Counter[str] = field(default_factory=Counter)
    is_synced: bool = False
    refused: set[str] = field(default_factory=set)
    _experiments: dict[Key, _Seen] = field(default_factory=dict)
    _running: set[Key] = field(default_factory=set)  # experiments that a pass is running for
    _missed: dict[Key, float] = field(default_factory=dict)  # the time of the first list with it
    _last_event: float | None = None

    def see(self, event: str | None, document: Mapping[str, Any]) -> Trigger | None:
        """Record an event: ADDED, MODIFIED, DELETED, or None for the list at the beginning.

        Returns:
            Why a pass is needed; None if none is. None is needed after the operator's own write of
            a status, such as the progress every 30 seconds: the pass that wrote it knows it.
        """
        metadata, now = document["metadata"], self.clock()
        key = (metadata["namespace"], metadata["name"])
        self._last_event = now
        self._missed.pop(key, None)
        before = self._experiments.get(key)
        if event == "DELETED" or (before is not None and before.uid != metadata.get("uid", "")):
            self._forget(key)
            before = None
        if event == "DELETED":
            return Trigger.CHANGE
        seen = self._experiments[key] = _Seen(
            version=metadata["resourceVersion"],
            uid=metadata.get("uid", ""),
            edited=find_edit(metadata),
            finalizers=find_finalizers(metadata),
            at=now,
        )
        if before is not None:
            seen.known, seen.own, seen.has_news = before.known, before.own, before.has_news
        if event is None:
            return Trigger.CHANGE  # there may be thousands, and an edit must overtake them
        if before is None or before.edited != seen.edited:
            return Trigger.EDIT
        if event != "MODIFIED" or before.finalizers != seen.finalizers:
            return Trigger.CHANGE
        if key in self._running:
            seen.is_unexplained = True
            return None
        return None if seen.version in seen.own else Trigger.CHANGE

    @contextlib.contextmanager
    def following(self, namespace: str, name: str, follow: Follow) -> Iterator[None]:
        """Follow a pass over an experiment, to distinguish its own writes of the status."""
        key = (namespace, name)
        self._running.add(key)
        try:
            yield
        finally:
            self._running.discard(key)
            seen = self._experiments.get(key)
            if seen is not None:
                is_foreign = seen.is_unexplained and seen.version not in seen.own
                follow.has_news = seen.has_news or is_foreign
                seen.is_unexplained = seen.has_news = False

    def record(self, document: Mapping[str, Any]) -> None:
        """Record an experiment as a pass fetched it. See `remembering.Follower`."""
        seen = self._find(document)
        version = document["metadata"].get("resourceVersion") or ""
        if seen is None or (version and seen.known and seen.known.version == version):
            return
        self._keep(seen, document, version)

    def _keep(self, seen: _Seen, document: Mapping[str, Any], version: str) -> None:
        """Parse an experiment and keep its state."""
        document = fit_object(KIND, dict(document)) or document
        status = read_status(document.get("status"))
        headline, before = find_headline(status), seen.known
        known = _Known(
            version=version,
            attempt=status.attempt,
            headline=(headline.type, headline.status, headline.reason) if headline else None,
            standing=read_standing(document, status),
        )
        if before is not None:
            self.phases[before.standing.phase] -= 1
            if headline is not None and known.headline != before.headline:
                _log_change(document["metadata"], known, headline)
        self.phases[known.standing.phase] += 1
        seen.known = known

    def record_write(self, document: Mapping[str, Any], status: Document, version: str) -> None:
        """Record that a pass wrote a status. See `remembering.Follower`."""
        seen = self._find(document)
        if seen is None:
            return
        seen.own = (*seen.own, version)[-_NUM_OWN_VERSIONS:]
        # Ignore a write that changed nothing: an older CRD drops fields that it does not know.
        is_change = version != document["metadata"].get("resourceVersion")
        seen.has_news |= is_change and _strip(document.get("status")) != _strip(status)
        self._keep(seen, {**document, "status": status}, version)

    def refuse(self, namespace: str) -> None:
        """Drop the experiments of a namespace that the operator may no longer watch."""
        self.refused.add(namespace)
        for key in [key for key in self._experiments if key[0] == namespace]:
            self._forget(key)
        self._missed = {key: at for key, at in self._missed.items() if key[0] != namespace}

    def compare(self, listed: Mapping[Key, str], asked: float) -> None:
        """Compare a list of the API server (key to resourceVersion) with the recorded events.

        Args:
            asked: when the list was requested.
        """
        missed = [
            key
            for key, version in listed.items()
            if key[0] not in self.refused and not self._came(key, version, asked)
        ]
        self._missed = {key: self._missed.get(key, asked) for key in missed}
        self.is_synced = self.is_synced or not missed

    def attempt(self, namespace: str, name: str) -> int | None:
        """Return the latest attempt of an experiment; None if there is none."""
        seen = self._experiments.get((namespace, name))
        return seen.known.attempt if seen and seen.known else None

    def list_standings(self) -> Iterator[tuple[Key, Standing]]:
        """Yield the state of each experiment that a pass has read."""
        for key, seen in self._experiments.items():
            if seen.known is not None:
                yield key, seen.known.standing

    def find_oldest_missed(self) -> tuple[Key, float] | None:
        """Return the experiment that the watch has missed for longest, and the seconds since."""
        if not self._missed:
            return None
        key = min(self._missed, key=self._missed.__getitem__)
        return key, self.clock() - self._missed[key]

    @property
    def event_age_seconds(self) -> float | None:
        """Seconds since the last event; None if none has come."""
        return None if self._last_event is None else self.clock() - self._last_event

    def _came(self, key: Key, version: str, asked: float) -> bool:
        """Return whether the listed version, or an event since the request, came through."""
        seen = self._experiments.get(key)
        return seen is not None and (seen.version == version or seen.at >= asked)

    def _find(self, document: Mapping[str, Any]) -> _Seen | None:
        """Find an experiment; None if it has not come through the watch, or is gone."""
        metadata = document["metadata"]
        seen = self._experiments.get((metadata["namespace"], metadata["name"]))
        return seen if seen is not None and seen.uid == metadata.get("uid", "") else None

    def _forget(self, key: Key) -> None:
        """Drop an experiment that is gone."""
        seen = self._experiments.pop(key, None)
        if seen is not None and seen.known is not None:
            self.phases[seen.known.standing.phase] -= 1


def _strip(status: Any) -> Document:
    """Return the fields of a status that decisions depend on."""
    fields = status if isinstance(status, Mapping) else {}
    return {name: value for name, value in fields.items() if name not in _PROGRESS}


def _log_change(metadata: Mapping[str, Any], known: _Known, headline: Condition) -> None:
    _LOG.info(
        "%s: %s is %s: %s",
        known.standing.phase,
        headline.type,
        headline.status,
        headline.message,
        extra={
            "namespace": metadata["namespace"],
            "experiment": metadata["name"],
            "attempt": known.attempt,
            "reason": headline.reason,
        },
    )
