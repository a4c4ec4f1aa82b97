"""Cuts the rows for a model into batches, and chooses their size.

With `Auto`, a process measures a model on the first batches that it has anyway: it begins with a
small size and takes the next one as long as that raises the rows per second and the memory for it
is there. A batch that exceeds the memory is halved, and so are all that follow.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import pyarrow as pa

from pipeline_runtime.errors import StepError
from pipeline_runtime.steps.base import Scorer

BatchSize = int | Literal["Auto"]
# Powers of four: between two of them, few models gain more than some percent.
_SIZES = (64, 256, 1024, 4096, 16_384)
# A larger size must raise the rows per second by so much, since it costs memory.
_MIN_GAIN = 1.05
# Share of the free memory that the next size may need, as far as the last one tells.
_MEMORY_SHARE = 0.5


class OutOfMemory(Exception):
    """A batch did not fit into the memory of the device."""


@dataclass(slots=True)
class Choice:
    """The size of a model's batches in this process.

    Attributes:
        size: the size to take now.
        is_final: False while sizes are measured.
        is_warm: True after the first batch, which is slower than others.
        rate: rows per second of the size before.
    """

    size: int
    is_final: bool = False
    is_warm: bool = False
    rate: float = 0.0

    def record(self, num_rows: int, seconds: float, grown_bytes: int) -> None:
        """Take note of a batch of the present size, and choose the size of the next one."""
        if self.is_final or num_rows < self.size:
            return
        if not self.is_warm:
            self.is_warm = True
            return
        rate = num_rows / max(seconds, 1e-9)
        place = _SIZES.index(self.size)
        if rate < self.rate * _MIN_GAIN:
            self.size, self.is_final = _SIZES[place - 1], True
            return
        self.rate = rate
        growth = _SIZES[min(place + 1, len(_SIZES) - 1)] / self.size
        if place + 1 == len(_SIZES) or grown_bytes * growth > _MEMORY_SHARE * find_free_bytes():
            self.is_final = True
        else:
            self.size = _SIZES[place + 1]

    def halve(self, num_rows: int) -> None:
        """Make batches half as large as one that did not fit."""
        self.size, self.is_final = max(1, num_rows // 2), True


# Of each model in memory, by the size in the manifest.
_CHOICES: WeakKeyDictionary[Scorer, dict[BatchSize, Choice]] = WeakKeyDictionary()
# Several threads measure a model at once.
_LOCK = threading.Lock()


def run_in_batches(
    scorer: Scorer, rows: pa.Table, batch_size: BatchSize
) -> list[Mapping[str, Any]]:
    """Return the outputs of a model for each batch of the rows, in order.

    Raises StepError if a single row exceeds the memory, or the model returns another number of
    rows.
    """
    is_auto = batch_size == "Auto"
    first = Choice(_SIZES[0] if is_auto else int(batch_size), is_final=not is_auto)
    with _LOCK:
        choice = _CHOICES.setdefault(scorer, {}).setdefault(batch_size, first)
    return list(_run(scorer, rows, choice))


def _run(scorer: Scorer, rows: pa.Table, choice: Choice) -> Iterator[Mapping[str, Any]]:
    start = 0
    while start < rows.num_rows:
        batch = rows.slice(start, choice.size)  # which another thread may change
        if not choice.is_final:
            _forget_peak()
        began, peak = time.perf_counter(), _read_peak_bytes()
        try:
            outputs = scorer(batch)
        except (OutOfMemory, MemoryError) as error:
            if batch.num_rows == 1:
                raise StepError(
                    f"the model does not fit into the memory with a batch of one row ({error}); "
                    "give the workers that call it more memory, or use a smaller model"
                ) from error
            choice.halve(batch.num_rows)
            continue
        for name, values in outputs.items():
            check_rows(name, values, batch.num_rows)
        seconds = time.perf_counter() - began
        with _LOCK:
            choice.record(batch.num_rows, seconds, _read_peak_bytes() - peak)
        start += batch.num_rows
        yield outputs


def check_rows(name: str, values: Any, num_rows: int) -> None:
    """Raise StepError unless an output has a value for each row of a batch."""
    try:
        count = len(values)
    except TypeError:
        count = None
    if count != num_rows:
        found = "is a single value" if count is None else f"has {count:,}"
        raise StepError(
            f"the output {name!r} must have a value for each of a batch's {num_rows:,} rows, but "
            f"{found}; correct the model"
        )


def _forget_peak(clear_refs: Path = Path("/proc/self/clear_refs")) -> None:
    """Let the largest memory of this process be its present one, where Linux allows that.

    Otherwise a batch that stays below an earlier peak seems to need no memory. See proc(5).
    """
    with suppress(OSError):
        clear_refs.write_text("5")


def _read_peak_bytes() -> int:
    """Return the largest memory that this process has had since `_forget_peak`."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def find_free_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that is free for this process: of the machine, or of its container."""
    free = [_read_field(Path("/proc/meminfo"), "MemAvailable:") * 1024]
    limit = _read_number(cgroup / "memory.max")
    if limit:
        # The cache of files that were read counts as used, but is dropped when memory is needed.
        cached = _read_field(cgroup / "memory.stat", "inactive_file ")
        free.append(limit - _read_number(cgroup / "memory.current") + cached)
    return max(0, min(free))


def _read_field(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def _read_number(path: Path) -> int:
    """Return the number in a file; 0 if there is none, or no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
