"""Makes tensors on the device from a batch's rows, while the trainer works on the previous one.

It does only such work ahead as does not depend on other ranks: it converts the rows of an arrived
chunk and copies them to a GPU. The rows that a step consumes are decided when the step takes them.

A GPU's batch is packed in pinned memory and copied at once, on a stream beside that of the model.
Its tensors are views of the one buffer there, except those that are filled up. The model's stream
waits for the copy; the trainer does not.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch

from pipeline_runtime.arrays.conversion import Arrays
from pipeline_runtime.arrays.packing import PackedBatch, Packer, Slot
from pipeline_runtime.batches import Batch, to_tensors, unpack_tensors
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.training.buffered import BatchRows


class Collator:
    """Makes one stream's batches.

    Args:
        device: of the batches.
        weight_column, label_column: as `to_arrays` takes them.
        ahead: whether the next batch is begun before it is asked for.
        sparse: to a GPU goes no filling (`arrays.packing`), which is put in there.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        weight_column: str | None,
        label_column: str | None,
        ahead: bool,
        sparse: bool = False,
    ) -> None:
        self._gpu = _Gpu(device, sparse=sparse) if device.type == "cuda" else None
        self._weight_column, self._label_column = weight_column, label_column
        self._thread = ThreadPoolExecutor(1, "lastmile-collate") if ahead else None
        self._begun: tuple[BatchRows, Future[Batch | _Sent]] | None = None

    def make(self, rows: BatchRows, following: BatchRows | None, waited: Waited) -> Batch:
        """The batch of these rows; the time that it took, or was waited for, goes to `waited`.

        Args:
            following: what the next call will ask for, where that is known.

        Raises TrainingError as `to_arrays` does.
        """
        started = time.perf_counter()
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] is not rows:  # an epoch ended otherwise than expected
            wait([begun[1]])  # its buffers are in use until then
            begun = None
        made = self._collate(rows) if begun is None else begun[1].result()
        if self._thread is not None and following is not None and self._is_work(following):
            self._begun = (following, self._thread.submit(self._collate, following))
        collated = time.perf_counter()
        waited.collate += collated - started
        if not isinstance(made, _Sent):
            return made
        batch = made.receive()
        waited.transfer += time.perf_counter() - collated
        return batch

    def close(self) -> None:
        """End the thread that makes batches ahead, after the one that it is at."""
        self._begun = None
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_work(self, rows: BatchRows) -> bool:
        """Return whether it is worth doing ahead; views of arrays take microseconds."""
        return self._gpu is not None or not rows.is_view

    def _collate(self, rows: BatchRows) -> Batch | _Sent:
        if self._gpu is not None and isinstance(rows.made, PackedBatch):
            return self._gpu.send(rows.made)
        arrays = rows.to_arrays(self._weight_column, self._label_column)
        return to_tensors(arrays) if self._gpu is None else self._gpu.send(arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A batch on its way to a GPU."""

    slots: tuple[Slot, ...]
    buffer: torch.Tensor  # uint8, on the device
    arrived: torch.cuda.Event

    def receive(self) -> Batch:
        """Return the tensors, for the work of the current stream from now on."""
        stream = torch.cuda.current_stream(self.buffer.device)
        stream.wait_event(self.arrived)
        self.buffer.record_stream(stream)  # it was allocated on the stream of the copies
        return unpack_tensors(self.slots, self.buffer)


class _Gpu:
    """The way to a GPU: pinned buffers that take turns, and a stream for the copies."""

    def __init__(self, device: torch.device, *, sparse: bool) -> None:
        self._device = device
        self._sparse = sparse
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pinned: list[torch.Tensor] = [torch.empty(0, dtype=torch.uint8) for _ in range(2)]
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    def send(self, rows: Arrays | PackedBatch) -> _Sent:
        """Begin the copy of a batch; one at a time, which `Collator.make` sees to."""
        packed = rows if isinstance(rows, PackedBatch) else Packer(rows, sparse=self._sparse)
        slots, num_bytes = packed.slots, packed.num_bytes
        place = self._place(num_bytes)
        packed.write(place.numpy())
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
            buffer.copy_(place, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        self._copied[self._turn] = arrived
        return _Sent(slots=slots, buffer=buffer, arrived=arrived)

    def _place(self, num_bytes: int) -> torch.Tensor:
        """Return pinned memory that no copy reads any more."""
        self._turn = (self._turn + 1) % len(self._pinned)
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        if len(self._pinned[self._turn]) < num_bytes:
            with torch.cuda.device(self._device):
                self._pinned[self._turn] = torch.empty(
                    num_bytes, dtype=torch.uint8, pin_memory=True
                )
        return self._pinned[self._turn][:num_bytes]
