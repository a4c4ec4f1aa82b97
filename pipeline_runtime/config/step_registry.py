"""Finds the steps: each folder of the package `pipeline_runtime.steps` is one.

There is no list of steps to edit. To try a step from elsewhere, set the environment variable
`LASTMILE_STEPS_PATH` to the folder that has the step's folder: it extends the package's `__path__`.
Modules are imported by their names, so that the config depends on no step.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from pipeline_runtime.config.step_model import StepModel

_PACKAGE = "pipeline_runtime.steps"


@cache
def load_models() -> Mapping[str, type[StepModel]]:
    """Return the model of each step by the name of its folder, in alphabetical order.

    Raises:
        TypeError: a folder's `model.py` has no model of the expected name.
    """
    paths = importlib.import_module(_PACKAGE).__path__
    folders = {module.name for module in pkgutil.iter_modules(paths) if module.ispkg}
    return MappingProxyType({folder: _load_model(folder) for folder in sorted(folders)})


def _load_model(folder: str) -> type[StepModel]:
    module = importlib.import_module(f"{_PACKAGE}.{folder}.model")
    name = "".join(part.capitalize() for part in folder.split("_")) + "Step"
    model = vars(module).get(name)
    if not (isinstance(model, type) and issubclass(model, StepModel)):
        raise TypeError(f"{module.__name__}: must define {name}, a StepModel, got {model!r}")
    return model
