"""Batches for the caller's own loop, without Ray: `Pipeline.loader`.

The plan is that of `lastmile run`, and so is every part on the way to the batch. All of it lives in
the caller's process, which is one rank:

    plan ─▶ the epoch's groups, shared equally among the ranks (`plan.groups.share_groups`)
         ─▶ reader threads make chunks of them (`feed.local.thread_readers`)
         ─▶ batches of exact size, in step with the other ranks (`training.stream`)
         ─▶ tensors, one batch ahead of the loop (`training.collating`)
         ─▶ the caller's loop

- **Order.** Chunks are taken in the groups' order, whichever thread made them. So the pipeline,
  seed, epoch, rank and number of ranks decide what batch i is. Without a shuffle, rows come in the
  order of the table.
- **State.** `state_dict` counts the batches that were delivered. It also has the position in the
  data, from which a resume reads only the remaining row groups. Without its own position, a rank
  makes its batches again up to the count, and drops them. So one rank's state resumes all ranks,
  and a caller may lower the count.
- **Ranks.** Rank and number of ranks come from torch.distributed when an epoch begins. Before each
  batch, the ranks agree by one small all-reduce on the CPU whether any of them has rows. It also
  shows whether all are at the same batch of the same epoch of the same loader; else, all raise.
- **Threads** belong to one epoch's iterator. They end when it is exhausted, closed, collected or
  replaced by the next one. Memory is bounded as in a run (`feed.reader_feed`).
- **Processes.** A loader can be pickled. In a fork of the process that made it, it raises an error,
  because threads do not survive a fork.

`options` parses the arguments, `ranks` asks torch.distributed, `state` reads and writes states,
`iteration` runs one epoch, and `loader` is what the caller holds.
"""

from pipeline_runtime.loader.loader import Loader, open_loader
from pipeline_runtime.loader.options import (
    naming_arguments,
    parse_count,
    parse_flag,
    parse_options,
    refuse_arguments,
)

__all__ = [
    "Loader",
    "naming_arguments",
    "open_loader",
    "parse_count",
    "parse_flag",
    "parse_options",
    "refuse_arguments",
]
