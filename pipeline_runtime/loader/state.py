"""The state of a loader: `state_dict` returns plain values, which `torch.save` and JSON keep.

`Start` is the beginning of an epoch, or the place after the batches that were delivered before.
A state may come from anywhere, so each value is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from pipeline_runtime.config import diff_configs, upgrade_config
from pipeline_runtime.errors import CheckpointError
from pipeline_runtime.iceberg.pins import Pin
from pipeline_runtime.plan import StreamPlan, rows_per_chunk, share_groups
from pipeline_runtime.training.position import Position

STATE_VERSION = 1
# More ranks than any training has, and few enough to share rows among.
MAX_RANKS = 1 << 20
# An error lists this many differences at most.
_MAX_DIFFERENCES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DataIdentity:
    """The data that a state belongs to: the run config of the pipeline, and its row groups.

    Attributes:
        pins: the snapshots of the Iceberg tables among its tables.
    """

    config: Mapping[str, Any]
    data_digest: str
    pins: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The beginning of an iteration within an epoch.

    Attributes:
        batches: batches of the epoch that were delivered before.
        chunk_rows: the most rows of a chunk, with which they were made.
        rank, world_size: of the loader that delivered them.
        position: the rows of that rank's groups that they consumed; never changed.
    """

    epoch: int
    batches: int = 0
    chunk_rows: int
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
        pins = [pin.model_dump(by_alias=True, exclude_none=True) for pin in identity.pins]
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "batches": self.batches,
            "rank": self.rank,
            "world_size": self.world_size,
            "piece_rows": self.chunk_rows,
            "position": self.position.to_json(),
            "config": dict(identity.config),
            "data_digest": identity.data_digest,
            **({"snapshots": pins} if pins else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A state that `load_state_dict` got: where to begin, and the data that it counts.

    Attributes:
        pins: none in a state of a release before them.
    """

    start: Start
    data_digest: str
    pins: tuple[Pin, ...]


_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_Digest = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
_Index = Annotated[str, Field(pattern="^[0-9]{1,18}$")]


class _StateModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _ChecksumFields(_StateModel):
    rows: _Count
    sum: _Digest
    sumOfSquares: _Digest  # noqa: N815 - as positions are saved


class _OpenFields(_StateModel):
    rows: dict[_Index, _Count]
    whole: list[_Count]
    num_chunks: Annotated[_Count | None, Field(alias="numPieces")]


class _PositionFields(_StateModel):
    epoch: _Count
    epochStart: _Count | None = None  # noqa: N815 - as positions are saved
    batches: _Count
    samples: _Count
    done: list[_Count]
    open: dict[_Index, _OpenFields]
    checksum: _ChecksumFields
    counts: list[Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=3, max_length=3)]]


class _PinFields(Pin):
    model_config = ConfigDict(strict=True, extra="forbid")


class _StateFields(_StateModel):
    """The types and ranges of a state, which may come from anywhere."""

    version: int
    epoch: _Count
    batches: _Count
    rank: _Count
    world_size: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    chunk_rows: Annotated[int, Field(ge=1, lt=1 << 63, alias="piece_rows")]
    position: _PositionFields
    config: dict[str, JsonValue]
    data_digest: _Digest
    snapshots: list[_PinFields] = Field(default_factory=list)


def parse_state(state: Mapping[str, Any], config: Mapping[str, Any]) -> SavedState:
    """Return what a state says.

    Args:
        config: the run config of the loader that is to load it.

    Raises CheckpointError if it is not a loader's state, or one of another pipeline or version.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise CheckpointError(
            "loader state: must be what state_dict() of a loader returned, but is "
            f"{_describe(state)}"
        )
    version = state["version"]
    if type(version) is not int or version != STATE_VERSION:
        raise CheckpointError(
            f"loader state: the version must be {STATE_VERSION}, but is {version!r:.80}. Load it "
            "with the release that saved it, or start anew"
        )
    try:
        fields = _StateFields.model_validate(dict(state))
    except ValidationError as error:
        raise CheckpointError(_explain_fields(error)) from None
    if fields.rank >= fields.world_size:
        raise CheckpointError(
            f"loader state: rank must be less than world_size ({fields.world_size}), but is "
            f"{fields.rank}"
        )
    _check_config(upgrade_config(fields.config), config)
    start = Start(
        epoch=fields.epoch,
        batches=fields.batches,
        chunk_rows=fields.chunk_rows,
        rank=fields.rank,
        world_size=fields.world_size,
        position=Position.from_json(state["position"]),
    )
    pins = tuple(fields.snapshots)
    return SavedState(start=start, data_digest=fields.data_digest, pins=pins)


