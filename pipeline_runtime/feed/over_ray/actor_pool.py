"""A pool of Ray actors that follows the nodes of the cluster.

It starts actors on a node that joins, replaces an actor that died, and gives no new calls to the
actors of a node that is drained, which end after their open calls. `actor_readers` has a pool of
readers, `model_pool` one of model servers. A pool is an actor itself and looks at the cluster when
it is asked for its actors. Its actors die with it.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import ray

# An actor that starts takes seconds by itself; after so many, its CPU may be in use.
MAX_JOIN_SECONDS = 30.0
# Seconds after which an idle actor on a drained node ends: by then a caller that is not busy has
# the new list of actors. A busy caller's call is lost, and another actor answers it.
_LEAVE_SECONDS = 3.0


@dataclass(slots=True)
class _Started:
    """An actor of the pool.

    Attributes:
        starting: the call that it answers once it runs; None afterwards.
        leaves_at: when it may end, by the monotonic clock; None unless its node is drained.
        leaving: the call that it answers after all others.
        started_at: by the monotonic clock.
    """

    actor: Any
    node: str
    starting: Any | None
    leaves_at: float | None = None
    leaving: Any | None = None
    started_at: float = field(default_factory=time.monotonic)

    def is_about_to_answer(self) -> bool:
        """Return whether it starts and has not waited for long."""
        age = time.monotonic() - self.started_at
        return self.starting is not None and age < MAX_JOIN_SECONDS

    @property
    def can_be_asked(self) -> bool:
        return self.starting is None and self.leaves_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The pool's list of actors."""

    actors: Mapping[str, Any]  # the actors that can be asked, by name
    nodes: Mapping[str, str]  # their nodes
    is_growing: bool  # more actors are starting


class ActorPool(ABC):
    """Keeps as many actors as the cluster has room for.

    Attributes:
        prefix: the beginning of its actors' names.
    """

    prefix: ClassVar[str]

    def __init__(self) -> None:
        self._actors: dict[str, _Started] = {}

    @abstractmethod
    def _room(self) -> dict[str, int]:
        """Return the number of actors per node."""

    @abstractmethod
    def _create(self, node: str, held: Any) -> Any:
        """Start an actor on a node; it has a method `ping`, and `finish` for its last call."""

    @abstractmethod
    def _fail_start(self, error: Exception) -> None:
        """Take note of an actor that did not start; may raise to fail the caller."""

    @abstractmethod
    def _note_start(self, answer: Any) -> None:
        """Take note of an actor that started, by its answer to `ping`."""

    def _note_end(self, name: str, answer: Any) -> None:  # noqa: B027 - most have nothing to note
        """Take note of a drained actor's answer to `finish`."""

    def _find(self, held: Any, lost: Sequence[str]) -> Found:
        """Return the actors that can be asked, after replacing the lost ones.

        Args:
            held: the input of actors that start. Each call has it, since the arguments of a
                restarted pool may no longer be in the object store.
        """
        for name in lost:
            self._drop(name)
        self._match_nodes(held)
        self._look_at_starts()
        answering = {n: started for n, started in self._actors.items() if started.can_be_asked}
        return Found(
            actors={name: started.actor for name, started in answering.items()},
            nodes={name: started.node for name, started in answering.items()},
            is_growing=any(started.is_about_to_answer() for started in self._actors.values()),
        )

    def _drop(self, name: str) -> None:
        started = self._actors.pop(name, None)
        if started is not None:
            ray.kill(started.actor)

    def _look_at_starts(self) -> None:
        starting = {s.starting: name for name, s in self._actors.items() if s.starting is not None}
        if not starting:
            return
        answered, _ = ray.wait(list(starting), num_returns=len(starting), timeout=0)
        for reference in answered:
            name = starting[reference]
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayError as error:
                self._drop(name)
                self._fail_start(error)
            else:
                self._actors[name].starting = None
                self._note_start(answer)

    def _match_nodes(self, held: Any) -> None:
        room, drained = self._room(), draining_nodes()
        up = {started.node for started in self._actors.values() if started.can_be_asked}
        for name, started in list(self._actors.items()):
            if started.node not in room:
                self._drop(name)  # its node no longer exists
                continue
            room[started.node] -= 1
            if started.node in drained and up - drained.keys():  # otherwise none would be left
                self._dismiss(name, started)
        for node, missing in room.items():
            for _ in range(missing if node not in drained else 0):
                self._start(node, held)

    def _dismiss(self, name: str, started: _Started) -> None:
        """End an actor in steps; a drained node ends once nothing runs on it."""
        now = time.monotonic()
        if started.starting is not None:
            self._drop(name)  # it has no calls yet
        elif started.leaves_at is None:
            started.leaves_at = now + _LEAVE_SECONDS
        elif started.leaving is None and now >= started.leaves_at:
            started.leaving = started.actor.finish.remote()
        elif started.leaving is not None and ray.wait([started.leaving], timeout=0)[0]:
            self._end(name, started.leaving)

    def _end(self, name: str, leaving: Any) -> None:
        """Drop an actor that has answered its last call."""
        try:
            answer = ray.get(leaving)
        except ray.exceptions.RayError:
            pass  # its node was faster
        else:
            self._note_end(name, answer)
        self._drop(name)

    def _start(self, node: str, held: Any) -> None:
        actor = self._create(node, held)
        # The name is unique among all pools of the run, since callers remember lost actors by name.
        name = f"{self.prefix}-{secrets.token_hex(8)}"
        self._actors[name] = _Started(actor=actor, node=node, starting=actor.ping.remote())


def draining_nodes() -> Mapping[str, int]:
    """Return the nodes that are drained, with the deadline of each; 0 if it has none."""
    # Ray Train calls this too; 2.60 has no public name for it.
    draining: dict[str, int] = ray._private.state.state.get_draining_nodes()
    return draining
