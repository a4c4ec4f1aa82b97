"""Checkpoints on the artifacts store, written so that each is either whole or absent.

A checkpoint is a new folder `step-…` that holds the state and `checkpoint.json`. The latter (see
`header`) has the state's size and SHA-256; it is written last and renamed into place. On
local disks, each file and folder is synced before the header gets its name. So

- a folder without a header was never whole, because the run was killed during the write. It is
  ignored;
- a folder whose header cannot be read, or does not match the state, was whole and is *damaged*. A
  resume skips it, reports it, and takes the next older checkpoint. If all are damaged, the resume
  fails instead of starting anew.

Older checkpoints are removed only after a newer one is whole; the best one by `checkpoint.keepBest`
stays. Its header has the score, so that it is found again after a kill. Torch is imported by `save`
and `load`: finding the checkpoint to resume from is a part of planning, which goes without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyarrow import fs as pafs

from pipeline_runtime.config import diff_configs, hash_config, upgrade_config
from pipeline_runtime.config.training import KeepBest
from pipeline_runtime.errors import CheckpointError, StoreError
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.durable import make_folder, rename_file, write_file
from pipeline_runtime.sources.stores import asking, find_info, list_folder, open_stream, read_file
from pipeline_runtime.training.checkpoints.header import CheckpointHeader, Score, parse_header

_STATE_FILE = "state.pt"
_HEADER_FILE = "checkpoint.json"
# The error about a checkpoint of another run lists this many differences at most.
_MAX_DIFFERENCES = 20
# A header has a few bytes per consumed group of rows; this is enough for millions of groups.
_MAX_HEADER_BYTES = 256 << 20
# States are read in parts of this size to verify them.
_CHUNK_BYTES = 8 << 20
_LOOKING = "look for checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStore:
    """The checkpoints of one run.

    Attributes:
        keep: number of whole checkpoints to keep.
        keep_best: the metric by which one more is kept, if any.
        damaged: names of folders that were found damaged; they are ignored, and removed with the
            old ones.
        trust_pickle: True if states may hold objects of any type, see `safe_state`.
    """

    location: Location
    keep: int = 2
    keep_best: KeepBest | None = None
    damaged: frozenset[str] = frozenset()
    trust_pickle: bool = False

    def save(self, state: dict[str, Any], header: dict[str, Any], *, checked: bool = False) -> str:
        """Write a checkpoint and return its URI.

        Args:
            state: `user`, which the entrypoint passed to `report`, `rng`, one state per rank, and
                perhaps `measured`, what steps measured of each rank's rows.
            header: the fields of CheckpointHeader except uri, num_bytes and sha256.
            checked: True to check first that the state can be loaded again.

        Raises:
            StoreError: the store refuses, for example because it is full; earlier checkpoints stay.
            ManifestError: the check failed, see `safe_state`.
        """
        import torch

        from pipeline_runtime.training.checkpoints.safe_state import check_state

        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        if checked and not self.trust_pickle:
            check_state(state["user"], data)
        what = f"write a checkpoint of {len(data):,} bytes (earlier ones are kept)"
        place = self._new_place(f"step-{header['step']:010d}", what)
        full = CheckpointHeader(
            uri=place.uri, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), **header
        )
        try:
            with asking(place.uri, what):
                _write(place, data, full)
        except StoreError:
            # If this fails, the folder has no checkpoint.json, so it is never read as a checkpoint.
            with contextlib.suppress(StoreError), asking(place.uri, "remove what was written"):
                _remove(place)
            raise
        return place.uri

    def _new_place(self, name: str, what: str) -> Location:
        """Choose a folder that does not exist: a step may be saved twice, or again after a kill."""
        places = itertools.chain([name], (f"{name}-{index:02d}" for index in itertools.count(2)))
        for place in map(self.location.join, places):
            if find_info(place, what).type == pafs.FileType.NotFound:
                return place
        raise AssertionError("unreachable: there are always more names")

    def headers(self) -> list[CheckpointHeader]:
        """Return headers of the checkpoints that look whole, newest first.

        Raises StoreError if the store does not answer, CheckpointError for another version.
        """
        found = (each for each in self.candidates() if isinstance(each, CheckpointHeader))
        return [header for header in found if self._has_its_size(header)]

    def candidates(self) -> Iterator[CheckpointHeader | str]:
        """Yield, newest first, the header of each checkpoint, or its URI if the header is damaged.

        The state of a yielded header may still be damaged. Raises the errors of `headers`.
        """
        for name in self._names():
            place = self.location.join(name)
            content = read_file(place.join(_HEADER_FILE), _LOOKING, _MAX_HEADER_BYTES)
            if content is None or name in self.damaged:
                continue
            yield parse_header(place.uri, content) or place.uri

    def _names(self) -> list[str]:
        """Return the names of the checkpoints' folders, newest first."""
        names = [info.base_name for info in list_folder(self.location, _LOOKING)]
        return sorted((name for name in names if name.startswith("step-")), reverse=True)

    def _has_its_size(self, header: CheckpointHeader) -> bool:
        info = find_info(self._state_of(header), _LOOKING)
        return bool(info.type == pafs.FileType.File and info.size == header.num_bytes)

    def is_whole(self, header: CheckpointHeader) -> bool:
        """Read the whole state, and return whether it is the one that was written.

        Raises StoreError if the store does not answer.
        """
        if not self._has_its_size(header):
            return False
        digest = hashlib.sha256()
        with asking(header.uri, "verify the state"), open_stream(self._state_of(header)) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest() == header.sha256

    def load(self, header: CheckpointHeader) -> dict[str, Any]:
        """Return the state.

        Raises:
            StoreError: the bytes cannot be read, or are not those that were written. All trainers
                must load the same state, so this ends the attempt; the next one verifies it again.
            CheckpointError: the state holds objects that are not safe to load.
        """
        from pipeline_runtime.training.checkpoints.safe_state import load_state

        with (
            asking(header.uri, "read the state on a trainer"),
            open_stream(self._state_of(header)) as stream,
        ):
            data = stream.read()
        got = hashlib.sha256(data).hexdigest()
        if got != header.sha256:
            raise StoreError(
                f"{header.uri}: the state's SHA-256 must be {header.sha256}, but is {got} as a "
                "trainer reads it. Run again with --resume, which skips a damaged checkpoint"
            )
        return load_state(header.uri, data, trust_pickle=self.trust_pickle)

    def _state_of(self, header: CheckpointHeader) -> Location:
        return self.location.join(header.name, _STATE_FILE)

    def remove_old(self, newest: str) -> None:
        """Remove all but the newest whole checkpoints and the best one.

        The checkpoint at the URI `newest` stays.

        Raises StoreError if the store refuses, and CheckpointError for a checkpoint of another
        version; old checkpoints may remain then.
        """
        headers = self.headers()
        kept = [header.name for header in headers[: self.keep]]
        kept.append(newest.rsplit("/", 1)[1])
        best = self.find_best(headers)
        if best is not None:
            kept.append(best.name)
        for name in self._names():
            if name not in kept:
                place = self.location.join(name)
                with asking(place.uri, "remove an old checkpoint, which may be removed by hand"):
                    _remove(place)

    def score(self, metrics: Mapping[str, float]) -> Score | None:
        """Return the score of a checkpoint by the metrics of its step; None without the metric."""
        if self.keep_best is None:
            return None
        value = metrics.get(self.keep_best.metric)
        if value is None or not math.isfinite(value):
            return None
        return Score(metric=self.keep_best.metric, mode=self.keep_best.mode, value=value)

    def find_best(self, headers: Sequence[CheckpointHeader]) -> CheckpointHeader | None:
        """Return the best checkpoint by `keep_best`, the earliest of equal ones; None if none is.

        Args:
            headers: as `headers` returns them.
        """
        if self.keep_best is None:
            return None
        wanted = Score(metric=self.keep_best.metric, mode=self.keep_best.mode, value=0.0)
        return find_best(headers, wanted)


