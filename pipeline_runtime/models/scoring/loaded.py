"""Models in the memory of this process: each is loaded once, whichever threads call it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from pipeline_runtime.steps.base import Scorer

_LOADED: dict[Hashable, Scorer] = {}
_LOCK = threading.Lock()


def load_once(key: Hashable, load: Callable[[], Scorer]) -> Scorer:
    """Return the model of this key; load it if it is not there yet."""
    with _LOCK:
        if key not in _LOADED:
            _LOADED[key] = load()
        return _LOADED[key]
