"""Models in ONNX's format, which onnxruntime runs.

An input of the model is the tensor of a column, named as in a batch of torch: a list column has
`NAME.values` and `NAME.offsets`, as in a file that `lastmile export --format onnx` wrote.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.arrays.conversion import OFFSETS_SUFFIX, ROW_WEIGHT, VALUES_SUFFIX, to_arrays
from pipeline_runtime.errors import StepError, TrainingError
from pipeline_runtime.iceberg.pins import ModelPin
from pipeline_runtime.models.scoring.calling import check_on_sample, describe_failure, name_outputs
from pipeline_runtime.models.scoring.columns import (
    build_zeros,
    check_tensors,
    choose_inputs,
    find_invalid,
)
from pipeline_runtime.models.scoring.loaded import load_once
from pipeline_runtime.sources import Location, Opening, open_location
from pipeline_runtime.sources.stores import read_file
from pipeline_runtime.steps.base import ModelRequest, Scorer, Transform
from pipeline_runtime.steps.checks import Checks, broken
from pipeline_runtime.steps.predict.batch_sizes import OutOfMemory

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# The format itself bounds a file without external data to 2 GiB.
_MAX_BYTES = 2 << 30
# The message of onnxruntime's allocators.
_NO_MEMORY = "Failed to allocate memory"
# A file's tensors may be in other files, beside it. Their digests would not be known, and they
# could be any files of this machine, so they are looked up where no file can be.
_NO_FOLDER = os.devnull


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxModel:
    """A file in ONNX's format; see `steps.base.OpenedModel`."""

    place: Location
    sha256: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    device: str
    is_logit: bool
    steps: tuple[Transform, ...] = ()

    @property
    def calls_user_code(self) -> bool:
        return False

    @property
    def note(self) -> str:
        return f"{self.place.uri}, sha256 {self.sha256[:12]}"

    def find_invalid(self, rows: pa.Table) -> Mapping[str, npt.NDArray[np.bool_]]:
        return find_invalid(rows)

    def load(self) -> Scorer:
        """Return the session of this process. Raises StepError if the file was changed."""
        key = ("onnx", self.sha256, self.outputs, self.device, self.is_logit)
        return load_once(key, self._load)

    def _load(self) -> Scorer:
        content = _read(self.place)
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise StepError(
                f"{self.place.uri}: the file must have SHA-256 {self.sha256}, as when the run "
                f"began, but has {found}; restore it, or start a new run"
            )
        return self.build(open_session(content, self.device))

    def build(self, session: InferenceSession) -> Scorer:
        """Return the scorer of a session."""
        return OnnxScorer(session=session, outputs=self.outputs, is_logit=self.is_logit)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class OnnxScorer:
    """Runs a session on the arrays of a batch."""

    session: InferenceSession
    outputs: tuple[str, ...]
    is_logit: bool

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        """Return the outputs by name, as numpy arrays. Raises StepError."""
        try:
            arrays = to_arrays(table, weight_column=None, label_column=None)
        except TrainingError as error:
            raise StepError(str(error)) from error
        inputs = {}
        for each in self.session.get_inputs():
            if each.name not in arrays:
                raise StepError(
                    f"the model's input {each.name!r} must be a tensor of the columns, which are "
                    f"{', '.join(name for name in arrays if name != ROW_WEIGHT)}; rename the "
                    "input, or make lists equally long with padSequence"
                )
            inputs[each.name] = arrays[each.name]
        names = {each.name for each in self.session.get_outputs()}
        wanted = list(self.outputs) if names.issuperset(self.outputs) else None
        try:
            found = self.session.run(wanted, inputs)
        except Exception as error:  # onnxruntime has no common class of its errors
            _, is_memory, size = str(error).partition(_NO_MEMORY)
            if is_memory:
                raise OutOfMemory(f"{_NO_MEMORY}{size.rstrip()}") from error
            raise describe_failure(error) from error
        named = name_outputs(found, self.outputs)
        return {name: self._finish(name, value) for name, value in named.items()}

    def _finish(self, name: str, values: Any) -> np.ndarray:
        if not isinstance(values, np.ndarray):
            names = ", ".join(each.name for each in self.session.get_outputs())
            raise StepError(
                f"the output {name!r} must be a tensor, but is a {type(values).__name__}; name "
                f"another one of {names}, or export the model without maps and sequences"
            )
        if self.is_logit:  # the two halves keep exp from overflowing
            small = np.exp(-np.abs(values))
            scores: np.ndarray = np.where(values >= 0, 1, small) / (1 + small)
            return scores
        return values


