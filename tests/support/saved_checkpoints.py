"""Checkpoints for tests: a store in a folder, and a small state saved in it."""

from pathlib import Path
from typing import Any

import torch

from pipeline_runtime.sources import open_location
from pipeline_runtime.training.checkpoint import CheckpointStore
from pipeline_runtime.training.position import Position

HASH = "a" * 16


def make_store(folder: Path, keep: int = 2) -> CheckpointStore:
    return CheckpointStore(location=open_location(str(folder)), keep=keep)


def save(store: CheckpointStore, step: int, run_hash: str = HASH, **config: Any) -> str:
    """Save a checkpoint, remove the old ones, and return its URI."""
    header = {
        "run_hash": run_hash,
        "run_config": config,
        "preserve_order": False,
        "epoch": 0,
        "step": step,
        "world_size": 1,
        "positions": (Position().to_json(),),
        "piece_rows": 9,
    }
    uri = store.save({"user": {"weight": torch.full((3,), float(step))}, "rng": []}, header)
    store.remove_old(uri)
    return uri
