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

import pyarrow as pa
import torch
from pyarrow import fs as pafs

from pipeline_runtime.config import diff_configs
from pipeline_runtime.errors import CheckpointError
from pipeline_runtime.sources import Location

CHECKPOINT_VERSION = 2
_STATE_FILE = "state.pt"
_HEADER_FILE = "checkpoint.json"
# The longest list of differences that a person reads when a checkpoint is refused.
_MAX_DIFFERENCES = 20


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
        """Write a checkpoint; returns its URI.

        `header` holds the fields of CheckpointHeader but uri, num_bytes and sha256. Raises
        CheckpointError if the store refuses (disk full, say); what was there before is still there.
        """
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        place = self._new_place(f"step-{header['step']:010d}")
        full = CheckpointHeader(
            uri=place.uri, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), **header
        )
        try:
            self._write(place, data, full)
        except (OSError, pa.ArrowException) as error:
            self._discard(place)
            raise CheckpointError(
                f"{place.uri}: cannot write a checkpoint of {len(data):,} bytes: {error}; free "
                "space or change spec.artifacts.uri (earlier checkpoints are kept)"
            ) from error
        return place.uri

    def _new_place(self, name: str) -> Location:
        """A folder that is not there: an epoch's last step may be saved twice, or after a kill."""
        places = itertools.chain([name], (f"{name}-{index:02d}" for index in itertools.count(2)))
        for place in map(self.location.join, places):
            if self.location.filesystem.get_file_info(place.path).type == pafs.FileType.NotFound:
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

    def _discard(self, place: Location) -> None:
        # If it stays: it holds no checkpoint.json, so nothing will take it for a checkpoint.
        with contextlib.suppress(OSError):
            place.filesystem.delete_dir(place.path)

    def headers(self) -> list[CheckpointHeader]:
        """Headers of the checkpoints that look whole, newest first; torn ones are passed over."""
        selector = pafs.FileSelector(self.location.path, allow_not_found=True)
        infos = self.location.filesystem.get_file_info(selector)
        names = sorted(
            (i.base_name for i in infos if i.base_name.startswith("step-")), reverse=True
        )
        found = [self._header(self.location.join(name)) for name in names]
        return [header for header in found if header is not None]

    def _header(self, place: Location) -> CheckpointHeader | None:
        try:
            with place.filesystem.open_input_stream(place.join(_HEADER_FILE).path) as stream:
                header = _parse_header(place.uri, stream.read())
            info = place.filesystem.get_file_info(place.join(_STATE_FILE).path)
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None
        return header if info.size == header.num_bytes else None

    def load(self, header: CheckpointHeader) -> dict[str, Any]:
        """The state. Raises CheckpointError if its bytes are not those that were written."""
        path = self.location.join(header.uri.rsplit("/", 1)[1], _STATE_FILE).path
        try:
            with self.location.filesystem.open_input_stream(path) as stream:
                data = stream.read()
        except (OSError, pa.ArrowException) as error:
            raise CheckpointError(
                f"{header.uri}: the state must be readable on every trainer: {error}; "
                "check spec.artifacts.uri, then run again with --resume"
            ) from error
        got = hashlib.sha256(data).hexdigest()
        if got != header.sha256:
            raise CheckpointError(
                f"{header.uri}: the state's SHA-256 must be {header.sha256}, got {got}; the file "
                "is damaged: remove this folder to resume from the checkpoint before it"
            )
        # The state was written by this program and its hash holds, so unpickling it is safe enough.
        state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        return state

    def remove_old(self, newest: str) -> None:
        """Remove all but the newest whole checkpoints, `newest` (a URI) always among them.

        Raises CheckpointError if the store refuses; what it names may stay.
        """
        selector = pafs.FileSelector(self.location.path, allow_not_found=True)
        try:
            kept = [header.uri.rsplit("/", 1)[1] for header in self.headers()[: self.keep]]
            kept.append(newest.rsplit("/", 1)[1])
            for info in self.location.filesystem.get_file_info(selector):
                if info.base_name.startswith("step-") and info.base_name not in kept:
                    self.location.filesystem.delete_dir(info.path)
        except (OSError, pa.ArrowException) as error:
            raise CheckpointError(
                f"{self.location.uri}: cannot remove an old checkpoint: {error}; remove it by hand"
            ) from error


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
