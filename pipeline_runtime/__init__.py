"""Lastmile's runtime: last-mile data processing streamed straight into Torch training.

The package runs inside a Ray cluster and on a laptop. `Pipeline` is the Python way to say what a
manifest says; `lastmile` on the command line runs manifests. Reading order: config (what may be
said) → sources → steps → plan → feed → training → run → report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline_runtime.pipeline import Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> Any:
    """Import `Pipeline` when it is asked for: it needs pyarrow, which the spec alone does not."""
    if name != "Pipeline":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipeline_runtime.importing import import_arrow

    import_arrow()
    from pipeline_runtime.pipeline import Pipeline

    return Pipeline
