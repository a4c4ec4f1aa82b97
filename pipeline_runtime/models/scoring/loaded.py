"""Models in the memory of this process: each is loaded once, whichever threads call it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from pipeline_runtime.steps.base import Scorer

_LOADED: dict[Hashable, Scorer] = {}
_LOCK = threading.RLock()  # the user's function may score rows itself


def load_once(key: Hashable, load: Callable[[], Scorer], *, anew: bool = False) -> Scorer:
    """Return the model of this key; load it if it is not there yet.

    Args:
        anew: True to drop the model that is there, whose weights may have changed since.
    """
    with _LOCK:
        if anew:
            _LOADED.pop(key, None)
        if key not in _LOADED:
            _LOADED[key] = load()
        return _LOADED[key]
