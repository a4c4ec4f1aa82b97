"""Batches that carry once what the rows of a request share, for the code of a model.

A batch in this form has, beside its tensors of B rows, `request_index` int64 [B], and the columns
that requests share as tensors of Q requests: the same names and types, Q in place of B. Only
requests that have a row in the batch are in it. `expand` gives a value a row; `expand_rows` does so
for whatever a model has computed of requests.

Shapes: B rows, Q requests, N items of all lists of a column, M of the lists of all rows.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from pipeline_runtime.batches import OFFSETS_SUFFIX, REQUEST_INDEX, VALUES_SUFFIX, Batch


def expand_rows(values: torch.Tensor, batch: Batch) -> torch.Tensor:
    """[Q, …] as [B, …]: each row's of what was computed once a request; gradients add up."""
    return values.index_select(0, batch[REQUEST_INDEX])


def expand(batch: Batch, columns: Collection[str]) -> Batch:
    """The batch with a value a row of these columns, which stand once a request in it."""
    flat = dict(batch)
    for name in columns:
        if name in flat:
            flat[name] = expand_rows(flat[name], batch)
        else:
            values, offsets = flat[name + VALUES_SUFFIX], flat[name + OFFSETS_SUFFIX]
            flat[name + VALUES_SUFFIX], flat[name + OFFSETS_SUFFIX] = expand_lists(
                values, offsets, batch[REQUEST_INDEX]
            )
    return flat


def expand_lists(
    values_N: torch.Tensor, offsets_Q1: torch.Tensor, index_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists of Q requests as the lists of B rows: values [M] and offsets [B + 1]."""
    lengths_B = offsets_Q1.diff()[index_B]
    offsets_B1 = torch.nn.functional.pad(lengths_B.cumsum(0), (1, 0))
    num_items = int(offsets_B1[-1])
    shift_B = offsets_Q1[index_B] - offsets_B1[:-1]
    places_M = torch.arange(num_items, device=values_N.device)
    places_M += torch.repeat_interleave(shift_B, lengths_B, output_size=num_items)
    return values_N[places_M], offsets_B1
