"""Checkpoints on the artifacts store: written so that one is either whole or not there.

A checkpoint is a folder `step-…`, a new one each time, with the state and, written last and renamed
into place, `checkpoint.json`, which names the run's hash, the position, and the size and SHA-256 of
the state. A folder without it, or whose state does not match it, is torn and passed over. Older
ones are removed only after a newer one is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyarrow import fs as pafs

from pipeline_runtime.config import diff_configs
from pipeline_runtime.errors import CheckpointError, StoreError
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import asking, find_info, list_folder, open_stream, read_file

CHECKPOINT_VERSION = 2
_STATE_FILE = "state.pt"
_HEADER_FILE = "checkpoint.json"
# The longest list of differences that a person reads when a checkpoint is refused.
_MAX_DIFFERENCES = 20
# A header has a few bytes for each group of rows that was consumed: this is for millions of them.
_MAX_HEADER_BYTES = 256 << 20
_LOOKING = "look for checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeader:
    """What is known about a checkpoint without loading its state."""

    uri: str
    run_hash: str
    run_config: dict[str, Any]
    epoch: int
    step: int
    world_size: int
    preserve_order: bool
    positions: tuple[dict[str, Any], ...]  # a rank each, see training.position
    num_bytes: int
    sha256: str
    data_digest: str = ""  # of the row groups that the positions count
    attempt: int = 1  # which made it
    piece_rows: int  # rows of a piece at most, in which the positions count

    def to_json(self) -> dict[str, Any]:
        return {
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
            "pieceRows": self.piece_rows,
        }


def _parse_header(uri: str, text: bytes) -> CheckpointHeader:
    value = json.loads(text)
    if value.get("version") != CHECKPOINT_VERSION:
        raise CheckpointError(
            f"{uri}: checkpoint version must be {CHECKPOINT_VERSION}, got "
            f"{value.get('version')!r}; "
            "resume with the release that wrote it, or start anew without --resume"
        )
    return CheckpointHeader(
        uri=uri,
        run_hash=value["runHash"],
        run_config=value["runConfig"],
        epoch=value["epoch"],
        step=value["step"],
        world_size=value["worldSize"],
        preserve_order=value["preserveOrder"],
        positions=tuple(value["positions"]),
        num_bytes=value["numBytes"],
        sha256=value["sha256"],
        data_digest=value["dataDigest"],
        attempt=value["attempt"],
        piece_rows=value["pieceRows"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStore:
    """The checkpoints of one experiment."""

    location: Location
    keep: int = 2

    def save(self, state: dict[str, Any], header: dict[str, Any]) -> str:
        """Write a checkpoint and return its URI.

        `header` holds the fields of CheckpointHeader but uri, num_bytes and sha256. Raises
        StoreError if the store refuses (disk full, say); earlier checkpoints are still there.
        """
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        what = f"write a checkpoint of {len(data):,} bytes (earlier ones are kept)"
        place = self._new_place(f"step-{header['step']:010d}", what)
        full = CheckpointHeader(
            uri=place.uri, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), **header
        )
        try:
            with asking(place.uri, what):
                self._write(place, data, full)
        except StoreError:
            # If it stays: it holds no checkpoint.json, so nothing will take it for a checkpoint.
            with contextlib.suppress(StoreError), asking(place.uri, "remove what was written"):
                _remove(place)
            raise
        return place.uri

    def _new_place(self, name: str, what: str) -> Location:
        """Choose a folder that is not there: a step may be saved twice, or again after a kill."""
        places = itertools.chain([name], (f"{name}-{index:02d}" for index in itertools.count(2)))
        for place in map(self.location.join, places):
            if find_info(place, what).type == pafs.FileType.NotFound:
                return place
        raise AssertionError("unreachable: there are always more names")

    def _write(self, place: Location, data: bytes, header: CheckpointHeader) -> None:
        filesystem = place.filesystem
        filesystem.create_dir(place.path, recursive=True)
        _write_file(filesystem, place.join(_STATE_FILE).path, data)
        text = json.dumps(header.to_json()).encode()
        partial = place.join(_HEADER_FILE + ".partial").path
        _write_file(filesystem, partial, text)
        filesystem.move(partial, place.join(_HEADER_FILE).path)

    def headers(self) -> list[CheckpointHeader]:
        """Return headers of the checkpoints that look whole, newest first.

        Raises StoreError if the store does not answer, CheckpointError for another version.
        """
        found = [self._header(self.location.join(name)) for name in self._names()]
        return [header for header in found if header is not None]

    def _names(self) -> list[str]:
        """Return the names of the checkpoints' folders, newest first."""
        names = [info.base_name for info in list_folder(self.location, _LOOKING)]
        return sorted((name for name in names if name.startswith("step-")), reverse=True)

    def _header(self, place: Location) -> CheckpointHeader | None:
        text = read_file(place.join(_HEADER_FILE), _LOOKING, _MAX_HEADER_BYTES)
        if text is None:
            return None
        try:
            header = _parse_header(place.uri, text)
        except (ValueError, KeyError, TypeError):
            return None
        info = find_info(place.join(_STATE_FILE), _LOOKING)
        return header if info.size == header.num_bytes else None

    def load(self, header: CheckpointHeader) -> dict[str, Any]:
        """Return the state.

        Raises StoreError if its bytes cannot be read, or are not those that were written: every
        trainer must get them, and the next attempt may.
        """
        place = self.location.join(header.uri.rsplit("/", 1)[1], _STATE_FILE)
        with asking(header.uri, "read the state on a trainer"), open_stream(place) as stream:
            data = stream.read()
        got = hashlib.sha256(data).hexdigest()
        if got != header.sha256:
            raise StoreError(
                f"{header.uri}: the state's SHA-256 must be {header.sha256}, got {got}; the file "
                "is damaged: remove this folder to resume from the checkpoint before it"
            )
        # The state was written by this program and its hash holds, so unpickling it is safe enough.
        state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        return state

    def remove_old(self, newest: str) -> None:
        """Remove all but the newest whole checkpoints, `newest` (a URI) always among them.

        Raises StoreError if the store refuses, CheckpointError for one of another version; the old
        ones may stay.
        """
        kept = [header.uri.rsplit("/", 1)[1] for header in self.headers()[: self.keep]]
        kept.append(newest.rsplit("/", 1)[1])
        for name in self._names():
            if name not in kept:
                place = self.location.join(name)
                with asking(place.uri, "remove an old checkpoint, which may be removed by hand"):
                    _remove(place)


