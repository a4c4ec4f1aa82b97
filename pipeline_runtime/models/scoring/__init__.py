"""The models of the step `predict`: of runs, of files in ONNX's format, and of the user's code.

    plan ─▶ open_model ─▶ a picklable model ─▶ load, once per process ─▶ scorer ─▶ outputs

`open_model` finds a model when a pipeline is bound, and calls it once on a batch of zeros: whatever
is wrong is known before a row is read. The model that is found is pinned with its digest, so an
attempt that resumes calls the same one. `steps.predict` cuts the batches and checks the outputs.
"""

from __future__ import annotations

from pipeline_runtime.models.scoring.functions import open_function
from pipeline_runtime.models.scoring.onnx_files import open_onnx
from pipeline_runtime.models.scoring.runs import open_trained
from pipeline_runtime.sources import Opening
from pipeline_runtime.steps.base import ModelRequest, OpenedModel

__all__ = ["open_model"]


def open_model(request: ModelRequest, artifacts_uri: str, opening: Opening) -> OpenedModel:
    """Find a model and check it; see `plan.opened_models.open_model`."""
    if request.model.function is not None:
        return open_function(request)
    if request.model.onnx is not None:
        return open_onnx(request, opening)
    return open_trained(request, artifacts_uri, opening)
