"""The models of an inference worker, which scores rows for data workers.

How a model of a `workerGroup` is scored:

    data worker:  step ─▶ preprocessing ─▶ the model's inputs of a chunk, as Arrow IPC
    inference worker:  ─▶ waiting requests ─▶ batches ─▶ model ─▶ outputs, as Arrow IPC
    data worker:  ─▶ checks, nulls ─▶ re-attached to the chunk, whose rows have not moved

- A request is one chunk's rows for one model, and its answer has the same rows in the same order.
  So a prediction belongs to its row by construction, and no key travels; all other columns, later
  steps and writing stay on the data worker.
- A reader has one chunk in progress, so it has at most one open request per model. It waits for the
  answer, and thereby slows down reading when inference workers are the slower side. Its usage
  counts the wait apart from its work. Two readers per CPU, one of which works while the other one
  waits, gave no more rows per second on two cores with a model that sleeps for 0.1 s.
- With `batchSize: Auto`, rows of all waiting requests are joined into batches. A fixed size cuts
  each request by itself, as the data workers would, so that outputs are equal to the last bit.
- Scoring has no effect but its answer. A request to a worker that is lost, or makes no progress, is
  sent to another one, and a late answer is dropped: no row is lost, doubled or mismatched.
- An error of the model is the answer, and fails the run with the text that a data worker reports.

This module is independent of Ray; `feed.over_ray.model_pool` brings requests here.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from pipeline_runtime.errors import StepError
from pipeline_runtime.steps.base import Scorer, ServedModel
from pipeline_runtime.steps.predict.serving_counts import CallMeter, ServingCounts
from pipeline_runtime.steps.predict.transform import score_rows

# Rows of requests that are scored together, unless a single one has more; a few of the largest
# batches, so that an answer does not wait for many of them.
_MAX_JOINED_ROWS = 65_536

# Between two looks for requests that wait for the lock.
_IDLE_SECONDS = 0.01

# The outputs of a request's rows, or the error of the model.
Answer: TypeAlias = pa.Table | BaseException


@dataclass(slots=True, eq=False)
class _Request:
    rows: pa.Table
    answer: Answer | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Measured:
    """A model whose calls are measured."""

    scorer: Scorer
    meter: CallMeter

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        with self.meter.measure(table.num_rows):
            return self.scorer(table)


@dataclass(slots=True, eq=False)
class _Served:
    model: ServedModel
    scorer: _Measured
    waiting: deque[_Request] = field(default_factory=deque)


class ModelHost:
    """The models in the memory of this process; threads call `score` concurrently.

    Args:
        models: by any key.

    Raises what loading a model raises.
    """

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        loaded = {key: model.opened.load() for key, model in models.items()}
        self._meter = CallMeter()
        self._served = {
            key: _Served(model, _Measured(loaded[key], self._meter))
            for key, model in models.items()
        }
        self._lock = threading.Lock()  # of what waits
        self._scoring = threading.Lock()  # one batch at a time, since all share a device

    @property
    def counts(self) -> ServingCounts:
        """The work so far, by which callers see that the models make progress."""
        with self._lock:
            num_waiting = sum(len(served.waiting) for served in self._served.values())
        return self._meter.read(num_waiting)

    def score(self, key: str, rows: pa.Table) -> Answer:
        """Return the outputs of a model for rows with its inputs, or the error that it raised."""
        served, request = self._served[key], _Request(rows)
        with self._lock:
            served.waiting.append(request)
        with self._scoring:
            # Another thread may have scored the request together with its own.
            while request.answer is None:
                _answer(served, self._take(served))
        return request.answer

    def wait_until_idle(self) -> None:
        """Wait until all requests are answered; call it once no new ones come.

        The lock of `score` is not fair: it may be free while requests wait for it.
        """
        while True:
            with self._scoring:
                if not self.counts.num_waiting:
                    return
            time.sleep(_IDLE_SECONDS)

    def _take(self, served: _Served) -> list[_Request]:
        """Return the requests to score next; several if their rows may share a batch."""
        with self._lock:
            taken = [served.waiting.popleft()]
            if served.model.batch_size != "Auto":
                return taken
            num_rows = taken[0].rows.num_rows
            while served.waiting:
                num_rows += served.waiting[0].rows.num_rows
                if num_rows > _MAX_JOINED_ROWS or not _can_join(taken[0], served.waiting[0]):
                    break
                taken.append(served.waiting.popleft())
            return taken


def _can_join(first: _Request, second: _Request) -> bool:
    """Return whether two tables have the same types, none of them with a dictionary of its own."""
    schema = first.rows.schema
    has_dictionary = any(map(pa.types.is_dictionary, schema.types))
    return not has_dictionary and schema.equals(second.rows.schema)


def _answer(served: _Served, requests: Sequence[_Request]) -> None:
    rows = requests[0].rows
    if len(requests) > 1:
        rows = pa.concat_tables([request.rows for request in requests])
    answer = _score(served, rows)
    if len(requests) == 1:
        requests[0].answer = answer
    elif isinstance(answer, BaseException):
        # Each request alone gets the error, if any, that its own rows raise.
        for request in requests:
            request.answer = _score(served, request.rows)
    else:
        start = 0
        for request in requests:
            request.answer = answer.slice(start, request.rows.num_rows)
            start += request.rows.num_rows


def _score(served: _Served, rows: pa.Table) -> Answer:
    model = served.model
    try:
        return pa.table(score_rows(served.scorer, rows, model.types, model.batch_size))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the answer is raised elsewhere
        return _to_portable(error)


def _to_portable(error: BaseException) -> BaseException:
    """Return an error that another process can read."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - the user's class may raise anything
        return StepError(f"{type(error).__name__}: {error}")
    return error


def to_ipc(table: pa.Table) -> pa.Buffer:
    """Return a table in Arrow's IPC format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def from_ipc(content: pa.Buffer) -> pa.Table:
    """Return the table in Arrow's IPC format, without a copy."""
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()
