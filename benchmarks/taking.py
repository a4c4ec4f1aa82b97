"""The work of a rank on chunks in memory: batches of them as tensors, on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from pipeline_runtime.batches import Batch
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.training.collating import Collator
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.stream import BatchStream, Cutting


def take_batches(
    chunks: Iterable[Chunk],
    groups: Sequence[Group],
    batch_size: int,
    *,
    in_order: bool = False,
) -> Iterator[Batch]:
    """Yield the batches of all groups of one epoch, by the code of a run, without label and weight.

    Args:
        in_order: batches continue from chunk to chunk, as under `preserveOrder`.
    """
    stream = BatchStream(
        chunks=iter(chunks),
        groups=groups,
        cutting=Cutting(batch_size=batch_size, last_batch="Pad", preserve_order=in_order),
        position=Position(),
        waited=Waited(),
    )
    collator = Collator(torch.device("cpu"), weight_column=None, label_column=None, ahead=False)
    for rows in stream.epoch_rows(0):
        assert rows is not None  # a single rank has rows at every step
        yield collator.make(rows, None, stream.waited)
