"""Computing and idle times of the device, from a trace of torch's profiler.

Only kernels count as computing: a GPU that waits for a copy from the host has nothing to do. On a
CPU the operators of torch take the kernels' place, so that the benchmark can be tried without GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.asking import GAP_SECONDS, Busyness

_KERNELS: Final = {"cuda": "kernel", "cpu": "cpu_op"}  # category in the trace by type of device
_ACTIVITIES: Final = {"cuda": ProfilerActivity.CUDA, "cpu": ProfilerActivity.CPU}


def trace_steps(
    step: Callable[[], None], num_steps: int, device: torch.device, path: Path
) -> Busyness:
    """Trace so many steps; the trace stays at `path` for Perfetto or chrome://tracing."""
    with profile(activities=[_ACTIVITIES[device.type]]) as profiler:
        for _ in range(num_steps):
            step()
        synchronize(device)
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return measure_busyness(list_intervals(events, _KERNELS[device.type]), num_steps)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def list_intervals(events: Iterable[Any], category: str) -> list[tuple[float, float]]:
    """Return start and end of the events of a category, in seconds."""
    return [
        (event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
        for event in events
        if event.get("cat") == category and "dur" in event
    ]


def measure_busyness(intervals: Iterable[tuple[float, float]], num_steps: int) -> Busyness:
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
    return Busyness(
        seconds=seconds,
        busy_share=1 - sum(gaps) / seconds if seconds else 1.0,
        gap_share=sum(long_gaps) / seconds if seconds else 0.0,
        num_gaps=len(long_gaps),
        longest_gap_seconds=max(gaps, default=0.0),
        steps=num_steps,
    )
