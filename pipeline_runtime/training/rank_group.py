"""Exchanges values between the ranks of an attempt, on the CPU.

`context` agrees on each step by it, and gathers the positions for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist


class RankGroup:
    """The ranks of an attempt. With a single rank nothing is exchanged.

    Args:
        join: returns the group in which the ranks agree, None for torch.distributed's default; it
            is called before the first exchange.
    """

    def __init__(self, world_size: int, join: Callable[[], dist.ProcessGroup | None]) -> None:
        self._world_size = world_size
        self._join = join

    @cached_property
    def _group(self) -> dist.ProcessGroup | None:
        return self._join()

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        if self._world_size == 1:
            return [value]
        values: list[Any] = [None] * self._world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def find_largest(self, values: Sequence[float]) -> list[float]:
        """Return the largest value of all ranks at each place of the list."""
        if self._world_size == 1:
            return list(values)
        reduced = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(reduced, op=dist.ReduceOp.MAX, group=self._group)
        largest: list[float] = reduced.tolist()
        return largest
