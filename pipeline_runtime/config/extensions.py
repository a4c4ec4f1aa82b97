"""Kinds of step and of source from elsewhere, which the environment names.

To try a step or a source outside of the package, set `LASTMILE_STEPS` or `LASTMILE_SOURCES` to the
import paths of models, separated by commas:

    PYTHONPATH=~/mine LASTMILE_STEPS=my_steps.clip.model:ClipStep lastmile run -f manifest.yaml

Each process that reads the manifest needs the same variables. The processes that a run starts on
this machine inherit them; a cluster has neither the variables nor the field in its CRD.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TypeVar

from pipeline_runtime.config.base import SpecModel

_Model = TypeVar("_Model", bound=SpecModel)


def load_extensions(variable: str, base: type[_Model]) -> list[type[_Model]]:
    """Import the models that an environment variable names, in its order.

    Raises:
        ImportError: a path is malformed, its module cannot be imported, or it names no subclass of
            `base`.
    """
    paths = [path.strip() for path in os.environ.get(variable, "").split(",")]
    return [_load_model(variable, path, base) for path in dict.fromkeys(paths) if path]


def _load_model(variable: str, path: str, base: type[_Model]) -> type[_Model]:
    module, _, name = path.partition(":")
    if not (module and name):
        raise ImportError(f"{variable}: must be package.module:Model, got {path!r}; correct it")
    try:
        found = vars(import_module(module)).get(name)
    except ImportError as error:
        raise ImportError(
            f"{variable}: {path}: {error}; correct it, or put its folder on PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base) and found is not base):
        raise ImportError(
            f"{variable}: {path}: must be a {base.__name__}, got {found!r}; correct it, or import "
            "pipeline_runtime.config before the module itself"
        )
    return found
