"""Digests the user's code that trains, so that `compare` sees that it changed between two runs."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from pipeline_runtime.config import Training
from pipeline_runtime.errors import TrainingError

_DIGEST_CHARS = 16  # of a SHA-256, as of the run's hash


def digest_code(training: Training) -> str | None:
    """Return 16 hexadecimal digits of the SHA-256 of the entrypoint's, model's or script's file.

    Modules that the file imports do not count. The digest is None for the built-in model, for a
    function of a notebook, whose digest is in the manifest, and for code without a file that can be
    read.
    """
    if training.is_built_in:
        return None
    try:
        path = _find_file(training)
        content = path.read_bytes() if path and path.is_file() else None
    # Such as a package that is no module; a missing script is refused by `check_program`.
    except (ImportError, ValueError, OSError, TrainingError):
        return None
    return None if content is None else hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS]


def _find_file(training: Training) -> Path | None:
    if training.script is not None:
        from pipeline_runtime.training.script import find_script  # with torch

        return find_script(training.script)
    module = (training.model or training.entrypoint).partition(":")[0]
    spec = importlib.util.find_spec(module)
    return Path(spec.origin) if spec and spec.origin else None
