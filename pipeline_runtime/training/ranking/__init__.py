"""The built-in ranking model, the default of `spec.training.entrypoint`.

`features` parses the config and chooses columns, `network` is the model, `quality` its metrics,
`trainer` trains it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline_runtime.training.ranking.trainer import train_loop

__all__ = ["train_loop"]


def __getattr__(name: str) -> Any:
    """Import the loop when it is needed: the driver reads `features` without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipeline_runtime.training.ranking import trainer

    return getattr(trainer, name)
