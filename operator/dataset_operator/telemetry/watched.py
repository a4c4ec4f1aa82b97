"""What came through the watch of experiments, held against what the API server lists.

A watch can end while its process lives on (kopf#1276), so that being alive is no sign of working.
Here a listed version that never came through the watch is: `freshness` lists, `probes` asks.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dataset_operator.headline import find_headline
from dataset_operator.passes import Waker
from dataset_operator.shapes import fit_object
from dataset_operator.telemetry.standing import Standing, read_standing
from pipeline_runtime.config import KIND

Key = tuple[str, str]  # namespace, name
# Of a status: how far a training is and what it has used, which nothing is decided by.
_TOLD_ONLY = frozenset({"trainer", "usage"})
# Of metadata: what each write changes.
_OF_A_WRITE = frozenset({"resourceVersion", "managedFields"})
# ... and what the operator itself writes there.
_OURS = frozenset({"finalizers"})
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """An experiment as it last came through the watch."""

    version: str
    edited: int  # hashes: of what its users write
    news: int  # and of the rest that a pass may be needed for
    at: float
    attempt: int | None
    headline: tuple[str, str, str] | None  # type, status, reason
    standing: Standing


@dataclass(slots=True)
class Watched:
    """The experiments that there are, and how far the watch is behind.

    Attributes:
        clock: seconds, monotonic.
        phases: how many experiments are in each phase; one that was seen before stays, as 0.
        is_synced: whether once everything that was listed had come through the watch.
        refused: namespaces that the operator may not watch at present.
    """

    clock: Callable[[], float] = time.monotonic
    phases: Counter[str] = field(default_factory=Counter)
    is_synced: bool = False
    refused: set[str] = field(default_factory=set)
    _experiments: dict[Key, _Seen] = field(default_factory=dict)
    _missed: dict[Key, float] = field(default_factory=dict)  # since when it is listed
    _last_event: float | None = None

    def see(self, event: str | None, document: Mapping[str, Any]) -> Waker | None:
        """Take an event in: ADDED, MODIFIED, DELETED, or None for the list at the beginning.

        As what it is a reason to look at the experiment, if it is any: the operator's own word of
        how far a training is, every 20 seconds, is none.
        """
        metadata = document["metadata"]
        key = (metadata["namespace"], metadata["name"])
        self._last_event = self.clock()
        self._missed.pop(key, None)
        before = self._experiments.pop(key, None)
        if before is not None:
            self.phases[before.standing.phase] -= 1
        if event == "DELETED":
            return Waker.CHANGE
        document = fit_object(KIND, document) or document
        seen = self._experiments[key] = _read(document, self._last_event)
        self.phases[seen.standing.phase] += 1
        if event is not None and seen.headline and (not before or before.headline != seen.headline):
            _tell(key, seen, document)
        if event is None:
            return Waker.CHANGE  # of all that there are; one that somebody edits now goes before
        if before is None or before.edited != seen.edited:
            return Waker.EDIT
        return Waker.CHANGE if event != "MODIFIED" or before.news != seen.news else None

    def refuse(self, namespace: str) -> None:
        """Forget the experiments of a namespace that may not be watched any more."""
        self.refused.add(namespace)
        for key in [key for key in self._experiments if key[0] == namespace]:
            self.phases[self._experiments.pop(key).standing.phase] -= 1
        self._missed = {key: at for key, at in self._missed.items() if key[0] != namespace}

    def compare(self, listed: Mapping[Key, str], asked: float) -> None:
        """Hold what the API server lists (key to resourceVersion), asked for at `asked`, against
        what was seen.
        """
        missed = [
            key
            for key, version in listed.items()
            if key[0] not in self.refused and not self._came(key, version, asked)
        ]
        self._missed = {key: self._missed.get(key, asked) for key in missed}
        self.is_synced = self.is_synced or not missed

    def attempt(self, namespace: str, name: str) -> int | None:
        """The attempt of an experiment, if it had one."""
        seen = self._experiments.get((namespace, name))
        return seen.attempt if seen else None

    def list_standings(self) -> Iterator[tuple[Key, Standing]]:
        """How each experiment stands."""
        for key, seen in self._experiments.items():
            yield key, seen.standing

    def find_oldest_missed(self) -> tuple[Key, float] | None:
        """What was listed and longest has not come through the watch, and for how many seconds."""
        if not self._missed:
            return None
        key = min(self._missed, key=self._missed.__getitem__)
        return key, self.clock() - self._missed[key]

    @property
    def event_age_seconds(self) -> float | None:
        """How long ago the last event came; None if none has."""
        return None if self._last_event is None else self.clock() - self._last_event

    def _came(self, key: Key, version: str, asked: float) -> bool:
        """Whether it was seen as listed, or has changed since the list was asked for."""
        seen = self._experiments.get(key)
        return seen is not None and (seen.version == version or seen.at >= asked)


def _read(document: Mapping[str, Any], at: float) -> _Seen:
    status = document.get("status") or {}
    headline = find_headline(status)
    return _Seen(
        version=document["metadata"]["resourceVersion"],
        edited=_hash_edited(document),
        news=_hash_news(document),
        at=at,
        attempt=status.get("attempt"),
        headline=(headline["type"], headline["status"], headline["reason"]) if headline else None,
        standing=read_standing(document),
    )


def _hash_edited(document: Mapping[str, Any]) -> int:
    """What its users write, of the spec the generation."""
    metadata = document["metadata"].items()
    return _hash({name: value for name, value in metadata if name not in _OF_A_WRITE | _OURS})


def _hash_news(document: Mapping[str, Any]) -> int:
    """What the operator writes and decides by."""
    metadata, status = document["metadata"], document.get("status") or {}
    ours = {name: metadata.get(name) for name in sorted(_OURS)}
    return _hash([ours, {name: value for name, value in status.items() if name not in _TOLD_ONLY}])


def _hash(content: object) -> int:
    return hash(json.dumps(content, sort_keys=True))


def _tell(key: Key, seen: _Seen, document: Mapping[str, Any]) -> None:
    headline = find_headline(document["status"])
    assert headline is not None
    about = {"namespace": key[0], "experiment": key[1], "attempt": seen.attempt}
    _LOG.info(
        "%s: %s is %s: %s",
        seen.standing.phase,
        headline["type"],
        headline["status"],
        headline.get("message", ""),
        extra={**about, "reason": headline["reason"]},
    )
