"""A model on inference workers, as a data worker reaches it.

`RemoteModel` goes to the data workers inside of the step. It gets the list of inference workers
from the group's pool (`model_pool`) and calls them directly. It sends a request again if its
inference worker is lost, or finishes no batch within `progressDeadlineSeconds`; the pool replaces
that worker. After a few times the request fails, since its rows may be the cause.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray

from pipeline_runtime.errors import LastmileError, StepError
from pipeline_runtime.feed.making.waiting import waiting
from pipeline_runtime.feed.over_ray.actor_pool import Found
from pipeline_runtime.steps.predict.serving import Answer, from_ipc, to_ipc

# Times that a request is sent. Losing several workers by chance is unlikely; rows that kill one
# would kill each.
MAX_TRIES = 4
# Seconds between two looks of a data worker at the list of inference workers, and at the progress
# of the one that it waits for,
_LOOK_SECONDS = 2.0
# and while there is none.
_START_SECONDS = 0.2
# A new node with a GPU, its image and the model take minutes.
_MAX_START_SECONDS = 1800.0
# A call that answers at once, but for a process that is blocked.
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """A model on inference workers; see `steps.base.ModelClient`.

    Attributes:
        pool: the handle of the group's `ModelPool`.
        models: the reference of the group's models.
        key: key of this model among them.
    """

    pool: Any
    models: Any
    key: str
    group: str
    deadline_seconds: float

    def begin(self, rows: pa.Table) -> Callable[[], pa.Table]:
        """Send rows; see `steps.base.ModelClient`."""
        crew = _find_crew(self)
        content = to_ipc(rows)
        with waiting():
            first = crew.send(self.key, content)

        def finish() -> pa.Table:
            sent = first
            for number in range(1, MAX_TRIES + 1):
                with waiting():
                    answer = crew.wait(sent)
                    if answer is None and number < MAX_TRIES:
                        sent = crew.send(self.key, content)
                if isinstance(answer, BaseException):
                    raise answer
                if answer is not None:
                    return answer
            raise StepError(
                f"{MAX_TRIES} inference workers of {self.group!r} died, or finished no batch "
                f"within {self.deadline_seconds:,.0f} s, while they scored {rows.num_rows:,} rows; "
                "the model may need more memory (spec.inferenceWorkers), a longer "
                "progressDeadlineSeconds, or crashes on these rows"
            )

        return finish


@dataclass(frozen=True, slots=True)
class _Sent:
    name: str
    actor: Any
    reference: Any


class _Crew:
    """The inference workers of a group, as the threads of this process see them."""

    def __init__(self, model: RemoteModel) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._actors: dict[str, Any] = {}
        self._open = Counter[str]()  # requests of this process
        self._lost: set[str] = set()
        self._looked = float("-inf")

    def send(self, key: str, content: pa.Buffer) -> _Sent:
        """Send a request to the worker with the fewest of this process.

        Raises the error for which there is no worker.
        """
        deadline = time.monotonic() + _MAX_START_SECONDS
        while True:
            self._look()
            with self._lock:
                if self._actors:
                    fewest = min(self._open[name] for name in self._actors)
                    least = [name for name in self._actors if self._open[name] == fewest]
                    name = random.choice(least)
                    self._open[name] += 1
                    actor = self._actors[name]
                    break
            if time.monotonic() > deadline:
                raise StepError(
                    f"no inference worker of {self._model.group!r} has come up for "
                    f"{_MAX_START_SECONDS:,.0f} s; look at its pods, and at the quota of the "
                    "namespace"
                )
            time.sleep(_START_SECONDS)
        return _Sent(name, actor, actor.score.remote(key, content))

    def wait(self, sent: _Sent) -> Answer | None:
        """Return the answer; None if the worker was lost, or made no progress for too long."""
        try:
            return self._wait(sent)
        finally:
            with self._lock:
                self._open[sent.name] -= 1

    def _wait(self, sent: _Sent) -> Answer | None:
        seen, since, asked = -1, time.monotonic(), None
        while True:
            ready, _ = ray.wait([sent.reference], timeout=_LOOK_SECONDS)
            if ready:
                try:
                    found = ray.get(sent.reference)
                except ray.exceptions.RayTaskError:
                    raise  # a fault of Lastmile's own
                except ray.exceptions.RayError:
                    self._lose(sent.name)
                    return None
                return found if isinstance(found, BaseException) else from_ipc(found)
            if asked is None:
                asked = sent.actor.progress.remote()
            if ray.wait([asked], timeout=_ANSWER_SECONDS)[0]:
                counted, asked = _read_progress(asked), None
                if counted != seen:
                    seen, since = counted, time.monotonic()
            if time.monotonic() - since > self._model.deadline_seconds:
                self._lose(sent.name)
                return None
            self._look()

    def _lose(self, name: str) -> None:
        with self._lock:
            self._lost.add(name)
            self._actors.pop(name, None)
            self._looked = float("-inf")

    def _look(self) -> None:
        """Ask the pool for its workers, from time to time. Raises the error that it reports."""
        with self._lock:
            due = _START_SECONDS if not self._actors else _LOOK_SECONDS
            if time.monotonic() - self._looked < due:
                return
            self._looked = time.monotonic()
            lost = sorted(self._lost)
        try:
            found: Found | LastmileError = ray.get(
                self._model.pool.find.remote([self._model.models], lost)
            )
        except ray.exceptions.RayActorError:
            return  # Ray restarts the pool
        if isinstance(found, LastmileError):
            raise found
        with self._lock:
            self._actors = {n: each for n, each in found.actors.items() if n not in self._lost}


def _read_progress(reference: Any) -> int:
    try:
        counted: int = ray.get(reference).num_batches
    except ray.exceptions.RayError:
        return -1  # the request's own reference reports the loss
    return counted


_CREWS: dict[str, _Crew] = {}
_CREWS_LOCK = threading.Lock()


def _find_crew(model: RemoteModel) -> _Crew:
    """Return the crew of a model's pool in this process."""
    with _CREWS_LOCK:
        return _CREWS.setdefault(model.pool._actor_id.hex(), _Crew(model))
