"""Opens the models that steps call, through the package that knows torch and onnxruntime.

The package is named and not imported, so that a plan without models imports neither.
"""

from __future__ import annotations

from importlib import import_module

from pipeline_runtime.sources import Opening
from pipeline_runtime.steps.base import ModelRequest, OpenedModel

_PACKAGE = "pipeline_runtime.models.scoring"


def open_model(request: ModelRequest, artifacts_uri: str, opening: Opening) -> OpenedModel:
    """Find a model and check it on a batch of zeros.

    Args:
        artifacts_uri: folder in which experiments have theirs.

    Raises ManifestError if it does not fit the manifest, SourceError if it cannot be read.
    """
    opened: OpenedModel = import_module(_PACKAGE).open_model(request, artifacts_uri, opening)
    return opened
