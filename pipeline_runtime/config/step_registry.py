"""Finds the steps: each folder of the package `pipeline_runtime.steps` is one.

There is no list of steps to edit; `extensions` finds steps from elsewhere. Modules are imported by
their names, so that the config depends on no step.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from pipeline_runtime.config.extensions import load_extensions
from pipeline_runtime.config.step_model import StepModel

_PACKAGE = "pipeline_runtime.steps"
_RESERVED = frozenset({"name"})  # fields that all steps have


@cache
def load_models() -> Mapping[str, type[StepModel]]:
    """Return the model of each step by the name of its folder, in alphabetical order.

    Raises:
        TypeError: a model is not named after its folder.
        ImportError: a step from elsewhere cannot be imported, or has the name of another step.
    """
    paths = importlib.import_module(_PACKAGE).__path__
    folders = [module.name for module in pkgutil.iter_modules(paths) if module.ispkg]
    models = {folder: _load_model(folder) for folder in folders}
    for model in load_extensions("LASTMILE_STEPS", StepModel):
        _check_name(model, model.folder())
        if model.folder() in models.keys() | _RESERVED:
            kind = model.kind()
            raise ImportError(f"LASTMILE_STEPS: there is a {kind!r} already; rename the folder")
        models[model.folder()] = model
    return MappingProxyType(dict(sorted(models.items())))


def _load_model(folder: str) -> type[StepModel]:
    module = importlib.import_module(f"{_PACKAGE}.{folder}.model")
    return _check_name(vars(module).get(_build_name(folder)), folder)


def _check_name(model: object, folder: str) -> type[StepModel]:
    name = _build_name(folder)
    if isinstance(model, type) and issubclass(model, StepModel) and model.__name__ == name:
        return model
    raise TypeError(f"{folder}/model.py: must define {name}, a StepModel, got {model!r}")


def _build_name(folder: str) -> str:
    return "".join(part.capitalize() for part in folder.split("_")) + "Step"
