"""Start of a measuring process: it imports like `lastmile`, whatever it measures.

Imports nothing heavy itself: the process unpickles this module's function before it does anything.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pipeline_runtime.importing import importing


def start(module: str, function: str, *arguments: Any) -> None:
    """Import a module and call its function."""
    with importing():
        call = getattr(import_module(module), function)
    call(*arguments)
