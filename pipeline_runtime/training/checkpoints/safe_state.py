"""Restricts the types in a checkpoint's state, so that loading it runs no foreign code.

A pickle can call any function when it is loaded, and anybody who can write to the artifacts can
place one there. So states are loaded by torch's restricted unpickler (`weights_only=True`), which
creates objects of a few known types only. `checkpoint` loads states by this module. It also has the
first state of each attempt checked, so that a run learns early if it could not resume from it.

torch itself allows tensors, parameters, sizes, devices, dtypes, numbers, texts, bytes, None, and
lists, tuples, dicts, sets, OrderedDict and Counter of these. This module adds numpy's numbers, and
arrays of numbers and booleans, such as its random state. Enums, dataclasses and other classes are
not allowed: each would need its module, whose import runs code.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import serialization

from pipeline_runtime.errors import CheckpointError, ManifestError, Problem

TRUST_FIELD = "spec.training.checkpoint.trustPickle"
_NUMPY_DTYPES = "?bBhHiIlLqQefdFD"  # booleans, integers, floats and complex numbers
# The functions that numpy's pickles call to create an array and a number.
_NUMPY_FUNCTIONS: tuple[Any, ...] = (np.zeros(1).__reduce__()[0], np.float64(0).__reduce__()[0])
# Pickles of numpy 1 name the module `numpy.core`.
_NUMPY_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
_SAFE_GLOBALS: list[Any] = [
    *((f, f"{module}.{f.__name__}") for f in _NUMPY_FUNCTIONS for module in _NUMPY_MODULES),
    np.ndarray,
    np.dtype,
    *dict.fromkeys(type(np.dtype(code)) for code in _NUMPY_DTYPES),
]
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)
_MAX_NAMES = 5
# torch has one list of safe types for the whole process.
_lock = threading.Lock()


def load_state(uri: str, content: bytes, *, trust_pickle: bool) -> dict[str, Any]:
    """Load the state of a checkpoint.

    Raises CheckpointError if it holds unsafe types and `trust_pickle` is not set, or if the code
    that is installed here cannot load it.
    """
    try:
        state = _load(content, "cpu", trust_pickle=trust_pickle)
    except pickle.UnpicklingError as error:
        raise CheckpointError(_explain(uri, content)) from error
    except Exception as error:  # the code that a trusted pickle names may raise any error
        raise CheckpointError(
            f"{uri}: the state cannot be loaded: {type(error).__name__}: {error}. Install the code "
            "that wrote it, or start anew without --resume"
        ) from error
    parts = (state.get("user"), state.get("rng")) if isinstance(state, dict) else (None, None)
    if not (isinstance(parts[0], Mapping) and isinstance(parts[1], list)):
        raise CheckpointError(f"{uri}: the state must be one that Lastmile wrote; start anew")
    return dict(state)


def check_state(user: Mapping[str, Any], content: bytes) -> None:
    """Check that a state can be loaded again, before it is written.

    Args:
        user: the checkpoint that the entrypoint passed to `report`.
        content: the serialised state.

    Raises ManifestError with the unsafe type and its place in the state.
    """
    if _is_safe(content):
        return
    for value, path in _find_unsafe(dict(user), "checkpoint"):
        message = (
            f"must be true to save {path}, which is of type {_name_type(value)}: by default a "
            "checkpoint holds tensors, numbers, texts and plain containers of them "
            "(docs/training.md). Save it as one of these, or trust whoever can write to the store"
        )
        raise ManifestError([Problem(path=TRUST_FIELD, message=message)])


def _load(content: bytes, device: str, *, trust_pickle: bool) -> Any:
    with _only_safe_types():
        return torch.load(io.BytesIO(content), map_location=device, weights_only=not trust_pickle)


@contextmanager
def _only_safe_types() -> Iterator[None]:
    """Let torch load exactly our types, without those that the entrypoint's modules added.

    A resuming trainer loads the state before it imports the entrypoint, so it lacks those types.
    """
    with _lock:
        added = serialization.get_safe_globals()
        serialization.clear_safe_globals()
        serialization.add_safe_globals(_SAFE_GLOBALS)
        try:
            yield
        finally:
            serialization.clear_safe_globals()
            serialization.add_safe_globals(added)


def _is_safe(content: bytes) -> bool:
    """Return whether a state can be loaded; this first tries without tensor values, for speed."""
    try:
        _load(content, "meta", trust_pickle=False)
    except pickle.UnpicklingError:
        return False
    except Exception:  # noqa: BLE001 - sparse and quantized tensors need their values
        try:
            _load(content, "cpu", trust_pickle=False)
        except pickle.UnpicklingError:
            return False
    return True


def _find_unsafe(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yield the innermost values that cannot be loaded again, with their places."""
    if type(value) in (torch.Tensor, torch.nn.Parameter) or _is_safe(_save(value)):
        return
    inner: list[tuple[Any, str]] = []
    if type(value) in _CONTAINERS:
        if isinstance(value, Mapping):
            for key, item in value.items():
                inner += _find_unsafe(key, f"the key {key!r} of {path}")
                inner += _find_unsafe(item, f"{path}[{key!r}]")
        else:
            for index, item in enumerate(value):
                inner += _find_unsafe(item, f"{path}[{index}]")
    yield from inner or [(value, path)]


def _save(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _name_type(value: Any) -> str:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return f"{name} of {value.dtype}" if isinstance(value, np.ndarray | np.generic) else name


def _explain(uri: str, content: bytes) -> str:
    """Explain which unsafe types a state holds."""
    with _only_safe_types():
        safe = {_name_global(each) for each in _SAFE_GLOBALS}
        found = set(serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))) - safe
    names = ", ".join(sorted(found)[:_MAX_NAMES]) or "numpy arrays that do not hold numbers"
    return (
        f"{uri}: the state holds {names}; loading them could run code that somebody else put "
        f"there. Set {TRUST_FIELD}: true if you trust whoever can write to the store, or start "
        "anew without --resume"
    )


def _name_global(each: Any) -> str:
    return each[1] if isinstance(each, tuple) else f"{each.__module__}.{each.__qualname__}"
