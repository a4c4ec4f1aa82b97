"""Opens the models that steps call, through the packages that know torch and other libraries.

The packages are named and not imported, so that a plan without models imports none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pipeline_runtime.sources import Opening
from pipeline_runtime.steps.base import ModelRequest, OpenedModel

if TYPE_CHECKING:
    from pipeline_runtime.steps.embed.model import EmbedStep
    from pipeline_runtime.steps.engines import OpenedEngine
    from pipeline_runtime.steps.generate.model import GenerateStep

_SCORING, _TEXT = "pipeline_runtime.models.scoring", "pipeline_runtime.models.text"


def open_model(request: ModelRequest, artifacts_uri: str, opening: Opening) -> OpenedModel:
    """Find a model and check it on a batch of zeros.

    Args:
        artifacts_uri: folder in which experiments have theirs.

    Raises ManifestError if it does not fit the manifest, SourceError if it cannot be read.
    """
    opened: OpenedModel = import_module(_SCORING).open_model(request, artifacts_uri, opening)
    return opened


def open_generator(step: GenerateStep, opening: Opening) -> OpenedEngine:
    """Find a language model and check it, without loading its weights.

    Raises ManifestError if it does not fit the manifest, SourceError if it cannot be read.
    """
    opened: OpenedEngine = import_module(_TEXT).open_generator(step, opening)
    return opened


def open_embedder(step: EmbedStep, opening: Opening) -> OpenedEngine:
    """Find an embedding model, and call it once.

    Raises ManifestError if it does not fit the manifest, SourceError if it cannot be read.
    """
    opened: OpenedEngine = import_module(_TEXT).open_embedder(step, opening)
    return opened
