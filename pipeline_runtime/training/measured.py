"""Measures the rows of a training: those of the first epoch, since each epoch has the same rows.

A rank adds the observations of a chunk once the position counts the chunk, which is when its last
row went into a batch. So a checkpoint has both for the same rows, and a run that resumes makes and
adds the other chunks alone. The driver merges the observations of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline_runtime.feed.chunk import Header
from pipeline_runtime.measuring.base import Result
from pipeline_runtime.measuring.values import DamagedState, State
from pipeline_runtime.plan.model import PlannedStep
from pipeline_runtime.steps.observing import AccumulatingStep

# Chunks, and their bytes, that are merged at a time, which is faster than one by one.
_MAX_PENDING = 64
_MAX_PENDING_BYTES = 8 << 20


def find_observers(steps: Sequence[PlannedStep]) -> list[AccumulatingStep]:
    """Return the steps that observe rows, in the order of the pipeline."""
    transforms = [step.transform for step in steps]
    return [t for t in transforms if isinstance(t, AccumulatingStep) and t.observes]


class Measured:
    """The merged observations of the chunks that a rank has used up."""

    def __init__(self, steps: Sequence[AccumulatingStep]) -> None:
        self._steps = steps
        self._states: list[list[State]] = [step.start() for step in steps]
        self._pending: list[tuple[bytes, ...]] = []
        self._recent: list[tuple[bytes, ...]] = []  # of the last batch

    def add(self, header: Header) -> None:
        """Add a chunk, whose last row is in the last batch."""
        if header.epoch == 0:
            self._recent.append(header.observed)

    def begin_batch(self) -> None:
        """Note that what follows belongs to another batch. Raises StepError of the user's code."""
        self._pending += self._recent
        self._recent = []
        num_bytes = sum(len(each) for observed in self._pending for each in observed)
        if len(self._pending) >= _MAX_PENDING or num_bytes > _MAX_PENDING_BYTES:
            self._merge()

    def dump(self, *, without_last: bool = False) -> tuple[bytes, ...]:
        """Return the bytes of each step's states.

        Args:
            without_last: leave out the chunks that were used up by the last batch.

        Raises StepError of the user's code.
        """
        if not without_last:
            self.begin_batch()
        self._merge()
        pairs = zip(self._steps, self._states, strict=True)
        return tuple(step.dump(states) for step, states in pairs)

    def restore(self, parts: Sequence[bytes]) -> None:
        """Add what `dump` returned. Raises DamagedState if it is something else."""
        if len(parts) != len(self._steps):
            raise DamagedState(f"it must be of {len(self._steps)} steps, but is of {len(parts)}")
        self._pending.append(tuple(parts))
        self._merge()

    def finish(self) -> list[list[Result]]:
        """Return the results of each step. Raises StepError of the user's code."""
        pairs = zip(self._steps, self._states, strict=True)
        return [list(step.finish(states)) for step, states in pairs]

    def _merge(self) -> None:
        for index, step in enumerate(self._steps):
            loaded = [step.load(observed[index]) for observed in self._pending]
            self._states[index] = step.merge([self._states[index], *loaded])
        self._pending = []


def merge_ranks(
    steps: Sequence[AccumulatingStep], ranks: Sequence[Sequence[bytes]]
) -> list[list[Result]]:
    """Return the results of each step, from what `Measured.dump` returned on each rank.

    Raises DamagedState, or StepError of the user's code.
    """
    merged = Measured(steps)
    for parts in ranks:
        merged.restore(parts)
    return merged.finish()
