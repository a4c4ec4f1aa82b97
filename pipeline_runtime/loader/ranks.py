"""The ranks that share a loader's rows, and how they keep in step: torch.distributed's, or one.

`loader` asks for them when an epoch begins, and `iteration` agrees with them before each batch.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pipeline_runtime.config import compare_configs
from pipeline_runtime.errors import LoaderError
from pipeline_runtime.training.stream import Agree, Agreement, agree_alone

# A digest fits a signed integer of 64 bits, whose negative fits one too.
_DIGEST_BYTES = 7
# Takes the place of a digest, which has fewer bits.
_FAILED = 1 << 8 * _DIGEST_BYTES
# An error lists this many differences at most.
_MAX_DIFFERENCES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreeing:
    """One rank's part in the agreements of a loop.

    Attributes:
        agree: called before each batch, by all ranks alike.
        fail: called instead if this rank cannot make its batch; the others then raise LoaderError.
    """

    agree: Agree
    fail: Callable[[Exception], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those that share the rows.

    Attributes:
        num_here: ranks on this machine, which share its cores.
        group: in which they agree; None for one rank alone.
    """

    rank: int
    world_size: int
    num_here: int
    group: dist.ProcessGroup | None = None

    def begin(self, settings: Mapping[str, Any]) -> Agreeing:
        """Begin a loop with the other ranks, and return the agreement of its batches.

        Args:
            settings: JSON values that must be equal on all ranks; `batches` are those delivered.

        Raises LoaderError on all ranks if they are not; and so does each agreement if the ranks
        are not at the same batch of the same loop.
        """
        if self.group is None:
            return Agreeing(agree=agree_alone, fail=lambda error: None)
        loop = _Loop(self.group, settings)
        loop.agree(has_rows=False, is_full=False)
        return Agreeing(agree=loop.agree, fail=loop.fail)


ALONE = Ranks(rank=0, world_size=1, num_here=1)
# The ranks of the default process group that was asked last, and that group.
_joined: tuple[object, Ranks] | None = None


def find_rank() -> tuple[int, int]:
    """Return this process' rank and the number of ranks, without a word to the others."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE.rank, ALONE.world_size
    return dist.get_rank(), dist.get_world_size()


def join_ranks() -> Ranks:
    """Return the ranks of torch.distributed; all of them must call this, in the same order.

    The agreement has a process group of its own, since that of a GPU training (NCCL) would wait for
    the GPU. All loaders of a process share it.
    """
    global _joined
    rank, world_size = find_rank()
    if world_size == 1:
        _warn_of_other_ranks()
        return ALONE
    world = dist.group.WORLD
    if _joined is None or _joined[0] is not world:
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)  # all ranks are members of it
        hosts: list[str | None] = [None] * world_size
        dist.all_gather_object(hosts, socket.gethostname(), group=group)
        ranks = Ranks(
            rank=rank,
            world_size=world_size,
            num_here=hosts.count(hosts[rank]),
            group=group,
        )
        _joined = (world, ranks)
    return _joined[1]


def _warn_of_other_ranks() -> None:
    """Warn if a launcher such as torchrun started several ranks that do not know of each other."""
    started = os.environ.get("WORLD_SIZE", "")
    is_joined = dist.is_available() and dist.is_initialized()
    if started.isdecimal() and int(started) > 1 and not is_joined:
        warnings.warn(
            f"WORLD_SIZE is {started}, but torch.distributed is not initialised, so each rank gets "
            "all rows. Call torch.distributed.init_process_group() before the loop, or pass "
            "distributed=False if each rank should read all rows",
            stacklevel=4,
        )


class _Loop:
    """One rank's loop over an epoch: each agreement is one small all-reduce on the CPU.

    Each carries a digest of the settings and the place in the loop. So ranks that are out of step
    are found in the very collective that they share, whatever each of them began.
    """

    def __init__(self, group: dist.ProcessGroup, settings: Mapping[str, Any]) -> None:
        self._group = group
        self._settings = settings
        text = json.dumps(settings, sort_keys=True)
        self._digest = hashlib.sha256(text.encode()).hexdigest()
        self._num_agreed = 0
        self._failure: str | None = None

    def fail(self, error: Exception) -> None:
        """Let the other ranks raise in the agreement that they wait for, not in a timeout."""
        self._failure = f"{type(error).__name__}: {error}"
        with suppress(LoaderError, RuntimeError):  # the error, or ranks that have ended
            self.agree(has_rows=False, is_full=False)

    def agree(self, has_rows: bool, is_full: bool) -> Agreement:
        text = f"{self._num_agreed} {self._digest}"
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES])
        if self._failure is not None:
            digest = _FAILED
        flags = torch.tensor([has_rows, not is_full, digest, -digest])
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        any_has_rows, any_is_short, highest, lowest = flags.tolist()
        if highest != -lowest:
            self._explain()
        self._num_agreed += 1
        return Agreement(any_has_rows=bool(any_has_rows), all_are_full=not any_is_short)

    def _explain(self) -> None:
        """Raise LoaderError with the differences, on all ranks alike."""
        batches = self._settings["batches"] + max(0, self._num_agreed - 1)
        mine = {
            **self._settings,
            "batches": batches,
            "begins": self._num_agreed == 0,
            "failed": self._failure,
        }
        all_settings = [mine] * dist.get_world_size(self._group)
        dist.all_gather_object(all_settings, mine, group=self._group)
        lines = [f"{name}: {_by_rank(values)}" for name, values in compare_configs(all_settings)]
        failures = [(rank, each["failed"]) for rank, each in enumerate(all_settings)]
        if failed := [f"rank {rank}: {failure}" for rank, failure in failures if failure]:
            raise LoaderError(
                "the loop ends, because not all ranks could make their batch:\n  "
                + "\n  ".join(failed)
            )
        raise LoaderError(
            "the ranks must begin the same epoch of the same loader, and take its batches in step, "
            "but they differ:\n  " + "\n  ".join(lines[:_MAX_DIFFERENCES])
        )


def _by_rank(values: Sequence[str]) -> str:
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    return "; ".join(
        f"{value} on rank{'s' if len(each) > 1 else ''} {', '.join(each)}"
        for value, each in ranks.items()
    )
