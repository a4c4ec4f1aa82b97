"""Lastmile's batches by the path that `lastmile run` takes on one machine from manifest to tensors.

The plan, its groups, the feed that the plan chose, the stream of exact batches, the conversion: the
calls of `run.prepare`, `run.in_process` and `training.ranks.worker`, in one process with the
consumer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.dataloading.workloads import Workload, build_experiment
from pipeline_runtime.batches import Batch
from pipeline_runtime.feed.base import Feed, Waited
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.batching import batching_of
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.plan import Plan, build_plan
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.training.collating import Collator
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.stream import BatchStream, Cutting


class LastmileLoader:
    """Epochs of a manifest's training stream."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        experiment = build_experiment(workload)
        self._spec = experiment.spec
        self._plan: Plan = build_plan(experiment, workload.root)

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches in the order of their arrival."""
        waited = Waited()
        cutting = Cutting(
            batch_size=self._workload.batch_size,
            last_batch="Pad",
            weight_column=self._workload.weight_column,
        )
        groups, chunk_rows = self._groups()
        stream = BatchStream(
            chunks=self._open_feed(groups, chunk_rows).chunks(waited),
            groups=groups,
            cutting=cutting,
            position=Position(),
            waited=waited,
        )
        collator = Collator(
            torch.device("cpu"),
            weight_column=self._workload.weight_column,
            label_column=self._workload.label_column,
            ahead=self._plan.prefetch,
        )
        for rows in stream.epoch_rows(0):
            assert rows is not None  # a single rank has rows at every step
            yield collator.make(rows, stream.following(), waited)

    def _groups(self) -> tuple[list[Group], int]:
        stream = self._plan.training
        return stream.groups(0, stream.chunk_rows), stream.chunk_rows

    def _open_feed(self, groups: list[Group], chunk_rows: int) -> Feed:
        """Open the engine that a run would use: threads, or Ray Data if the manifest names it."""
        if self._plan.feed.may_be_threads:
            training = self._plan.training
            batching = batching_of(self._plan.delivery, training, self._spec.training)
            stream = Stream(plan=training, chunk_rows=chunk_rows, batching=batching)
            readers = ThreadReaders(streams={"training": stream}, num_threads=threads_per_rank(1))
            return readers.open("training", 0, groups, in_order=self._plan.preserve_order)
        # Imported here, so that processes without Ray do not wait for its import.
        from benchmarks.dataloading.loaders.ray_feed import open_ray_feed

        return open_ray_feed(self._plan, groups, chunk_rows)
