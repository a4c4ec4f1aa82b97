"""Finds the function that trains, or builds the model: one that a manifest names, or a notebook's.

The driver refuses a bad name before anything runs; every trainer then loads the function. One that
was defined in a notebook is passed to the trainers as it is, and known by its digest.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pipeline_runtime.config.training import FUNCTION_MODULE
from pipeline_runtime.errors import TrainingError
from pipeline_runtime.training.function_digest import digest_function, read_source

ENTRYPOINT_FIELD = "spec.training.entrypoint"
MODEL_FIELD = "spec.training.model"
_ARGUMENTS = {
    ENTRYPOINT_FIELD: (1, "one argument, the context"),
    MODEL_FIELD: (2, "two arguments, the config and the schema"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionEntrypoint:
    """A function that was given to `Pipeline.train`.

    Attributes:
        path: stands for the function in `spec.training.entrypoint`. It has the function's digest
            (`function_digest`), so that another function makes another run.
    """

    function: Callable[[Any], object]
    source: str
    path: str


def check_function(function: object) -> FunctionEntrypoint:
    """Return a function as an entrypoint.

    Raises TrainingError if its source does not say all that it does, if it has none, or if it does
    not take one argument.
    """
    wrong = _find_flaw(function)
    if wrong is None and isinstance(function, FunctionType):
        try:
            source, digest = read_source(function), digest_function(function)
        except (OSError, TypeError):
            wrong = f"the function {function.__name__!r}, whose source cannot be found"
        else:
            _check_signature(ENTRYPOINT_FIELD, function.__name__, function)
            path = f"{FUNCTION_MODULE}:{function.__name__}_{digest}"
            return FunctionEntrypoint(function=function, source=source, path=path)
    raise TrainingError(
        f"entrypoint: must be a function of a notebook or file that its source describes, since "
        f"the source is part of the run's hash, but is {wrong}. Define it by `def`, without "
        "variables of another function, and give it its settings as `config`"
    )


def _find_flaw(function: object) -> str | None:
    """Return what kind of value cannot be an entrypoint; None for an ordinary function."""
    if not isinstance(function, FunctionType):
        return f"a {type(function).__name__}"
    if function.__name__ == "<lambda>":
        return "a lambda"
    if function.__closure__:
        names = ", ".join(map(repr, function.__code__.co_freevars))
        return f"a function that uses the local variables {names} of another one"
    return None


def load_entrypoint(path: str) -> Callable[[Any], object]:
    """Import an entrypoint.

    Raises TrainingError if the module or function is missing, or does not take one argument.
    """
    return _load_function(ENTRYPOINT_FIELD, path)


def load_model_function(path: str) -> Callable[[Any, Any], object]:
    """Import the function that builds a model.

    Raises TrainingError if the module or function is missing, or does not take two arguments.
    """
    return _load_function(MODEL_FIELD, path)


def _load_function(field: str, path: str) -> Callable[..., object]:
    module_name, _, function_name = path.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise TrainingError(
            f"{field}: no module named {error.name!r} (of {path!r}); install it, or put its folder "
            "beside the manifest, in spec.code.workingDir or, in Python, into sys.path"
        ) from error
    for name in function_name.split("."):
        if not hasattr(value, name):
            raise TrainingError(
                f"{field}: {module_name!r} has no {name!r} (of {path!r}); check the name"
            )
        value = getattr(value, name)
    if not callable(value):
        raise TrainingError(f"{field}: {path!r} must be a function, got {type(value).__name__}")
    _check_signature(field, path, value)
    return value  # type: ignore[no-any-return]


def _check_signature(field: str, path: str, function: Callable[..., Any]) -> None:
    num_arguments, words = _ARGUMENTS[field]
    signature = inspect.signature(function)
    try:
        signature.bind(*[object()] * num_arguments)
    except TypeError as error:
        raise TrainingError(
            f"{field}: {path!r} must take {words}, got {signature}; see docs/training.md"
        ) from error
