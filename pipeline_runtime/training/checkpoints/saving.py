"""Saves the checkpoints of an attempt, each with the metrics history up to it.

`context` gathers the states of all ranks, and rank 0 saves them here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline_runtime.errors import CheckpointError, StoreError
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore
from pipeline_runtime.training.checkpoints.header import RunIdentity
from pipeline_runtime.training.checkpoints.history import CheckpointHistory
from pipeline_runtime.training.position import Position


@dataclass(slots=True, kw_only=True)
class CheckpointSaver:
    """Saves checkpoints and counts them; on other ranks than 0 it stays unused.

    Attributes:
        history: None: checkpoints have no metrics history.
        warn: reports a warning of the run.
        kept_until: Unix time of the last checkpoint, or of the start; a crash loses later work.
    """

    store: CheckpointStore
    identity: RunIdentity
    history: CheckpointHistory | None
    warn: Callable[[str], None]
    num_saved: int = 0
    num_failed: int = 0
    last_uri: str | None = None
    kept_until: float = field(default_factory=time.time)

    @property
    def is_unused(self) -> bool:
        """True if no checkpoint was saved or failed."""
        return self.num_saved + self.num_failed == 0

    def save(
        self,
        state: dict[str, Any],
        position: Position,
        positions: Sequence[Any],
        metrics: Mapping[str, float],
    ) -> None:
        """Save a checkpoint and remove old ones; a failed write is a warning.

        Args:
            state: as in `CheckpointStore.save`.
            position: this rank's position.
            positions: the positions of all ranks, as JSON.
            metrics: metrics of the step, for the score.

        Raises ManifestError if the first checkpoint could not be loaded again.
        """
        header = {
            **asdict(self.identity),
            "epoch": position.epoch,
            "step": position.batches,
            "world_size": len(positions),
            "positions": tuple(positions),
            "score": self.store.score(metrics),
        }
        try:
            if self.history is not None:
                header["history"] = self.history.write(position.batches)
            # Check the first checkpoint of an attempt, so that a run fails early.
            uri = self.store.save(state, header, checked=self.num_saved == 0)
        except StoreError as error:
            self.num_failed += 1
            self.warn(f"training goes on without this checkpoint: {error}")
            return
        self.num_saved += 1
        self.last_uri = uri
        self.kept_until = time.time()
        try:
            self.store.remove_old(uri)
            if self.history is not None:
                self.history.remove_unused()
        except (StoreError, CheckpointError) as error:
            self.warn(str(error))

    def warn_without_best(self) -> None:
        """Warn if no checkpoint has the metric of `checkpoint.keepBest`."""
        keep_best = self.store.keep_best
        if keep_best is None:
            return
        with suppress(StoreError, CheckpointError):
            if self.store.find_best(self.store.headers()) is None:
                self.warn(
                    "spec.training.checkpoint.keepBest: no checkpoint was saved with the metric "
                    f"{keep_best.metric!r}, so none is the best; report the metric at the step "
                    "whose checkpoint is saved"
                )
