"""Models that a function of the user's returns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.models.scoring.calling import (
    ArrowScorer,
    Options,
    TensorScorer,
    build_options,
    check_on_sample,
    describe_failure,
    is_module,
)
from pipeline_runtime.models.scoring.columns import (
    build_zeros,
    check_tensors,
    choose_inputs,
    find_invalid,
)
from pipeline_runtime.models.scoring.loaded import load_once
from pipeline_runtime.steps.base import ModelRequest, Scorer, Transform
from pipeline_runtime.steps.checks import Checks, broken
from pipeline_runtime.steps.map.functions import load_function


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionModel:
    """A model of the user's code; see `steps.base.OpenedModel`."""

    function: str
    arguments: Mapping[str, Any]
    inputs: tuple[str, ...]
    options: Options
    form: Literal["Torch", "Arrow"]
    steps: tuple[Transform, ...] = ()

    @property
    def calls_user_code(self) -> bool:
        return True

    @property
    def sha256(self) -> str:
        return ""

    @property
    def note(self) -> str:
        return self.function

    def find_invalid(self, rows: pa.Table) -> Mapping[str, npt.NDArray[np.bool_]]:
        return find_invalid(rows) if self.form == "Torch" else {}

    def load(self, *, anew: bool = False) -> Scorer:
        """Call the function, once per process and plan. Raises a broken rule, or StepError.

        Args:
            anew: True to call it again; a notebook may have trained the model since.
        """
        key = (self.function, json.dumps(self.arguments, sort_keys=True), self.options, self.form)
        return load_once(key, self._load, anew=anew)

    def _load(self) -> Scorer:
        function = load_function(self.function)
        try:
            model = function(**self.arguments)
        except Exception as error:  # the user's code may raise anything
            raise describe_failure(error) from error
        device = self.options.choose_device()
        if is_module(model):
            model = model.eval().to(device)
        elif not callable(model):
            raise broken(
                f"must return a torch module or another callable, but {self.function} returned a "
                f"{type(model).__name__}"
            )
        if self.form == "Arrow":
            return ArrowScorer(call=model, outputs=self.options.outputs)
        return TensorScorer(call=model, options=self.options, device=device)


def open_function(request: ModelRequest) -> FunctionModel:
    """Return the model of a function, called once on rows of zeros.

    Raises ManifestError if there is no such function, or its model does not fit the manifest.
    """
    model, schema = request.model, request.input_schema
    assert model.function is not None
    inputs = choose_inputs(schema, model.inputs or ())
    if model.format == "Torch":
        check_tensors(inputs)
    opened = FunctionModel(
        function=model.function,
        arguments=dict(model.options or {}),
        inputs=tuple(inputs.names),
        options=build_options(request, is_logit=False),
        form=model.format,
    )
    checks = Checks("")
    with checks.at("function"):
        check_on_sample(opened.load(anew=True), build_zeros(inputs), request.types)
    checks.finish()
    return opened
