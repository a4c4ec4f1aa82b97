"""Reads the memory in use by a trainer, for the `lastmile_*` metrics."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def read_resident_bytes() -> int:
    """Return the resident bytes of this process, shared pages included; 0 if unknown (proc(5))."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def read_gpu_bytes(device: torch.device) -> int | None:
    """Return the GPU memory that torch has reserved, its cache included; None on a CPU."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else None
