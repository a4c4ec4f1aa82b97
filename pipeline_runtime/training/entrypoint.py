"""Find the function that a manifest names as `module:function`.

Used by the driver, to refuse a bad name before anything runs, and by every trainer.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from pipeline_runtime.errors import TrainingError


def load_entrypoint(path: str) -> Callable[[Any], object]:
    """Import an entrypoint.

    Raises TrainingError if the module or function is missing, or does not take one argument.
    """
    module_name, _, function_name = path.partition(":")
    field = "spec.training.entrypoint"
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise TrainingError(
            f"{field}: no module named {error.name!r} (of {path!r}); install it, or put its folder "
            "beside the manifest or in spec.code.workingDir"
        ) from error
    for name in function_name.split("."):
        if not hasattr(value, name):
            raise TrainingError(
                f"{field}: {module_name!r} has no {name!r} (of {path!r}); check the name"
            )
        value = getattr(value, name)
    if not callable(value):
        raise TrainingError(f"{field}: {path!r} must be a function, got {type(value).__name__}")
    _check_signature(path, value)
    return value  # type: ignore[no-any-return]


def _check_signature(path: str, function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(object())
    except TypeError as error:
        raise TrainingError(
            f"spec.training.entrypoint: {path!r} must take one argument, the context, got "
            f"{signature}; see docs/training.md"
        ) from error
