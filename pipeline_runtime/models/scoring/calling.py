"""Calls a torch module, or another callable, with a batch, and names its outputs.

Before it runs `batches`, which makes tensors of the columns; after it `steps.predict`, which checks
types and shapes. Shapes: B rows, L items of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from pipeline_runtime.arrays.conversion import to_arrays
from pipeline_runtime.batches import to_device, to_tensors
from pipeline_runtime.errors import LastmileError, StepError, TrainingError
from pipeline_runtime.steps.base import ModelRequest, Scorer
from pipeline_runtime.steps.checks import broken
from pipeline_runtime.steps.predict.batch_sizes import OutOfMemory, check_rows
from pipeline_runtime.steps.predict.transform import to_array

Device = Literal["Auto", "CPU", "CUDA"]
Precision = Literal["Float32", "BFloat16", "Float16"]
_DTYPES = {"BFloat16": torch.bfloat16, "Float16": torch.float16}
# The message of torch's allocator on a CPU, which raises a plain RuntimeError.
_NO_MEMORY = "not enough memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a model's calls; see `steps.predict.model`."""

    outputs: tuple[str, ...]
    device: Device
    precision: Precision
    is_logit: bool  # the sigmoid of the outputs is returned

    def choose_device(self) -> str:
        """Return torch's device in this process, which is often not the one that planned."""
        return "cuda" if self.device != "CPU" and torch.cuda.is_available() else "cpu"


def build_options(request: ModelRequest, *, is_logit: bool) -> Options:
    """Return the options that a manifest gives.

    Args:
        is_logit: whether the model returns logits, unless `activation` says otherwise.

    Raises a broken rule if there is no such device; inference workers look for their own.
    """
    model = request.model
    is_here = model.worker_group is None
    if is_here and request.device == "CUDA" and not torch.cuda.is_available():
        raise broken(
            "must run where torch finds a GPU with device: CUDA, but there is none here; set "
            "device: Auto or CPU"
        )
    return Options(
        outputs=tuple(request.types),
        device=request.device,
        precision=model.precision,
        is_logit=is_logit if model.activation == "Auto" else model.activation == "Sigmoid",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class TensorScorer:
    """Calls a module, or another callable, with a dict of tensors by column."""

    call: Callable[[Any], Any]
    options: Options
    device: str

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        """Return the outputs by name, as numpy arrays. Raises StepError, or OutOfMemory."""
        options = self.options
        try:
            arrays = to_arrays(table, weight_column=None, label_column=None)
        except TrainingError as error:
            raise StepError(str(error)) from error
        # Tensors of arrays that may not be written to are copies. A model may change its input,
        # whose memory is that of the carried columns and of the other models' inputs.
        for array in arrays.values():
            array.flags.writeable = False
        batch = to_tensors(arrays)
        if self.device != "cpu":
            batch = to_device(batch, self.device)
        dtype = _DTYPES.get(options.precision)
        try:
            with (
                torch.inference_mode(),
                torch.autocast(self.device, dtype=dtype, enabled=dtype is not None),
            ):
                found = name_outputs(self.call(batch), options.outputs)
                return {name: self._to_numpy(name, value) for name, value in found.items()}
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(str(error).partition("\n")[0]) from error
        except RuntimeError as error:
            if _NO_MEMORY in str(error):
                raise OutOfMemory(str(error).partition("\n")[0]) from error
            raise describe_failure(error) from error
        except LastmileError:
            raise
        except MemoryError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise describe_failure(error) from error

    def _to_numpy(self, name: str, value: Any) -> np.ndarray:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(np.ascontiguousarray(value))
        if not isinstance(value, torch.Tensor):
            raise StepError(
                f"the output {name!r} must be a tensor or an array, but is a "
                f"{type(value).__name__}; correct the model"
            )
        if value.dtype in _DTYPES.values() and self.options.precision != "Float32":
            value = value.float()
        if self.options.is_logit:
            value = torch.sigmoid(value)
        # A copy, since a model may return the same buffer for each batch.
        return np.array(value.detach().cpu().numpy())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class ArrowScorer:
    """Calls a callable with an Arrow table."""

    call: Callable[[Any], Any]
    outputs: tuple[str, ...]

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        """Return the outputs by name. Raises StepError for whatever the callable raises."""
        try:
            found = self.call(table)
        except (LastmileError, MemoryError):
            raise
        except Exception as error:  # the user's code may raise anything
            raise describe_failure(error) from error
        if isinstance(found, pa.Table | pa.RecordBatch):
            found = {name: found.column(name) for name in found.schema.names}
        return name_outputs(found, self.outputs)


def name_outputs(found: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return what a model returned, by the names of its outputs.

    Args:
        found: a value for a single output, a sequence of one per output, or a mapping by name.

    Raises StepError if there are more outputs, or fewer, than declared.
    """
    if isinstance(found, Mapping):
        if missing := [name for name in names if name not in found]:
            raise StepError(
                f"the model must return the output {missing[0]!r}, as declared, but returned "
                f"{', '.join(map(str, found)) or 'none'}; correct outputs, or the model"
            )
        return {name: found[name] for name in names}
    values = list(found) if isinstance(found, tuple | list) else [found]
    if len(values) != len(names):
        raise StepError(
            f"the model must return {len(names)} outputs, as declared, but returned "
            f"{len(values)}; correct outputs, or the model"
        )
    return dict(zip(names, values, strict=True))


def describe_failure(error: Exception) -> StepError:
    """Return the error of a model that raised."""
    return StepError(f"the model raised {type(error).__name__}: {error}")


def check_on_sample(scorer: Scorer, sample: pa.Table, types: Mapping[str, pa.DataType]) -> None:
    """Call a model once, so that wrong outputs are known before a row is read.

    Raises StepError if it raises, or its outputs are not as declared.
    """
    try:
        found = scorer(sample)
    except (OutOfMemory, MemoryError) as error:
        raise StepError(
            f"the model does not fit into the memory with a batch of {sample.num_rows} rows "
            f"({error}); run where there is more memory, or use a smaller model"
        ) from error
    for name, values in found.items():
        check_rows(name, values, sample.num_rows)
        to_array(name, types[name], values)


def is_module(found: object) -> bool:
    """Return whether a model is a torch module."""
    return isinstance(found, nn.Module)
