"""Checkpoints for tests: a store in a folder, with small states saved in it."""

from pathlib import Path
from typing import Any

import torch

from pipeline_runtime.sources import open_location
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore
from pipeline_runtime.training.position import Position

HASH = "a" * 16


def make_store(folder: Path, keep: int = 2, *, trust_pickle: bool = False) -> CheckpointStore:
    location = open_location(str(folder))
    return CheckpointStore(location=location, keep=keep, trust_pickle=trust_pickle)


def make_header(step: int, run_hash: str = HASH, **config: Any) -> dict[str, Any]:
    """Make the header that `CheckpointStore.save` takes besides the state."""
    return {
        "run_hash": run_hash,
        "run_config": config,
        "preserve_order": False,
        "epoch": 0,
        "step": step,
        "world_size": 1,
        "positions": (Position().to_json(),),
        "chunk_rows": 9,
    }


def save(store: CheckpointStore, step: int, run_hash: str = HASH, **config: Any) -> str:
    """Save a checkpoint, remove the old ones, and return its URI."""
    state = {"user": {"weight": torch.full((3,), float(step))}, "rng": []}
    uri = store.save(state, make_header(step, run_hash, **config))
    store.remove_old(uri)
    return uri
