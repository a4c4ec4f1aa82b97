"""The interface between the planner and the consumer at the end of a plan's streams.

    source ─▶ steps ─▶ feed ─▶ consumer: a training, or a table to write

A consumer decides which streams it takes, which of their columns, in which order and by which feed.
`build` plans the streams for any consumer; `run` has a package that runs each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from pipeline_runtime.config import Shuffle
from pipeline_runtime.plan.model import FeedChoice, Plan, Stage, StreamPlan

# Rows in the order of the source.
IN_ORDER = Shuffle(unit="None")


class TakesInOrder:
    """The part of a consumer that takes all rows in the order of the source."""

    __slots__ = ()

    @property
    def seed(self) -> int:
        return 0

    @property
    def request_key(self) -> str | None:
        return None

    def shuffle(self, role: str) -> Shuffle:
        return IN_ORDER


class Consumer(Protocol):
    """The use of a plan's rows; frozen and picklable, and bound to a manifest."""

    @property
    def runner(self) -> str:
        """The package that runs it; see `run.consumers.Runner`."""
        ...

    @property
    def roles(self) -> tuple[str, ...]:
        """The streams that it takes, by role; the first one is the plan's main stream."""
        ...

    @property
    def seed(self) -> int:
        """The seed of the shuffle."""
        ...

    @property
    def request_key(self) -> str | None:
        """The key of requests whose rows stay together; None if they need not."""
        ...

    def shuffle(self, role: str) -> Shuffle:
        """The order of the rows of a stream."""
        ...

    def find_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the columns that it takes of the pipeline's output.

        Raises ManifestError with every column that is unknown or that it cannot take.
        """
        ...

    def takes_once(self, columns: frozenset[str]) -> frozenset[str]:
        """Return which of these columns it takes once per request instead of once per row."""
        ...

    def choose_feed(self, stages: Sequence[Stage]) -> FeedChoice:
        """Return what brings it the rows of these stages."""
        ...

    def warn(self, stream: StreamPlan) -> Iterable[str]:
        """Return what the user should know about its main stream."""
        ...

    def describe(self, plan: Plan) -> Iterable[str]:
        """Return the lines of `explain` about it."""
        ...

    def document(self, plan: Plan) -> dict[str, Any]:
        """Return the fields of `plan.json` about it."""
        ...