def open_session(content: bytes, device: str) -> InferenceSession:
    """Return a session of a model. Raises a broken rule if it is none, or a package is missing."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise broken(
            "must come with the package onnxruntime, which is not installed here; install it"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a data worker calls a model from a thread per core
    options.log_severity_level = 4  # errors are raised, so they are not printed too
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", _NO_FOLDER
    )
    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"] if device != "CPU" else []
    available = onnxruntime.get_available_providers()
    if device == "CUDA" and wanted[0] not in available:
        raise broken(
            "must run where onnxruntime has CUDAExecutionProvider with device: CUDA, but has "
            f"{', '.join(available)} here; set device: Auto or CPU"
        )
    providers = [name for name in wanted if name in available] or ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(content, options, providers=providers)
    except Exception as error:  # onnxruntime has no common class of its errors
        advice = "save it again"
        if "external data" in str(error).lower():
            advice = "its tensors are in other files: save it with all tensors in one file"
        raise broken(
            f"must be a model in ONNX's format that onnxruntime can load, but: {error}; {advice}"
        ) from error


def open_onnx(request: ModelRequest, opening: Opening) -> OnnxModel:
    """Return the model in a file, called once on rows of zeros.

    Raises ManifestError if it does not fit the manifest, SourceError if it cannot be read.
    """
    model = request.model
    assert model.onnx is not None
    place = open_location(model.onnx.uri, opening.storage_root)
    content = _read(place)
    pinned = opening.pins.find_model(place.full_uri)
    sha256 = hashlib.sha256(content).hexdigest()
    if pinned is not None and pinned.sha256 != sha256:
        raise broken(
            f"must be the file that this run began with (SHA-256 {pinned.sha256}), but has "
            f"{sha256}; restore it, or start a new run",
            "onnx.uri",
        )
    checks = Checks("")
    with checks.at("onnx.uri"):
        is_here = model.worker_group is None  # else an inference worker has the device
        session = open_session(content, request.device if is_here else "Auto")
        names = [each.name for each in session.get_inputs()]
    checks.finish()
    columns = _find_columns(names, request.input_schema)
    inputs = choose_inputs(request.input_schema, columns, "onnx.uri: inputs")
    check_tensors(inputs, "onnx.uri")
    opened = OnnxModel(
        place=place,
        sha256=sha256,
        outputs=tuple(request.types),
        inputs=tuple(inputs.names),
        device=request.device,
        is_logit=model.activation == "Sigmoid",
    )
    with checks.at("onnx.uri"):
        check_on_sample(opened.build(session), build_zeros(inputs), request.types)
    checks.finish()
    opening.pins.pin_model(ModelPin(source=place.full_uri, uri=place.full_uri, sha256=sha256))
    return opened


def _find_columns(names: list[str], schema: pa.Schema) -> list[str]:
    """Return the columns that inputs of these names are the tensors of."""
    columns: dict[str, None] = {}
    for name in names:
        column = name.removesuffix(VALUES_SUFFIX).removesuffix(OFFSETS_SUFFIX)
        columns[name if name in schema.names else column] = None
    return list(columns)


def _read(place: Location) -> bytes:
    content = read_file(place, "read a model", _MAX_BYTES)
    if content is None:
        raise broken(f"must be a file, but {place.uri} does not exist", "onnx.uri")
    return content
