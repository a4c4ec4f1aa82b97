"""Finds tensors that are sharded over ranks: a checkpoint has the state of rank 0 alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline_runtime.errors import TrainingError

# Where torch defines them. A script that has such tensors has imported the modules.
_SHARDED = (
    ("torch.distributed.tensor", "DTensor"),
    ("torch.distributed._shard.sharded_tensor", "ShardedTensor"),
)


def check_gathered(state: Mapping[str, Any]) -> None:
    """Raise TrainingError if a tensor of the state is a rank's shard, such as FSDP's DTensor.

    Every rank finds the same, so that none of them waits for the others.
    """
    kinds = tuple(
        getattr(sys.modules[module], name) for module, name in _SHARDED if module in sys.modules
    )
    for value, path in _find(state, kinds, "state") if kinds else ():
        raise TrainingError(
            f"save: {path} is a {type(value).__name__}, of which each rank has a shard, but only "
            "the state of rank 0 is saved. Gather it on all ranks by get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True, cpu_offload=True)) of "
            "torch.distributed.checkpoint.state_dict, and the optimizer's by "
            "get_optimizer_state_dict (docs/scripts.md)"
        )


def _find(value: Any, kinds: tuple[type, ...], path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(value, kinds):
        yield value, path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _find(item, kinds, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _find(item, kinds, f"{path}[{index}]")