def find_best(headers: Sequence[CheckpointHeader], like: Score) -> CheckpointHeader | None:
    """Return the checkpoint with the best score of the metric and mode of `like`.

    Args:
        headers: newest first; the earliest of equal ones is returned.
    """
    scored = [(each.score.rank, each) for each in headers if each.score and each.score.is_of(like)]
    return max(reversed(scored), key=lambda pair: pair[0])[1] if scored else None


def _write(place: Location, data: bytes, header: CheckpointHeader) -> None:
    make_folder(place)
    write_file(place.join(_STATE_FILE), data)
    partial = place.join(_HEADER_FILE + ".partial")
    write_file(partial, header.to_bytes())
    rename_file(partial, place.join(_HEADER_FILE))


def _remove(place: Location) -> None:
    """Remove a checkpoint, its header first: a kill then leaves a folder that is not whole."""
    header = place.join(_HEADER_FILE).path
    if place.filesystem.get_file_info(header).type == pafs.FileType.File:
        place.filesystem.delete_file(header)
    place.filesystem.delete_dir(place.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumable:
    """A checkpoint to resume from, whose state was verified.

    Attributes:
        damaged: URIs of newer checkpoints that were skipped.
    """

    store: CheckpointStore
    header: CheckpointHeader
    damaged: tuple[str, ...] = ()


def find_resumable(
    stores: Sequence[CheckpointStore], run_hash: str, run_config: dict[str, Any]
) -> Resumable | None:
    """Find the newest whole checkpoint of this run; None if none was ever whole.

    Args:
        stores: the stores to search, newest first.

    Raises:
        CheckpointError: all checkpoints belong to other runs (the error lists the differences), or
            one has another version.
        StoreError: the store does not answer, or all checkpoints of this run are damaged.
    """
    damaged: list[str] = []
    other: CheckpointHeader | None = None
    for store in stores:
        for found in store.candidates():
            if isinstance(found, str):
                damaged.append(found)
            elif run_hash not in (found.run_hash, hash_config(upgrade_config(found.run_config))):
                other = other or found
            elif store.is_whole(found):
                names = frozenset(uri.rsplit("/", 1)[1] for uri in damaged if _is_in(store, uri))
                store = replace(store, damaged=names)
                return Resumable(store=store, header=found, damaged=tuple(damaged))
            else:
                damaged.append(found.uri)
    if damaged:
        raise StoreError(
            f"no whole checkpoint is left; these are damaged: {', '.join(damaged)}. Restore one of "
            "them from a backup, or remove them to start from the beginning"
        )
    if other is None:
        return None
    differences = diff_configs(upgrade_config(other.run_config), run_config)[:_MAX_DIFFERENCES]
    listed = "".join(f"\n  {line}" for line in differences)
    raise CheckpointError(
        f"{other.uri}: the checkpoint belongs to run {other.run_hash}, but this is run {run_hash}. "
        f"They differ in:{listed}\nundo the change, or start anew without --resume"
    )


def _is_in(store: CheckpointStore, uri: str) -> bool:
    return uri.rsplit("/", 1)[0] == store.location.uri.rstrip("/")
