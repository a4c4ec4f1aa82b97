"""The state of a loader: `state_dict` returns plain values, which `torch.save` and JSON keep.

`Start` is the beginning of an epoch, or the place after the batches that were delivered before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline_runtime.config import diff_configs, upgrade_config
from pipeline_runtime.errors import CheckpointError
from pipeline_runtime.training.position import Position

STATE_VERSION = 1
# An error lists this many differences at most.
_MAX_DIFFERENCES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DataIdentity:
    """The data that a state belongs to: the run config of the pipeline, and its row groups."""

    config: Mapping[str, Any]
    data_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The beginning of an iteration within an epoch.

    Attributes:
        batches: batches of the epoch that were delivered before.
        piece_rows: the most rows of a piece, with which they were made.
        rank, world_size: of the loader that delivered them.
        position: the rows of that rank's groups that they consumed; never changed.
    """

    epoch: int
    batches: int = 0
    piece_rows: int
    rank: int = 0
    world_size: int = 1
    position: Position = field(default_factory=Position)

    def has_position(self, rank: int, world_size: int) -> bool:
        """Return whether the position is this rank's, and that after `batches`.

        A caller who took batches ahead may have lowered the count.
        """
        whose = (self.rank, self.world_size, self.position.batches)
        return whose == (rank, world_size, self.batches)

    def to_state(self, identity: DataIdentity) -> dict[str, Any]:
        """Return the state that `parse_state` reads."""
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "batches": self.batches,
            "rank": self.rank,
            "world_size": self.world_size,
            "piece_rows": self.piece_rows,
            "position": self.position.to_json(),
            "config": dict(identity.config),
            "data_digest": identity.data_digest,
        }


def parse_state(state: Mapping[str, Any], identity: DataIdentity) -> Start:
    """Return where a state says to begin.

    Raises CheckpointError if it is not a loader's state, or one of another pipeline, of other data
    or of another version.
    """
    try:
        version = state["version"]
        if version != STATE_VERSION:
            raise CheckpointError(
                f"loader state: the version must be {STATE_VERSION}, but is {version!r}. Load it "
                "with the release that saved it, or start anew"
            )
        config, digest = upgrade_config(state["config"]), state["data_digest"]
        start = Start(
            epoch=int(state["epoch"]),
            batches=int(state["batches"]),
            piece_rows=int(state["piece_rows"]),
            rank=int(state["rank"]),
            world_size=int(state["world_size"]),
            position=Position.from_json(state["position"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"loader state: must be what state_dict() of a loader returned: {error!r}"
        ) from error
    _check_identity(config, digest, identity)
    return start


def _check_identity(config: Mapping[str, Any], digest: str, identity: DataIdentity) -> None:
    differences = diff_configs(config, identity.config)
    if differences:
        more = len(differences) - _MAX_DIFFERENCES
        lines = differences[:_MAX_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])
        raise CheckpointError(
            "loader state: the pipeline must be the one that saved it, but differs (saved → now):"
            "\n  " + "\n  ".join(lines)
        )
    if digest != identity.data_digest:
        raise CheckpointError(
            f"loader state: the row groups to read must be those of the state (digest {digest}), "
            f"but differ ({identity.data_digest}): files were added, removed or rewritten. Undo "
            "that, or start anew"
        )
