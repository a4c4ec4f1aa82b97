"""The built-in loop, the default of `spec.training.entrypoint`, and the built-in ranking model.

`features` parses the config and chooses columns, `network` is the model, `user_module` builds the
user's instead, `quality` has the metrics, `trainer` is the loop.
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
