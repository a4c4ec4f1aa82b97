"""How much memory a trainer holds, for the `lastmile_*` metrics."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def read_resident_bytes() -> int:
    """Of this process, the shared pages among them (proc(5), statm); 0 where that is not told."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def read_gpu_bytes(device: torch.device) -> int | None:
    """What torch holds of the GPU's memory, what it keeps for later among it; None on a CPU."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else None
