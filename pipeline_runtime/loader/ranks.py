"""The ranks that share a loader's rows, and how they keep in step: torch.distributed's, or one.

`iteration` asks for them when an epoch begins, and agrees with them before each batch.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pipeline_runtime.training.stream import Agree, Agreement, agree_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those that share the rows.

    Attributes:
        num_here: ranks on this machine, which share its cores.
        agree: called before each batch, by all ranks alike; see `training.stream`.
    """

    rank: int
    world_size: int
    num_here: int
    agree: Agree


ALONE = Ranks(rank=0, world_size=1, num_here=1, agree=agree_alone)
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
            agree=_build_agreement(group),
        )
        _joined = (world, ranks)
    return _joined[1]


def _build_agreement(group: dist.ProcessGroup) -> Agree:
    def agree(has_rows: bool, is_full: bool) -> Agreement:
        flags = torch.tensor([has_rows, not is_full], dtype=torch.uint8)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=group)
        any_has_rows, any_is_short = flags.tolist()
        return Agreement(any_has_rows=bool(any_has_rows), all_are_full=not any_is_short)

    return agree
