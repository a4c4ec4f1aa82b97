"""Computing and idle times of the device, from a trace of torch's profiler.

Only kernels count as computing: a GPU that waits for a copy from the host is idle. On a CPU the
operators of torch take the place of kernels, so that the benchmark can be tried without a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

# Shorter gaps are those between two kernels that are launched one after the other.
GAP_SECONDS: Final = 1e-4
_KERNELS: Final = {"cuda": "kernel", "cpu": "cpu_op"}  # category in the trace by type of device
_ACTIVITIES: Final = {"cuda": ProfilerActivity.CUDA, "cpu": ProfilerActivity.CPU}


def trace_steps(
    step: Callable[[], None], num_steps: int, device: torch.device, path: Path
) -> dict[str, float]:
    """Trace some steps; the trace stays at `path` for Perfetto or chrome://tracing."""
    with profile(activities=[_ACTIVITIES[device.type]]) as profiler:
        for _ in range(num_steps):
            step()
        synchronize(device)
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return measure_busyness(list_intervals(events, _KERNELS[device.type]), num_steps)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all of its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def list_intervals(events: Iterable[Any], category: str) -> list[tuple[float, float]]:
    """Return start and end of the events of a category, in seconds."""
    return [
        (event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
        for event in events
        if event.get("cat") == category and "dur" in event
    ]


def measure_busyness(intervals: Iterable[tuple[float, float]], num_steps: int) -> dict[str, float]:
    """Add up intervals that may overlap, as those of several streams do.

    Raises ValueError if there is none.
    """
    ordered = sorted(intervals)
    if not ordered:
        raise ValueError("the trace must have kernels, but has none")
    first = end = ordered[0][0]
    gaps = []
    for start, stop in ordered:
        if start > end:
            gaps.append(start - end)
        end = max(end, stop)
    seconds = end - first
    long_gaps = [gap for gap in gaps if gap >= GAP_SECONDS]
    return {
        "busyShare": 1 - sum(gaps) / seconds if seconds else 1.0,
        "gapShare": sum(long_gaps) / seconds if seconds else 0.0,
        "gapsPerStep": len(long_gaps) / num_steps,
        "longestGapMilliseconds": 1e3 * max(gaps, default=0.0),
    }
