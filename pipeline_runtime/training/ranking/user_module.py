"""Builds the user's module, which the built-in loop trains (`spec.training.model`).

The module takes a batch, a dict of tensors by column, and returns a logit for each row. `trainer`
trains it; `pipeline_runtime.models` builds it again to load a checkpoint into it.
Shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pipeline_runtime.batches import ROW_WEIGHT, Batch
from pipeline_runtime.errors import TrainingError
from pipeline_runtime.steps.base import public_schema
from pipeline_runtime.training.entrypoint import MODEL_FIELD, load_model_function


def build_module(
    path: str,
    config: Mapping[str, Any],
    schema: pa.Schema,
    *,
    label: str | None,
    weight: str | None,
) -> nn.Module:
    """Import the function that a manifest names, and call it.

    The function gets the features alone. A model that took all columns of the schema would
    otherwise learn the label from itself, or from a weight that depends on it.

    Args:
        path: the function, as `module:function`.
        config: `spec.training.config`; the function gets a copy.
        schema: the columns of the batches.
        label, weight: columns that the function does not get; nor does it get Lastmile's own.

    Raises TrainingError if there is no such function, or it returns no module that can be trained;
    and what the function raises.
    """
    function = load_model_function(path)
    features = [field for field in public_schema(schema) if field.name not in (label, weight)]
    module = function(dict(config), pa.schema(features))
    where = f"{MODEL_FIELD}: {path}"
    if not isinstance(module, nn.Module):
        raise TrainingError(
            f"{where}: must return a torch.nn.Module, got {type(module).__name__}; return the model"
        )
    parameters = list(module.parameters())
    if any(is_lazy(parameter) for parameter in parameters):
        raise TrainingError(
            f"{where}: must return a module whose parameters have their shapes, got a lazy one; "
            "take the sizes from the schema"
        )
    if not any(parameter.requires_grad for parameter in parameters):
        raise TrainingError(f"{where}: must return a module with parameters to train, got none")
    return module


def check_logits(output: object, batch: Batch, program: str) -> torch.Tensor:
    """Return the logits [B] that a module returned for a batch: [B] or [B, 1].

    Raises TrainingError if it returned anything else.
    """
    num_rows = len(batch[ROW_WEIGHT])
    if isinstance(output, torch.Tensor) and output.is_floating_point():
        if output.shape == (num_rows,):
            return output
        if output.shape == (num_rows, 1):
            return output.squeeze(1)
    got = type(output).__name__
    if isinstance(output, torch.Tensor):
        got = f"{output.dtype} of shape {list(output.shape)}"
    raise TrainingError(
        f"{program}: forward must return one floating-point logit per row, of shape [{num_rows}] "
        f"for this batch, got {got}"
    )
