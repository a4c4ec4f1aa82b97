"""Requests to a process that measures, and its answers; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gpu.cells import Cell

# Shorter gaps are those between two kernels that are launched one after the other.
GAP_SECONDS: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request to measure a cell.

    Attributes:
        seconds: length of the measurement.
        trace_path: trace the cell to this file instead.
        is_last: close what brings the cell's batches afterwards.
    """

    cell: Cell
    seconds: float = 0.0
    trace_path: Path | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The result of a measurement.

    Attributes:
        samples: trained on.
        steps: taken.
        seconds: until the device had done all of them.
        waited_seconds: of these, until batches came.
    """

    samples: int
    steps: int
    seconds: float
    waited_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Busyness:
    """Times in a trace, from the first kernel's start to the last one's end.

    Attributes:
        seconds: length of the trace.
        busy_share: share of it in which at least one kernel ran.
        gap_share: share of it in gaps of at least `GAP_SECONDS` between kernels.
        num_gaps: how many those are.
        longest_gap_seconds: of all gaps.
        steps: traced.
    """

    seconds: float
    busy_share: float
    gap_share: float
    num_gaps: int
    longest_gap_seconds: float
    steps: int
