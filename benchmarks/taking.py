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
    weight_column: str | None = None,
    label_column: str | None = None,
    ahead: bool = False,
    waited: Waited | None = None,
) -> Iterator[Batch]:
    """Yield the batches of all groups of one epoch, by the code of a run.

    Args:
        in_order: batches continue from chunk to chunk, as under `preserveOrder`.
        weight_column, label_column, ahead: see `Collator`.
        waited: receives the times, as that of the feed does.
    """
    waited = waited or Waited()
    stream = BatchStream(
        chunks=iter(chunks),
        groups=groups,
        cutting=Cutting(
            batch_size=batch_size,
            last_batch="Pad",
            weight_column=weight_column,
            preserve_order=in_order,
        ),
        position=Position(),
        waited=waited,
    )
    collator = Collator(
        torch.device("cpu"), weight_column=weight_column, label_column=label_column, ahead=ahead
    )
    for rows in stream.epoch_rows(0):
        assert rows is not None  # a single rank has rows at every step
        yield collator.make(rows, stream.following() if ahead else None, waited)
