"""Records the rows that a rank evaluates, with the results of the model.

A batch has no identities of its rows, so the context announces them before each batch, and the
training program records the results of the batches in the same order. Nothing is recorded for a
program that does not call it. Each rank writes its own file, so that ranks need not wait for each
other; `run.training.evaluation_file` merges them.

Shapes: B rows of a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pipeline_runtime.errors import TrainingError
from pipeline_runtime.evaluated_rows import (
    MAX_ROWS,
    bound_columns,
    build_rows,
    encode_rows,
    join_columns,
)
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import write_files
from pipeline_runtime.training.buffered import Hashes

# Batches that may be announced and not recorded yet: frameworks take one or two ahead. A program
# with more of them does not record.
_MAX_PENDING = 64
# Results are copied from the device once there are so many rows: each copy waits for the device.
_ROWS_PER_COPY = 1 << 17
_RESULTS = ("label", "prediction", "loss", "weight")


class RowRecorder:
    """The rows of one rank's last evaluation."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.begin(epoch=0, step=0)

    def begin(self, *, epoch: int, step: int) -> None:
        """Forget the rows of an earlier evaluation."""
        self._epoch, self._step, self._num_rows = epoch, step, 0
        self._pending: deque[tuple[Hashes, Hashes]] = deque()
        self._is_used = True
        self._is_new = False
        # Results of rows that are still on the device, [4, B] each, and the hashes of these rows.
        self._on_device: list[torch.Tensor] = []
        self._identities: list[tuple[Hashes, Hashes]] = []
        self._columns: dict[str, npt.NDArray[Any]] = join_columns([])

    def expect(self, rows: Hashes, groups: Hashes) -> None:
        """Take the identities of the rows of the next batch."""
        if not self._is_used:
            return
        self._pending.append((rows, groups))
        if len(self._pending) > _MAX_PENDING:
            self._is_used = False
            self._pending.clear()

    def expect_none(self) -> None:
        """Take note of a batch of padding, for a step of the other ranks."""
        none = np.empty(0, dtype=np.uint64)
        self.expect(none, none)

    def record(
        self,
        labels_B: torch.Tensor,
        predictions_B: torch.Tensor,
        losses_B: torch.Tensor,
        weights_B: torch.Tensor,
    ) -> None:
        """Record the results of the oldest batch that has none; see `TrainContext`."""
        if not self._pending:
            raise TrainingError(
                "record_evaluation: must be called once for each batch of the evaluation, as it "
                f"comes, but no batch waits for its results (at most {_MAX_PENDING} may). Call it "
                "in the loop over the evaluation"
            )
        rows, groups = self._pending.popleft()
        results = (labels_B, predictions_B, losses_B, weights_B)
        self._check_sizes(results, len(rows))
        if not len(rows):
            return
        flat = [t.detach().to(predictions_B.device, torch.float32).reshape(-1) for t in results]
        self._on_device.append(torch.stack(flat))
        self._identities.append((rows, groups))
        self._num_rows += len(rows)
        self._is_new = True
        if sum(len(each) for each, _ in self._identities) >= _ROWS_PER_COPY:
            self._copy()

    def _check_sizes(self, results: tuple[torch.Tensor, ...], num_rows: int) -> None:
        """Raise TrainingError if a tensor has not one value for each row of the batch."""
        expected = num_rows or 1  # a batch of padding has one row
        for name, tensor in zip(_RESULTS, results, strict=True):
            if tensor.numel() != expected:
                raise TrainingError(
                    f"record_evaluation: the {name} must have one value for each of the "
                    f"{expected} rows of the batch, but has {tensor.numel()}. Record every batch "
                    "of the evaluation, in order"
                )

    def _copy(self) -> None:
        """Copy the results of the last batches from the device."""
        if not self._on_device:
            return
        results = torch.cat(self._on_device, dim=1).cpu().numpy()
        rows, groups = (np.concatenate(parts) for parts in zip(*self._identities, strict=True))
        new: Mapping[str, npt.NDArray[Any]] = {
            "row": rows,
            "group": groups,
            **dict(zip(_RESULTS, results, strict=True)),
        }
        self._columns = join_columns([self._columns, new])
        self._on_device, self._identities = [], []
        if len(self._columns["row"]) > 2 * MAX_ROWS:
            self._columns = bound_columns(self._columns)

    def write(self, folder: Location) -> None:
        """Write the rows to this rank's file, if there are new ones. Raises StoreError."""
        if not self._is_new:
            return
        self._copy()
        rows = build_rows(
            self._columns, step=self._step, epoch=self._epoch, num_rows=self._num_rows
        )
        write_files(folder, {f"{self._rank:05d}.parquet": encode_rows(rows)}, "keep evaluated rows")
        self._is_new = False
