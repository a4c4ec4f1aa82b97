"""Batches of CPU tensors, and those on the trainer's device.

Before it runs `arrays`, which says what becomes of each column; the training loop runs after.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import torch

from pipeline_runtime.arrays.conversion import (
    OFFSETS_SUFFIX,
    REQUEST_INDEX,
    ROW_WEIGHT,
    VALUES_SUFFIX,
    Arrays,
    is_ragged,
    to_arrays,
)
from pipeline_runtime.arrays.packing import Slot
from pipeline_runtime.steps.base import public_schema

__all__ = [
    "OFFSETS_SUFFIX",
    "REQUEST_INDEX",
    "ROW_WEIGHT",
    "VALUES_SUFFIX",
    "Batch",
    "empty_batch",
    "to_batch",
    "to_device",
    "to_tensors",
    "unpack_tensors",
]

Batch = dict[str, torch.Tensor]

_TORCH_DTYPES = {
    np.dtype(name).str: getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    )
}
# Signed integers as wide as an item: its bits, whatever they mean.
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def to_batch(table: pa.Table, *, weight_column: str | None, label_column: str | None) -> Batch:
    """The rows of a table as CPU tensors; arguments and errors are those of `to_arrays`."""
    return to_tensors(to_arrays(table, weight_column=weight_column, label_column=label_column))


def to_tensors(arrays: Arrays) -> Batch:
    """Return arrays as tensors that a loop may write to: views, or copies of read-only arrays."""
    return {
        name: torch.from_numpy(array if array.flags.writeable else array.copy())
        for name, array in arrays.items()
    }


def unpack_tensors(slots: Sequence[Slot], buffer: torch.Tensor) -> Batch:
    """The batch of a packed buffer (uint8), on its device; views, but for what is filled up."""
    return {slot.name: _unpack(slot, buffer) for slot in slots}


def _unpack(slot: Slot, buffer: torch.Tensor) -> torch.Tensor:
    dtype = _TORCH_DTYPES[slot.dtype]
    if slot.fill is None:
        return _at(buffer, slot.start, dtype, slot.shape)
    rows, length = slot.shape
    word = _WORDS[dtype.itemsize]
    lengths_B = _at(buffer, slot.start, torch.int32, (rows,))
    values_K = _at(buffer, slot.items_start, word, (slot.num_items,))
    fill = int(np.array(slot.fill, f"u{dtype.itemsize}").view(f"i{dtype.itemsize}"))
    filled_BL = torch.full((rows, length), fill, dtype=word, device=buffer.device)
    places = torch.arange(length, dtype=torch.int32, device=buffer.device)
    filled_BL.masked_scatter_(places < lengths_B[:, None], values_K)
    return filled_BL.view(dtype)


def _at(
    buffer: torch.Tensor, start: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:  # torch views no memory as another type
        return torch.empty(shape, dtype=dtype, device=buffer.device)
    return buffer[start : start + num_bytes].view(dtype).view(shape)


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """Copy a batch to a device, tensor by tensor; a run's way there is `training.collating`."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def pad_batch(batch: Batch, num_rows: int, request_columns: Collection[str] = ()) -> Batch:
    """Return the batch with rows of zeros that weigh nothing after its own, `num_rows` in all.

    Args:
        batch: with one row at least, and no more than `num_rows`.
        request_columns: columns that it holds once per request; rows of zeros use the first one.
    """
    missing = num_rows - len(batch[ROW_WEIGHT])
    if missing == 0:
        return batch
    padded = {}
    for name, tensor in batch.items():
        column = name.removesuffix(VALUES_SUFFIX).removesuffix(OFFSETS_SUFFIX)
        is_values = column + VALUES_SUFFIX == name and column + OFFSETS_SUFFIX in batch
        is_offsets = column + OFFSETS_SUFFIX == name and column + VALUES_SUFFIX in batch
        if is_values or name in request_columns or (is_offsets and column in request_columns):
            padded[name] = tensor
        elif is_offsets:  # empty lists
            padded[name] = torch.cat([tensor, tensor[-1:].expand(missing)])
        else:
            padded[name] = torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))])
    return padded


def empty_batch(schema: pa.Schema, request_columns: Collection[str] = ()) -> Batch:
    """Return a batch of one row of zeros that weighs nothing; its lists are empty.

    Args:
        schema: of the batches' columns.
        request_columns: those that batches carry once a request, if any.
    """
    none = to_batch(schema.empty_table(), weight_column=None, label_column=None)
    batch = {name: tensor.new_zeros((1, *tensor.shape[1:])) for name, tensor in none.items()}
    for field in public_schema(schema):
        if is_ragged(field.type):
            batch[field.name + VALUES_SUFFIX] = none[field.name + VALUES_SUFFIX]
            batch[field.name + OFFSETS_SUFFIX] = torch.zeros(2, dtype=torch.int64)
    if request_columns:
        batch[REQUEST_INDEX] = torch.zeros(1, dtype=torch.int64)
    return batch
