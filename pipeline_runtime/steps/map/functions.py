"""Finds the user's function of a `map` step by its import path, and checks its options."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import JsonValue

from pipeline_runtime.errors import StoreError
from pipeline_runtime.steps.checks import broken, suggestion

UserFunction = Callable[..., Any]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def load_function(path: str, *, takes_class: bool = False) -> UserFunction:
    """Return the function, or perhaps the class, at `module:name`.

    Raises a broken rule if there is none.
    """
    module_name, _, qualified_name = path.partition(":")
    found: Any = _import(module_name)
    for name in qualified_name.split("."):
        if not hasattr(found, name):
            names = [n for n, value in vars(found).items() if callable(value) and n[0] != "_"]
            raise broken(
                f"must name a function of {module_name}, got {path!r}, which has no {name!r}; "
                f"{suggestion(name, names)}"
            )
        found = getattr(found, name)
    if not callable(found) or (inspect.isclass(found) and not takes_class):
        raise broken(f"must name a function, got {path!r}, which is a {type(found).__name__}")
    function: UserFunction = found
    return function


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise broken(
                f"must name a module that can be imported, got {module_name!r}, and there is no "
                f"module {error.name!r}; install it or add its directory to PYTHONPATH"
            ) from error
        raise broken(_import_failed(module_name, error)) from error
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise broken(_import_failed(module_name, error)) from error
    except OSError as error:  # from a store that the module reads, and which may answer next time
        raise StoreError(_import_failed(module_name, error)) from error
    except Exception as error:  # the user's module may raise anything while it is imported
        raise broken(_import_failed(module_name, error)) from error


def _import_failed(module_name: str, error: Exception) -> str:
    return (
        f"must name a module that can be imported, got {module_name!r}, whose import raised "
        f"{type(error).__name__}: {error}"
    )


def check_options(function: UserFunction, options: Mapping[str, JsonValue]) -> None:
    """Check that the function takes the batch, then each option by name, and needs nothing else."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a builtin without a signature: its call will check the arguments
        return
    kinds = {parameter.kind for parameter in parameters}
    takes_batch = parameters and (
        parameters[0].kind in _POSITIONAL or inspect.Parameter.VAR_POSITIONAL in kinds
    )
    if not takes_batch:
        raise broken("the function must take the batch as its first argument, got none")
    own = parameters[1:] if parameters[0].kind in _POSITIONAL else parameters
    named = [parameter for parameter in own if parameter.kind in _BY_NAME]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        _check_unknown(options, [parameter.name for parameter in named])
    for parameter in named:
        if parameter.default is inspect.Parameter.empty and parameter.name not in options:
            raise broken(
                f"must give every argument without a default, got no {parameter.name!r}; add it"
            )


def _check_unknown(options: Mapping[str, JsonValue], names: list[str]) -> None:
    for option in options:
        if option not in names:
            raise broken(
                f"must be arguments of the function, got {option!r}; {suggestion(option, names)}"
            )