def _remove(place: Location) -> None:
    """Remove a checkpoint: first its header, so that what may stay is no checkpoint."""
    header = place.join(_HEADER_FILE).path
    if place.filesystem.get_file_info(header).type == pafs.FileType.File:
        place.filesystem.delete_file(header)
    place.filesystem.delete_dir(place.path)


def _write_file(filesystem: Any, path: str, data: bytes) -> None:
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)


def find_resumable(
    stores: Sequence[CheckpointStore], run_hash: str, run_config: dict[str, Any]
) -> tuple[CheckpointStore, CheckpointHeader] | None:
    """The newest whole checkpoint of this run, in stores given newest first; None if there is none.

    Raises CheckpointError, saying what differs, if there are only checkpoints of other runs.
    """
    newest: CheckpointHeader | None = None
    for store in stores:
        for header in store.headers():
            if header.run_hash == run_hash:
                return store, header
            newest = newest or header
    if newest is None:
        return None
    differences = diff_configs(newest.run_config, run_config)[:_MAX_DIFFERENCES]
    listed = "".join(f"\n  {line}" for line in differences)
    raise CheckpointError(
        f"{newest.uri}: the checkpoint is of run {newest.run_hash}, this is run {run_hash}; what "
        f"differs:{listed}\nundo the change, or start anew without --resume"
    )
