"""Runs a model on a batch of zeros, to find the tensors that it reads.

`exporting` traces a model on them, and `scoring` finds the columns of a model's inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from pipeline_runtime.arrays.conversion import is_ragged
from pipeline_runtime.batches import OFFSETS_SUFFIX, ROW_WEIGHT, VALUES_SUFFIX, Batch, to_batch
from pipeline_runtime.errors import ExportError

# torch.export takes sizes of 0 and 1 for constants, so every size of the batch is above 1.
_ROWS, _ITEMS_PER_LIST = 4, 3


def find_read_tensors(module: nn.Module, schema: pa.Schema) -> Batch:
    """Return a batch of zeros that has exactly the tensors that a module reads, by name.

    Args:
        schema: columns of the batches that the module was trained on.

    Raises ExportError if the module raises.
    """
    sample = build_sample(schema)
    batch = _ReadBatch(sample)
    try:
        with torch.no_grad():
            module(batch)
    except Exception as error:  # the user's code may raise anything
        raise ExportError(
            f"the module {type(module).__name__} must take a batch of {_ROWS} rows of zeros, but "
            f"raised {type(error).__name__}: {error}; mend its forward"
        ) from error
    return {name: batch[name] for name in sorted(batch.read & sample.keys())}


def column_of(name: str, batch: Mapping[str, Any]) -> str:
    """Return the column that a tensor of a batch is of: a list column has two tensors."""
    column = name.removesuffix(VALUES_SUFFIX).removesuffix(OFFSETS_SUFFIX)
    is_list = {column + VALUES_SUFFIX, column + OFFSETS_SUFFIX} <= batch.keys()
    return column if is_list else name


def build_sample(schema: pa.Schema) -> Batch:
    """Return a batch of zeros with the columns of a schema, several rows and items per list."""
    empty = to_batch(schema.empty_table(), weight_column=None, label_column=None)
    batch = {name: tensor.new_zeros((_ROWS, *tensor.shape[1:])) for name, tensor in empty.items()}
    for field in schema:
        if is_ragged(field.type):
            values = empty[field.name + VALUES_SUFFIX]
            batch[field.name + VALUES_SUFFIX] = values.new_zeros(_ROWS * _ITEMS_PER_LIST)
            batch[field.name + OFFSETS_SUFFIX] = torch.arange(_ROWS + 1) * _ITEMS_PER_LIST
    batch[ROW_WEIGHT] = torch.ones(_ROWS)
    return batch


class _ReadBatch(dict[str, torch.Tensor]):
    """A batch that records the names of the tensors that are read from it."""

    def __init__(self, batch: Mapping[str, torch.Tensor]) -> None:
        super().__init__(batch)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self.read.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self.read.update(super().keys())
        return super().keys()

    def values(self) -> Any:
        self.read.update(super().keys())
        return super().values()

    def items(self) -> Any:
        self.read.update(super().keys())
        return super().items()
