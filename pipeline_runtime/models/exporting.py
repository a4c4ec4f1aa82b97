"""Writes the model of a run to a file that other programs load: torch.export, or ONNX.

`loading` loads it. The exported program takes the columns that the model reads, with any number of
rows, and returns logits. Its trace is taken on a batch of zeros, which the run's schema describes.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as fx_config

from pipeline_runtime.batches import OFFSETS_SUFFIX, VALUES_SUFFIX, Batch
from pipeline_runtime.errors import CheckpointError, ExportError
from pipeline_runtime.files import write_atomically
from pipeline_runtime.models.loading import Choice, LoadedModel, load_run
from pipeline_runtime.models.samples import find_read_tensors
from pipeline_runtime.runs.locate import DEFAULT_ROOT
from pipeline_runtime.training.ranking.export_form import ExportForm
from pipeline_runtime.training.ranking.network import RankingModel

Format = Literal["torch", "onnx"]
# The names of the inputs, in a file of their own within the exported program.
INPUTS_FILE = "inputs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file with an exported model.

    Attributes:
        inputs: names of the tensors that it takes, in their order.
    """

    path: Path
    inputs: tuple[str, ...]


def export_model(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    format: Format = "torch",
    checkpoint: Choice = "last",
    model: nn.Module | None = None,
    root: str = DEFAULT_ROOT,
) -> Exported:
    """Write the model of a run to a file, with any number of rows as its batch.

    Args:
        output: the file; it is replaced if it exists.
        format: `torch` for torch.export (`.pt2`), of any model; `onnx` of the built-in model only.
        run, checkpoint, model, root: as `load_model` takes them.

    Raises what `load_model` raises, and ExportError if the model cannot be traced, or a package is
    missing.
    """
    loaded = load_run(run, checkpoint=checkpoint, model=model, root=root)
    module = loaded.module
    is_built_in = isinstance(module, RankingModel)
    if format == "onnx" and not is_built_in:
        raise ExportError(
            f"format: must be 'torch' for the module {type(module).__name__}, but is 'onnx', which "
            "only the built-in model has; export it as 'torch', or use torch.onnx yourself"
        )
    traced = ExportForm(module).eval() if isinstance(module, RankingModel) else module
    batch = _choose_inputs(loaded, traced)
    content = _export_onnx(traced, batch) if format == "onnx" else _export_torch(traced, batch)
    write_atomically(Path(output), content)
    return Exported(path=Path(output), inputs=tuple(batch))


def _choose_inputs(loaded: LoadedModel, module: nn.Module) -> Batch:
    """Return a batch of zeros that has exactly the tensors that the module reads, by name."""
    if loaded.schema is None:
        raise CheckpointError(
            f"{loaded.header.uri}: an export needs the schema of the batches, which the checkpoint "
            "does not have; only the built-in loop of this release saves it"
        )
    return find_read_tensors(module, loaded.schema)


def _name_sizes(batch: Batch) -> dict[str, dict[int, Any]]:
    """Return for each tensor the sizes that change from batch to batch."""
    rows = Dim("rows", min=1)
    sizes: dict[str, dict[int, Any]] = {}
    for name in batch:
        column = name.removesuffix(VALUES_SUFFIX).removesuffix(OFFSETS_SUFFIX)
        is_list = batch.keys() >= {column + VALUES_SUFFIX, column + OFFSETS_SUFFIX}
        if is_list and name == column + VALUES_SUFFIX:
            sizes[name] = {0: Dim(f"items_{len(sizes)}", min=0)}
        elif is_list and name == column + OFFSETS_SUFFIX:
            sizes[name] = {0: rows + 1}
        else:
            sizes[name] = {0: rows}
    return sizes


def _export_torch(module: nn.Module, batch: Batch) -> bytes:
    program = _trace(module, batch)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={INPUTS_FILE: json.dumps(list(batch))})
    return buffer.getvalue()


def _trace(module: nn.Module, batch: Batch) -> ExportedProgram:
    # With lists of any length, torch derives the number of rows from their offsets, and by default
    # guards that there are two at least.
    has_lists = any(name.endswith(OFFSETS_SUFFIX) for name in batch)
    try:
        with torch.no_grad(), fx_config.patch(backed_size_oblivious=has_lists):  # type: ignore[attr-defined]
            return torch.export.export(module, (batch,), dynamic_shapes=(_name_sizes(batch),))
    except Exception as error:  # torch has no common class for what it cannot trace
        raise ExportError(
            f"torch.export cannot trace the module {type(module).__name__}: "
            f"{type(error).__name__}: {error}"
        ) from error


class _Positional(nn.Module):
    """A model that takes the tensors of a batch one by one, as inputs of ONNX have names."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        logits_B: torch.Tensor = self.module(dict(zip(self.names, tensors, strict=True)))
        return logits_B


def _export_onnx(module: nn.Module, batch: Batch) -> bytes:
    names = tuple(batch)
    try:
        import onnxscript  # noqa: F401 - torch.onnx imports it, and says less if it is missing
    except ModuleNotFoundError as error:
        raise ExportError(
            "format: 'onnx' needs the packages onnx and onnxscript, but "
            f"{error.name} is missing; install the extra 'onnx', or both packages"
        ) from error
    sizes = _name_sizes(batch)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one size has the same name in several inputs
        program = torch.onnx.export(
            _Positional(module, names).eval(),
            tuple(batch.values()),
            input_names=names,
            output_names=("logits",),
            dynamic_shapes=(tuple(sizes[name] for name in names),),
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # it is None only for the older exporter
    content: bytes = program.model_proto.SerializeToString()
    return content
