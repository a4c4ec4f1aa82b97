"""Numbers of rows that a step counts itself, as the state of an accumulator."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline_runtime.measuring.base import MergesValues
from pipeline_runtime.measuring.values import State, Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(MergesValues):
    """A fixed number of counts, which are added.

    Attributes:
        size: how many counts there are.
    """

    size: int

    def empty(self) -> State:
        """Return the state of no row."""
        return self.of(*(0,) * self.size)

    def of(self, *numbers: int) -> State:
        """Return the state with these counts."""
        return {"counts": Sums(numbers)}

    def list_numbers(self, state: State) -> tuple[int, ...]:
        """Return the counts of a state."""
        counts = state["counts"]
        assert isinstance(counts, Sums)
        return counts.numbers
