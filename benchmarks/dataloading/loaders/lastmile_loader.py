"""Lastmile's batches by the path that `lastmile run` takes on one machine from manifest to tensors.

The plan, its groups, the reader threads that the plan chose, the stream of exact batches, the
conversion: the calls of `run.prepare`, `run.in_process` and `training.ranks.worker`, in one process
with the consumer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.dataloading.workloads import Workload, build_experiment
from pipeline_runtime.batches import Batch
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.batching import batching_of
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.plan import build_plan
from pipeline_runtime.training.collating import Collator
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.stream import BatchStream, Cutting


class LastmileLoader:
    """Epochs of a manifest's training stream."""

    def __init__(self, workload: Workload) -> None:
        experiment = build_experiment(workload)
        self._training = experiment.spec.training
        self._plan = build_plan(experiment, workload.root)

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches in the order of their arrival."""
        rows, training, waited = self._plan.training, self._training, Waited()
        groups = rows.groups(0, rows.chunk_rows)
        batching = batching_of(self._plan.delivery, rows, training)
        streams = {"training": Stream(plan=rows, chunk_rows=rows.chunk_rows, batching=batching)}
        readers = ThreadReaders(streams=streams, num_threads=threads_per_rank(1))
        feed = readers.open("training", 0, groups, in_order=self._plan.preserve_order)
        stream = BatchStream(
            chunks=feed.chunks(waited),
            groups=groups,
            cutting=Cutting(
                batch_size=training.batch_size,
                last_batch="Pad",
                weight_column=training.weight_column,
            ),
            position=Position(),
            waited=waited,
        )
        collator = Collator(
            torch.device("cpu"),
            weight_column=training.weight_column,
            label_column=training.label_column,
            ahead=self._plan.prefetch,
        )
        for taken in stream.epoch_rows(0):
            assert taken is not None  # a single rank has rows at every step
            following = stream.following() if self._plan.prefetch else None
            yield collator.make(taken, following, waited)
