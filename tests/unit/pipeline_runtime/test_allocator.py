"""Arrow's allocator keeps what was freed, unless somebody has said otherwise."""

import os
import subprocess
import sys

import pytest

from pipeline_runtime.allocator import keep_freed_memory

# Takes, writes to and frees the same megabytes again and again, as chunks do, and counts the pages
# that had to come from the system.
CHURN = """
import resource, time
from pipeline_runtime.allocator import keep_freed_memory
keep_freed_memory()
import numpy as np
import pyarrow as pa
pool = pa.mimalloc_memory_pool()
def churn():
    for _ in range(10):
        for buffer in [pa.allocate_buffer(size << 20, memory_pool=pool) for size in (1, 2, 3, 4)]:
            np.frombuffer(buffer, np.uint8)[::4096] = 1
        del buffer
        time.sleep(0.02)
        for _ in range(50):  # mimalloc looks for what to give back as it is asked for more
            pa.allocate_buffer(100_000, memory_pool=pool)
churn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_who_has_set_it_has_it_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "7")
    assert keep_freed_memory() == {"MIMALLOC_PURGE_DELAY": "7"}
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY")
    assert keep_freed_memory() == {"MIMALLOC_PURGE_DELAY": "10000"}
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "10000"
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY")


def test_pages_that_were_freed_are_not_taken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY", raising=False)
    kept = count_faults()
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "1")
    assert count_faults() > 4 * kept + 100


def count_faults() -> int:
    command = [sys.executable, "-c", CHURN]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
