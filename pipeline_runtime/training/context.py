"""The context of an entrypoint: batches, evaluation, reports and checkpoints on one rank of a run.

An entrypoint is a function of one argument, the context (docs/training.md). It takes batches, which
are dicts of tensors on its device, trains on them, and calls `report`. The context tracks the
position in the data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import pyarrow as pa
import torch
import torch.distributed as dist
from torch import nn

from pipeline_runtime.batches import ROW_WEIGHT, Batch, empty_batch, to_device
from pipeline_runtime.config import Training
from pipeline_runtime.errors import Interrupted, StoreError, TrainingError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import StepCount, add_counts
from pipeline_runtime.monitor import Evaluated, RankSnapshot
from pipeline_runtime.sources import Location
from pipeline_runtime.training.buffered import BatchRows
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore
from pipeline_runtime.training.checkpoints.header import CheckpointHeader, RunIdentity
from pipeline_runtime.training.checkpoints.history import CheckpointHistory
from pipeline_runtime.training.checkpoints.saving import CheckpointSaver
from pipeline_runtime.training.collating import Collator
from pipeline_runtime.training.evaluation_records import RowRecorder
from pipeline_runtime.training.lockstep import Lockstep
from pipeline_runtime.training.memory import read_gpu_bytes, read_resident_bytes
from pipeline_runtime.training.rank_group import RankGroup
from pipeline_runtime.training.rank_records import Records
from pipeline_runtime.training.stream import Agreement, BatchStream, explain_no_rows

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True, kw_only=True)
class Wiring:
    """The live objects that a context is built on."""

    training: BatchStream
    open_evaluation: Callable[[Waited], BatchStream] | None
    store: CheckpointStore
    identity: RunIdentity
    step_names: tuple[str, ...]  # the read and every step, for messages
    resume: tuple[CheckpointHeader, dict[str, Any]] | None
    warn: Callable[[str], None]
    evaluated: Callable[[Evaluated], None]
    stop_event: threading.Event  # set when the run was asked to stop
    history: CheckpointHistory | None = None  # None: checkpoints have no metrics history
    rank: int = 0
    world_size: int = 1
    # Returns the group in which the ranks agree; None: torch.distributed's default group.
    join: Callable[[], dist.ProcessGroup | None] = lambda: None
    # Folder of the rows that each rank evaluated; None: they are not recorded.
    evaluated_rows: Location | None = None
    request_columns: tuple[str, ...] = ()  # columns that batches hold once per request
    prefetch: bool = True  # pipelineOptions.debug.prefetch
    sparse: bool = False  # pipelineOptions.debug.sparse


class TrainContext:
    """One rank's view of a run; see the module's docstring."""

    def __init__(
        self, spec: Training, schema: pa.Schema, device: torch.device, wiring: Wiring
    ) -> None:
        self.spec = spec
        self.schema = schema
        self.request_columns = frozenset(wiring.request_columns)
        self.device = device
        self.config: Mapping[str, Any] = spec.config
        self.model = spec.model  # `module:function` of the user's model, for the built-in loop
        self.seed = spec.seed
        self.num_epochs = spec.epochs
        self.label_column = spec.label_column
        self.weight_column = spec.weight_column
        self.rank = wiring.rank
        self.world_size = wiring.world_size
        self.records = Records(waited=wiring.training.waited)
        self._ranks = RankGroup(wiring.world_size, wiring.join)
        self._saver = CheckpointSaver(
            store=wiring.store,
            identity=wiring.identity,
            history=wiring.history,
            warn=wiring.warn,
        )
        self.evaluation_counts: tuple[Any, ...] = ()
        self._wiring = wiring
        self._evaluated = RowRecorder(wiring.rank)
        self._is_evaluating = False
        self._last_checkpoint_seconds = 0.0
        # All ranks agreed on both: a checkpoint is due, the run is stopping.
        self._flags = (False, False)
        self._ends_without_save = self._saves_nothing
        self.checkpoint: Mapping[str, Any] | None = None
        if wiring.resume is not None:
            self.checkpoint = wiring.resume[1]["user"]
            self.restore_random_state()
            self._restore_measured(wiring.resume[1])
        self._resumed_step, self._resumed_counts = self.step, wiring.training.counts
        self._lockstep = Lockstep(wiring.training.waited)
        self._step_metrics: tuple[int, dict[str, float]] = (-1, {})  # a step, and its metrics
        wiring.training.agree = self._agree
        self._batch_device = device
        self._collator = self._make_collator()

    def restore_random_state(self) -> None:
        """Set torch's random state of this rank to that of the checkpoint, if there is one."""
        if self._wiring.resume is not None:
            states = self._wiring.resume[1]["rng"]
            torch.set_rng_state(states[min(self.rank, len(states) - 1)])

    def _restore_measured(self, state: Mapping[str, Any]) -> None:
        """Continue the measures of the checkpoint's rows, on rank 0."""
        stream = self._wiring.training
        if stream.measured is None:
            return
        if "measured" not in state:
            stream.measured = None
            self._wiring.warn(
                "the checkpoint is of an earlier release and has no measures, so this run has none"
            )
        elif self.rank == 0:
            for parts in state["measured"]:
                stream.measured.restore(parts)

    # --- state of the run ------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that batches are taken from, counted from 0."""
        return self._wiring.training.position.epoch

    @property
    def step(self) -> int:
        """Optimiser steps since the run began, equal on all ranks."""
        return self._wiring.training.position.batches

    @property
    def waited(self) -> Waited:
        """Seconds of this rank's time, by how they were spent."""
        return self._wiring.training.waited

    @property
    def is_stopping(self) -> bool:
        """True if the run was asked to stop before this step, as all ranks agreed."""
        return self._flags[1]

    @property
    def stop_event(self) -> threading.Event:
        """Set it to request a checkpoint and the end of the run at the next step."""
        return self._wiring.stop_event

    # --- the model ------------------------------------------------------------------------------

    def prepare(self, model: nn.Module, **options: Any) -> nn.Module:
        """Move a model to the device, and wrap it in DistributedDataParallel if there are ranks.

        `options` are DistributedDataParallel's own, such as find_unused_parameters.
        """
        model = model.to(self.device)
        if self.world_size == 1:
            return model
        ids = [self.device.index or 0] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids, **options)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context of mixed precision by `spec.training.precision`; no-op for float32."""
        dtype = _DTYPES.get(self.spec.precision)
        if dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """Return a gradient scaler, which is disabled unless the precision is float16 on a GPU."""
        enabled = self.spec.precision == "float16" and self.device.type == "cuda"
        return torch.amp.GradScaler(self.device.type, enabled=enabled)

    # --- rows -----------------------------------------------------------------------------------

    def epochs(self) -> Iterator[int]:
        """Yield the remaining epochs, beginning with the resumed one.

        The resumed epoch is yielded even if no batch of it remains: the work after its batches,
        such as an evaluation, may not have been done.
        """
        resumed = self.epoch if self.checkpoint is not None else None
        for epoch in range(self.epoch, self.num_epochs):
            if self._is_over() and epoch != resumed:
                return
            # Move the position here: a checkpoint between two epochs belongs to the later one.
            self.start_epoch(epoch)
            yield epoch

    def start_epoch(self, epoch: int) -> None:
        """Take batches from this epoch from now on."""
        self._wiring.training.position.start_epoch(epoch)

    def deliver_to(self, device: torch.device) -> None:
        """Put the batches of later loops on this device, instead of the trainer's own."""
        if device != self._batch_device:
            self._batch_device = device
            self._collator.close()
            self._collator = self._make_collator()

    def close(self) -> None:
        """End the thread that makes batches ahead, and keep the evaluated rows."""
        self._collator.close()
        self._keep_evaluated()

    def _is_over(self) -> bool:
        limit = self.spec.max_steps
        return limit is not None and self.step >= limit

    def batches(self) -> Generator[Batch]:
        """Yield the remaining batches of the current epoch, on the device.

        The time between two batches counts as the entrypoint's compute. Raises the error of a row
        that failed, TrainingError if the epoch has no rows, and Interrupted if a stop was requested
        and the entrypoint saves no checkpoints.
        """
        if self._is_over():
            return
        self.records.start_loop()
        for rows in self._wiring.training.epoch_rows(self.epoch):
            batch = self._make_batch(rows, self._wiring.training, self._collator)
            yield from self._timed(batch, 0 if rows is None else len(batch[ROW_WEIGHT]))
            if self._flags[1] and self._ends_without_save():
                raise Interrupted("stopped as requested, without a checkpoint of this step")
            if self._is_over():
                return
        if self.step == 0:
            self._refuse_no_rows()

    def _refuse_no_rows(self) -> NoReturn:
        """Raise TrainingError, because a run without a row would end with an untrained model."""
        stream = self._wiring.training
        counts: tuple[StepCount, ...] = ()
        for one_rank in self._ranks.gather(stream.position.counts):
            counts = add_counts(counts, one_rank)
        dropped_rows = sum(self._ranks.gather(stream.dropped_rows))
        raise TrainingError(explain_no_rows(self._wiring.step_names, counts, dropped_rows))

    def _timed(self, batch: Batch, rows: int) -> Iterator[Batch]:
        self.records.add_batch(batch, rows)
        paused, started = self.waited.paused, time.perf_counter()
        try:
            yield batch
        finally:
            seconds = time.perf_counter() - started - (self.waited.paused - paused)
            self.waited.compute += seconds
            self.records.finish_step(seconds, self._lockstep.longest["production"])
            self._record_point()

    def _make_batch(self, rows: BatchRows | None, stream: BatchStream, collator: Collator) -> Batch:
        if rows is not None:
            return collator.make(rows, stream.following(), stream.waited)
        self.records.padded_rows += 1
        return to_device(empty_batch(self.schema, self.request_columns), self._batch_device)

    def _make_collator(self) -> Collator:
        return Collator(
            self._batch_device,
            weight_column=self.weight_column,
            label_column=self.label_column,
            ahead=self._wiring.prefetch,
            sparse=self._wiring.sparse,
        )

    def evaluation_batches(self) -> Generator[Batch]:
        """Yield all rows held out for evaluation, once; nothing if the spec has no evaluation.

        The time until the last batch is done counts as paused, the entrypoint's work included.
        """
        if self._wiring.open_evaluation is None:
            return
        with self.records.pause():
            stream = self._wiring.open_evaluation(Waited())
            stream.agree = self._agree
            stream.identify = self._evaluated.expect
            self._evaluated.begin(epoch=self.epoch, step=self.step)
            self._is_evaluating = True
            collator = self._make_collator()
            try:
                for rows in stream.epoch_rows(0):
                    if rows is None:
                        self._evaluated.expect_none()
                    yield self._make_batch(rows, stream, collator)
            finally:
                self._is_evaluating = False
                collator.close()
                self.evaluation_counts = stream.position.counts

    def record_evaluation(
        self,
        batch: Batch,
        predictions_B: torch.Tensor,
        losses_B: torch.Tensor,
        *,
        labels_B: torch.Tensor | None = None,
    ) -> None:
        """Record the results of a batch of the evaluation, for comparisons with other runs.

        Call it once for each batch, in their order. The rows of the last evaluation are in
        `evaluation.parquet` of the run's folder.

        Args:
            batch: as it came from the evaluation.
            predictions_B: of its B rows, such as probabilities.
            losses_B: of its rows, without their weights.
            labels_B: of its rows; the column `labelColumn` of the batch if None.

        Raises TrainingError if a batch was left out, or the tensors have another number of rows.
        """
        if labels_B is None:
            if self.label_column is None:
                raise TrainingError(
                    "record_evaluation: must get labels, since spec.training.labelColumn is "
                    "absent; pass labels_B"
                )
            labels_B = batch[self.label_column]
        weights_B = batch[ROW_WEIGHT]
        self._evaluated.record(labels_B, predictions_B, losses_B, weights_B)

    def _keep_evaluated(self) -> None:
        """Write the rows that this rank evaluated, if there are new ones and all have come."""
        place = self._wiring.evaluated_rows
        if place is None or self._is_evaluating:
            return
        try:
            self._evaluated.write(place)
        except StoreError as error:
            self._wiring.warn(f"the evaluated rows are not kept: {error}")

    # --- lockstep of ranks ----------------------------------------------------------------------

    def _agree(self, has_rows: bool, is_full: bool) -> Agreement:
        """Agree with the other ranks on this step, by one small all-reduce on the CPU."""
        stopping = self._wiring.stop_event.is_set()
        flags = (has_rows, not is_full, self._is_due(), stopping)
        most = self._ranks.find_largest([*map(float, flags), *self._lockstep.take_own()])
        any_rows, any_short, due, stop = (bool(flag) for flag in most[: len(flags)])
        self._lockstep.add(most[len(flags) :])
        # A checkpoint stays due until it is saved, whatever batches come before that.
        self._flags = (due or self._flags[0], stop)
        return Agreement(any_has_rows=any_rows, all_are_full=not any_short)

    def _is_due(self) -> bool:
        policy = self.spec.checkpoint
        if policy.every_steps:
            return (self.step + 1) % policy.every_steps == 0
        return self.records.seconds() - self._last_checkpoint_seconds >= policy.every_seconds

    def checkpoint_due(self) -> bool:
        """Return whether to pass a checkpoint to `report` after this step; equal on all ranks."""
        return any(self._flags)

    def weighted_mean(self, losses_B: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return Σ loss·weight ÷ Σ weight over the batches of all ranks, ready for `backward`.

        It is scaled by the number of ranks, since DistributedDataParallel averages gradients.
        """
        weight_B = batch[ROW_WEIGHT]
        total = self.reduce_sum(weight_B.sum()).clamp_min(torch.finfo(torch.float32).tiny)
        return (losses_B * weight_B).sum() / total * self.world_size

    def reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over all ranks."""
        if self.world_size == 1:
            return tensor
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    # --- reports --------------------------------------------------------------------------------

    def report(
        self,
        metrics: Mapping[str, float],
        checkpoint: Mapping[str, Any] | None = None,
        *,
        ahead: int = 0,
    ) -> None:
        """Record metrics and save the checkpoint, if any; every rank calls this after its step.

        Args:
            ahead: batches that were taken, but are not in the checkpoint: 0 or, in a script, 1.

        Raises Interrupted after the checkpoint if a stop was requested, and ManifestError if the
        first checkpoint could not be loaded again.
        """
        with self.records.pause():
            values = {name: float(value) for name, value in metrics.items()}
            self.records.metrics.update(values)
            step, earlier = self._step_metrics
            self._step_metrics = (self.step, (earlier if step == self.step else {}) | values)
            self._record(values)
            self._keep_evaluated()
            if checkpoint is not None:
                self._save(checkpoint, ahead)
        if checkpoint is not None and self._flags[1]:
            raise Interrupted("stopped as requested, after a checkpoint")

    def _record(self, values: dict[str, float]) -> None:
        if self.rank != 0 or not values:
            return
        self.records.add_point(self.epoch, self.step, values)
        evaluation = {name: value for name, value in values.items() if name.startswith("eval_")}
        if evaluation:
            self._wiring.evaluated(Evaluated(epoch=self.epoch, step=self.step, metrics=evaluation))

    def _record_point(self) -> None:
        """Record throughput and time shares, if it is time."""
        if not self.records.is_point_due():
            return
        counts = self._wiring.training.counts
        totals = {f"seconds_{name}": value for name, value in asdict(self.waited).items()}
        self._record(
            {
                **totals,
                "samples": float(self.records.samples),
                "rows": float(counts[0].rows if counts else 0),
                "step_seconds": self.records.last_step_seconds,
                "queue_length": float(self._wiring.training.queue_length),
            }
        )

    def serve_script(self, ends_without_save: Callable[[], bool]) -> None:
        """Let the caller of `report` take one batch ahead, and decide when a stop ends its loop.

        Args:
            ends_without_save: called after each batch once a stop was requested: whether to raise
                Interrupted now, because no checkpoint of this step is to be expected.
        """
        self._wiring.training.remembers = True
        self._ends_without_save = ends_without_save

    def _saves_nothing(self) -> bool:
        return self._saver.is_unused

    def _save(self, user: Mapping[str, Any], ahead: int) -> None:
        """Gather the states of all ranks, and let rank 0 save them."""
        position = self._wiring.training.position
        if ahead:
            before = position.before_last()
            assert before is not None  # `allow_ahead` was called, and a batch was taken
            position = before
        measured = self._wiring.training.measured
        mine = None if measured is None else measured.dump(without_last=ahead > 0)
        gathered = self._ranks.gather((position.to_json(), torch.get_rng_state(), mine))
        self._last_checkpoint_seconds = self.records.seconds()
        self._flags = (False, self._flags[1])
        if self.rank == 0:
            positions, random_states, parts = map(list, zip(*gathered, strict=True))
            state = {"user": dict(user), "rng": random_states}
            if measured is not None:
                state["measured"] = parts
            self._saver.save(state, position, positions, self._step_metrics[1])

    def warn_without_best(self) -> None:
        """Warn at the end of a run if no checkpoint has the metric of `checkpoint.keepBest`."""
        if self.rank == 0:
            self._saver.warn_without_best()

    def dump_measured(self) -> tuple[bytes, ...]:
        """Return this rank's measures at the end of the run, as `training.measured` merges them."""
        measured = self._wiring.training.measured
        return () if measured is None else measured.dump()

    def snapshot(self) -> RankSnapshot:
        """Return the state of this rank, for the monitor."""
        stream, records = self._wiring.training, self.records
        return RankSnapshot(
            rank=self.rank,
            seconds=records.seconds(),
            epoch=self.epoch,
            step=self.step,
            samples=stream.position.samples,
            attempt_samples=records.samples,
            batch_bytes=records.batch_bytes,
            checksum=stream.position.checksum.to_json(),
            waited=asdict(self.waited),
            longest=dict(self._lockstep.longest),
            loop_seconds=records.loop_seconds(),
            workers=stream.usage.figures(),
            counts=stream.counts,
            evaluation_counts=self.evaluation_counts,
            queue_length=stream.queue_length,
            first_batch_at=records.first_batch_at,
            last_step_seconds=records.last_step_seconds,
            finished=records.finished,
            dropped_rows=stream.dropped_rows,
            padded_rows=records.padded_rows,
            checkpoints=self._saver.num_saved,
            checkpoint_failures=self._saver.num_failed,
            last_checkpoint=self._saver.last_uri,
            kept_until=self._saver.kept_until,
            resident_bytes=read_resident_bytes(),
            gpu_bytes=read_gpu_bytes(self.device),
            device=str(self.device),
            metrics=dict(records.metrics),
            resumed_step=self._resumed_step,
            resumed_counts=self._resumed_counts,
            is_finished=records.is_finished,
        )
