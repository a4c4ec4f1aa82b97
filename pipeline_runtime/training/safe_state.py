"""What a checkpoint's state may hold, so that reading it back runs nobody's code.

A pickle can call any function as it is loaded, and whoever may write to the artifacts may put one
there. So a state is loaded by torch's restricted unpickler (`weights_only=True`), which makes
objects of a few known types only. `checkpoint` loads by it, and has the first state that an attempt
saves checked, so that a run learns early what it could not resume from.

The types are those that torch allows by itself: tensors, parameters, sizes, devices, dtypes,
numbers, texts, bytes, None, and lists, tuples, dicts, sets, OrderedDict and Counter of these. Added
are numpy's numbers and arrays of numbers and booleans, such as its random state. Enums, dataclasses
and other classes are not: each would need its module, whose import runs code.
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
# The functions by which numpy's pickles make an array and a number.
_NUMPY_FUNCTIONS: tuple[Any, ...] = (np.zeros(1).__reduce__()[0], np.float64(0).__reduce__()[0])
# Their module is called `numpy.core` in pickles of numpy 1.
_NUMPY_MODULES = ("numpy._core.multiarray", "numpy.core.multiarray")
_SAFE_GLOBALS: list[Any] = [
    *((f, f"{module}.{f.__name__}") for f in _NUMPY_FUNCTIONS for module in _NUMPY_MODULES),
    np.ndarray,
    np.dtype,
    *dict.fromkeys(type(np.dtype(code)) for code in _NUMPY_DTYPES),
]
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)
_MAX_NAMES = 5
# torch keeps its list of safe types for the whole process.
_lock = threading.Lock()


def load_state(uri: str, content: bytes, *, trust_pickle: bool) -> dict[str, Any]:
    """Load the state of a checkpoint.

    Raises CheckpointError if it holds types that are not safe, unless `trust_pickle`, or cannot be
    made from its bytes with the code that is installed here.
    """
    try:
        state = _load(content, "cpu", trust_pickle=trust_pickle)
    except pickle.UnpicklingError as error:
        raise CheckpointError(_explain(uri, content)) from error
    except Exception as error:  # a trusted pickle raises whatever the code that it names does
        raise CheckpointError(
            f"{uri}: the state cannot be loaded: {type(error).__name__}: {error}. Install the code "
            "that wrote it, or start anew without --resume"
        ) from error
    parts = (state.get("user"), state.get("rng")) if isinstance(state, dict) else (None, None)
    if not (isinstance(parts[0], Mapping) and isinstance(parts[1], list)):
        raise CheckpointError(f"{uri}: the state must be one that Lastmile wrote; start anew")
    return dict(state)


def check_state(user: Mapping[str, Any], content: bytes) -> None:
    """Check that a state which is about to be written could be loaded again.

    Args:
        user: what the entrypoint gave to `report`.
        content: the whole state as it would be written.

    Raises ManifestError, with the type and its place in the state, if it could not.
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
    """Let torch take exactly our types, whatever the entrypoint's modules have added.

    A trainer loads before it imports the entrypoint, so what that adds would not hold then.
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
    """Return whether a state can be loaded: first without its tensors' values, which is quick."""
    try:
        _load(content, "meta", trust_pickle=False)
    except pickle.UnpicklingError:
        return False
    except Exception:  # noqa: BLE001 - a sparse or quantized tensor has no form without values
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
    """Say which types a state holds that are not safe."""
    with _only_safe_types():
        safe = {_name_global(each) for each in _SAFE_GLOBALS}
        found = set(serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))) - safe
    names = ", ".join(sorted(found)[:_MAX_NAMES]) or "numpy arrays of other things than numbers"
    return (
        f"{uri}: the state holds {names}, and loading them could run any code that somebody put "
        f"there. Set {TRUST_FIELD}: true if you trust whoever can write to the store, or start "
        "anew without --resume"
    )


def _name_global(each: Any) -> str:
    return each[1] if isinstance(each, tuple) else f"{each.__module__}.{each.__qualname__}"
