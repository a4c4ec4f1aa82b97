"""The header of a checkpoint, `checkpoint.json`, which describes it without its state.

`checkpoint` writes the header last, when the state is on the disk, and reads it first. The store
may have damaged a header, and others may write to the store. So parsing is strict: content that is
not exactly a header is rejected.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from pipeline_runtime.errors import CheckpointError

CHECKPOINT_VERSION = 2
# The last field is the header's own digest. Headers of earlier releases have none.
_DIGEST = re.compile(rb', "headerSha256": "([0-9a-f]{64})"\}\s*\Z')


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPart:
    """A file with a part of the metrics history, see `history`."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The value of the metric of `checkpoint.keepBest`, reported with a checkpoint."""

    metric: str
    mode: Literal["Max", "Min"]
    value: float  # finite

    def is_of(self, other: Score) -> bool:
        """Return whether two scores can be compared."""
        return (self.metric, self.mode) == (other.metric, other.mode)

    @property
    def rank(self) -> float:
        """The value, or its negative if lower ones are better."""
        return self.value if self.mode == "Max" else -self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeader:
    """The description of a checkpoint."""

    uri: str
    run_hash: str
    run_config: dict[str, Any]
    epoch: int
    step: int
    world_size: int
    preserve_order: bool
    positions: tuple[dict[str, Any], ...]  # one per rank, see training.position
    num_bytes: int
    sha256: str
    data_digest: str = ""  # of the row groups that the positions count
    attempt: int = 1  # the attempt that wrote it
    chunk_rows: int  # the positions count chunks of at most this many rows
    # Files with the metrics history up to here, oldest rows first; earlier releases have none.
    history: tuple[HistoryPart, ...] | None = None
    score: Score | None = None

    @property
    def name(self) -> str:
        """Name of the checkpoint's folder."""
        return self.uri.rsplit("/", 1)[1]

    def to_bytes(self) -> bytes:
        """Build the content of the file; its last field is the digest of all others."""
        value = {
            "version": CHECKPOINT_VERSION,
            "runHash": self.run_hash,
            "runConfig": self.run_config,
            "epoch": self.epoch,
            "step": self.step,
            "worldSize": self.world_size,
            "preserveOrder": self.preserve_order,
            "positions": list(self.positions),
            "numBytes": self.num_bytes,
            "sha256": self.sha256,
            "dataDigest": self.data_digest,
            "attempt": self.attempt,
            "pieceRows": self.chunk_rows,
        }
        if self.history is not None:
            value["history"] = [asdict(part) for part in self.history]
        if self.score is not None:
            value["score"] = asdict(self.score)
        body = json.dumps(value).encode()
        digest = hashlib.sha256(body).hexdigest()
        return body[:-1] + f', "headerSha256": "{digest}"}}'.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Identifies the run that a checkpoint belongs to; its fields are those of the header."""

    run_hash: str
    run_config: dict[str, Any]
    preserve_order: bool
    data_digest: str  # of the row groups that the position counts
    attempt: int = 1  # rises with every resume
    chunk_rows: int = 0  # the position counts chunks of at most this many rows


# A count of rows or bytes, which fits into 64 bits.
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Index = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]
_Sum = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, alias_generator=to_camel)


class _Checksum(_Model):
    rows: _Count
    sum: _Sum
    sum_of_squares: _Sum


class _OpenGroup(_Model):
    rows: dict[_Index, _Count]
    whole: list[_Count]
    num_chunks: Annotated[_Count | None, Field(alias="numPieces")]


class _Position(_Model):
    """The result of `Position.to_json`."""

    epoch: _Count
    epoch_start: _Count | None = None  # earlier releases do not write it
    batches: _Count
    samples: _Count
    done: list[_Count]
    open: dict[_Index, _OpenGroup]
    checksum: _Checksum
    counts: list[tuple[_Count, _Count, float]]


class _HistoryPart(_Model):
    # The name of a file, never a path to another folder.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*$")]
    rows: _Count


class _Score(_Model):
    metric: str
    mode: Literal["Max", "Min"]
    value: Annotated[float, Field(allow_inf_nan=False)]


class _Version(_Model):
    version: int


class _Header(_Model):
    run_hash: str
    run_config: dict[str, Any]
    epoch: _Count
    step: _Count
    world_size: Annotated[int, Field(ge=1, lt=2**31)]
    preserve_order: bool
    positions: Annotated[tuple[_Position, ...], Field(min_length=1)]
    num_bytes: _Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    data_digest: str
    attempt: Annotated[int, Field(ge=1, lt=2**31)]
    chunk_rows: Annotated[_Count, Field(alias="pieceRows")]
    history: tuple[_HistoryPart, ...] | None = None
    score: _Score | None = None


def parse_header(uri: str, content: bytes) -> CheckpointHeader | None:
    """Parse the content of `checkpoint.json`; return None if it is not a valid header.

    Raises CheckpointError if it is the header of another version, which is not damage.
    """
    found = _DIGEST.search(content)
    if found is not None:
        body = content[: found.start()] + b"}"
        if hashlib.sha256(body).hexdigest() != found[1].decode():
            return None
    try:
        version = _Version.model_validate_json(content).version
        if version != CHECKPOINT_VERSION:
            raise CheckpointError(
                f"{uri}: the checkpoint's version must be {CHECKPOINT_VERSION}, but is {version}. "
                "Resume with the release that wrote it, or start anew without --resume"
            )
        header = _Header.model_validate_json(content)
    except ValidationError:
        return None
    if len(header.positions) != header.world_size:
        return None
    positions = tuple(position.model_dump(by_alias=True) for position in header.positions)
    parts: list[HistoryPart] | None = None
    if header.history is not None:
        parts = [HistoryPart(name=part.name, rows=part.rows) for part in header.history]
    converted = {
        "positions": positions,
        "history": None if parts is None else tuple(parts),
        "score": None if header.score is None else Score(**header.score.model_dump()),
    }
    fields = {name: getattr(header, name) for name in _Header.model_fields}
    return CheckpointHeader(uri=uri, **fields | converted)
