"""Lastmile's runtime: last-mile data processing streamed straight into Torch training.

The package runs inside a Ray cluster and on a laptop. `Pipeline` is the Python way to say what a
manifest says; `lastmile` on the command line runs manifests; `current` is the run of a script;
`load_model` loads the model of a run.
Reading order: config (what may be said) → sources → steps → plan → feed → training → run → report.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline_runtime.models.loading import load_model
    from pipeline_runtime.pipeline import Pipeline
    from pipeline_runtime.training.current import current

__all__ = ["Pipeline", "current", "load_model"]
_MODULES = {
    "Pipeline": "pipeline",
    "current": "training.current",
    "load_model": "models.loading",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: it needs pyarrow or torch, which the spec does not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipeline_runtime.importing import import_arrow

    import_arrow()
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
