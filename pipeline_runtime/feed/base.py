"""The seam between the training loop and whatever engine brings it rows.

The loop asks a `Feed` for pieces and counts what it waited for; engines (Ray Data today) stand
behind it and can be changed without the loop noticing. Rows, pieces and headers are the same for
every engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pipeline_runtime.feed.pieces import Piece


@dataclass(slots=True)
class Waited:
    """Seconds of the trainer's time since the run began, by what it was spent on."""

    compute: float = 0.0  # the entrypoint's own work between two batches
    production: float = 0.0  # blocked on rows that no worker has made yet: more workers cure it
    transfer: float = 0.0  # blocked on moving rows that are ready, to this process or the device
    batching: float = 0.0  # cutting and joining pieces into batches
    collate: float = 0.0  # Arrow to tensors
    paused: float = 0.0  # evaluation, checkpoints, reports


class Feed(Protocol):
    """One rank's stream of pieces."""

    def pieces(self, waited: Waited) -> Iterator[Piece]:
        """Every piece of the rank's groups once; adds to `waited.production` and `.transfer`."""
        ...