def check_start(start: Start, stream: StreamPlan, batch_size: int) -> None:
    """Raise CheckpointError if no loader of the stream could have come to this start."""
    most = rows_per_chunk(stream.scan.units, stream.shuffle)
    if start.chunk_rows > most:
        raise CheckpointError(
            f"loader state: piece_rows must be at most {most}, but is {start.chunk_rows}"
        )
    num_rows = sum(unit.num_rows for unit in stream.scan.units)
    most = -(-num_rows // (start.world_size * batch_size))
    if start.batches > most and not any(step.transform.changes_rows for step in stream.steps):
        raise CheckpointError(
            f"loader state: batches must be at most {most}, the batches of an epoch, but is "
            f"{start.batches}"
        )
    problem = _find_misplaced(start, stream) if start.position.batches else None
    if problem is not None:
        raise CheckpointError(
            f"loader state: position: {problem}; the state is damaged. Load another one, or begin "
            f"the epoch again by set_epoch({start.epoch})"
        )


def _find_misplaced(start: Start, stream: StreamPlan) -> str | None:
    """Return what in a position does not fit the groups of its rank; None if all does."""
    position = start.position
    if position.epoch != start.epoch:
        return f"its epoch is {position.epoch}, but the state's is {start.epoch}"
    if len(position.counts) not in (0, 1 + len(stream.steps)):
        return f"it counts {len(position.counts) - 1} steps of {len(stream.steps)}"
    groups = stream.groups(start.epoch, start.chunk_rows)
    mine = {group.index: group for group in share_groups(groups, start.world_size)[start.rank]}
    for index in position.done - mine.keys():
        return f"group {index} is not one of this rank's {len(mine)}"
    for index, opened in position.open.items():
        if index not in mine or index in position.done:
            return f"group {index} is not one that this rank has begun"
        num_chunks = mine[index].num_chunks(start.chunk_rows)
        chunks = {*opened.rows, *opened.whole}
        if max(chunks, default=0) >= num_chunks or opened.num_chunks not in (None, num_chunks):
            return f"group {index} has {num_chunks} chunks"
    return None


def _describe(state: object) -> str:
    names = ", ".join(map(repr, list(state)[:5])) if isinstance(state, Mapping) else ""
    return f"a mapping of {names}" if names else f"{state!r:.80}"


def _explain_fields(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False)
    lines = [
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}, but is {each['input']!r:.80}"
        for each in found[:_MAX_DIFFERENCES]
    ]
    return (
        "loader state: must be what state_dict() of a loader returned, but is not:\n  "
        + "\n  ".join(lines)
    )


def _check_config(config: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    differences = diff_configs(config, mine)
    if differences:
        more = len(differences) - _MAX_DIFFERENCES
        lines = differences[:_MAX_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])
        raise CheckpointError(
            "loader state: the pipeline must be the one that saved it, but differs (saved → now):"
            "\n  " + "\n  ".join(lines)
        )


def check_digest(digest: str, identity: DataIdentity) -> None:
    """Raise CheckpointError if a state counts other row groups than the loader's."""
    if digest != identity.data_digest:
        raise CheckpointError(
            f"loader state: the row groups to read must be those of the state (digest {digest}), "
            f"but differ ({identity.data_digest}): files were added, removed or rewritten. Undo "
            "that, or start anew"
        )
