"""The bases of steps that observe rows: their observations are states, which merge in any order.

    rows of a chunk ─▶ observe ─▶ bytes with the chunk ─▶ consumer: load, merge, finish

The feed calls `observe` once with all rows of a chunk, and takes the bytes along with the chunk's
counts. The consumer decides which chunks count, so that each row counts once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline_runtime.measuring.base import Merging, Result
from pipeline_runtime.measuring.encoding import from_bytes, to_bytes
from pipeline_runtime.measuring.values import State
from pipeline_runtime.steps.base import BoundStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservingStep(BoundStep):
    """A step that may observe rows; the type of its state is its own."""

    @abstractmethod
    def start(self) -> Any:
        """Return the state of no row."""

    @abstractmethod
    def load(self, observed: bytes) -> Any:
        """Return the state that `observe` returned as bytes.

        Raises OutputError or DamagedState if the bytes are something else.
        """

    @abstractmethod
    def merge(self, parts: Sequence[Any]) -> Any:
        """Return the state of the rows of all parts; at least one is given."""

    @abstractmethod
    def finish(self, states: Any) -> Iterator[Result]:
        """Yield the results of all rows, each with its name and kind.

        Raises StepError if they fail the run.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatingStep(ObservingStep):
    """A step whose state is one state for each of its accumulators."""

    @property
    @abstractmethod
    def accumulators(self) -> Sequence[Merging]:
        """The accumulators of the observations; none if the step observes nothing."""

    @property
    def observes(self) -> bool:
        return bool(self.accumulators)

    def start(self) -> list[State]:
        """Return the states of no row, one per accumulator."""
        return [each.empty() for each in self.accumulators]

    def dump(self, states: Sequence[State]) -> bytes:
        """Return states as bytes."""
        return to_bytes(states)

    def load(self, observed: bytes) -> list[State]:
        """Return the states that `observe` returned as bytes, one per accumulator.

        Raises DamagedState if the bytes are something else.
        """
        return from_bytes(observed, self.start())

    def merge(self, parts: Sequence[Sequence[State]]) -> list[State]:
        """Return the states of the rows of all parts; at least one is given."""
        every = zip(*parts, strict=True)
        return [
            accumulator.merge(states)
            for accumulator, states in zip(self.accumulators, every, strict=True)
        ]
