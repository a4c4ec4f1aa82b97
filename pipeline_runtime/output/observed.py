"""Measurements of a run's rows by its steps: read from the spool files of all chunks, and merged.

Only chunks with a record count, and each counts once, whatever attempts were made at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pipeline_runtime.errors import OutputError, StepError
from pipeline_runtime.measuring.base import Result
from pipeline_runtime.output.records import ChunkRecord
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.plan.model import PlannedStep
from pipeline_runtime.sources.stores import asking
from pipeline_runtime.steps.observing import ObservingStep

# Chunks that are merged at a time, whose states are in memory together, and their stored bytes, of
# which states have some ten times as many.
_MAX_CHUNKS = 64
_MAX_BYTES = 32 << 20
# Requests to a store at a time.
_READERS = 16


def find_observers(steps: Sequence[PlannedStep]) -> dict[str, ObservingStep]:
    """Return the steps that observe rows, in the order of the pipeline, by their paths."""
    return {
        step.path.removeprefix("spec."): step.transform
        for step in steps
        if isinstance(step.transform, ObservingStep) and step.transform.observes
    }


def merge_observed(
    spool: Storage, chunks: Sequence[ChunkRecord], observers: Mapping[str, ObservingStep]
) -> list[list[Result]]:
    """Return the results of each step over all chunks.

    Args:
        chunks: records of all chunks, in the order of the table.
        observers: the steps that measure rows, in the order of the pipeline, by their paths.

    Raises OutputError if a file is not what a writer stored, StoreError if a store does not
    answer, or StepError if the user's code fails or the results fail the run.
    """
    steps = list(observers.values())
    merged = [step.merge([step.start()]) for step in steps]
    with ThreadPoolExecutor(_READERS) as pool:
        for batch in _cut(chunks):
            found = list(pool.map(lambda chunk: _read(spool, chunk, steps), batch))
            merged = [
                step.merge([merged[index], *(states[index] for states in found)])
                for index, step in enumerate(steps)
            ]
    pairs = zip(observers.items(), merged, strict=True)
    return [_finish(path, step, state) for (path, step), state in pairs]


def _finish(path: str, step: ObservingStep, state: Any) -> list[Result]:
    try:
        return list(step.finish(state))
    except StepError as error:
        raise StepError(f"spec.{path}: {error}") from error


def _cut(chunks: Sequence[ChunkRecord]) -> Iterator[Sequence[ChunkRecord]]:
    batch: list[ChunkRecord] = []
    num_bytes = 0
    for chunk in chunks:
        size = sum(place.length for place in chunk.observed)
        if batch and (len(batch) == _MAX_CHUNKS or num_bytes + size > _MAX_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(chunk)
        num_bytes += size
    if batch:
        yield batch


def _read(spool: Storage, chunk: ChunkRecord, steps: Sequence[ObservingStep]) -> list[Any]:
    if len(chunk.observed) != len(steps):
        raise OutputError(
            f"{spool.uri}/{chunk.file}: must have what {len(steps)} steps measured, but has "
            f"{len(chunk.observed)}. Run again without --resume"
        )
    states = []
    with spool.open(chunk.file) as file:
        for place, step in zip(chunk.observed, steps, strict=True):
            with asking(f"{spool.uri}/{chunk.file}", "read what a step has measured"):
                content = file.read_at(place.length, place.offset)
            states.append(step.load(content))
    return states
