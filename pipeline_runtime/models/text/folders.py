"""Models that are a folder of files, or a single file: found, pinned by digest, and made local.

The planner hashes the files and pins the digest. A worker reads the files where they are if that is
on this machine, or else copies them into its cache, and refuses them if their digest has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from pyarrow import fs as pafs

from pipeline_runtime.errors import StepError
from pipeline_runtime.iceberg.pins import ModelPin
from pipeline_runtime.sources import Location, Opening, open_location
from pipeline_runtime.sources.stores import asking, find_info, open_stream
from pipeline_runtime.steps.checks import broken

# A model has some ten files; hundreds of shards at most.
_MAX_FILES = 2000
_PART_BYTES = 8 << 20
_READING = "read a model"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf")
_FOLDER, _FILE = pafs.FileType.Directory, pafs.FileType.File


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        place: the folder, or the file.
        names: paths of the files, relative to the folder; one name of a single file.
        sha256: digest of all names and contents.
    """

    place: Location
    is_file: bool
    names: tuple[str, ...]
    sha256: str

    @property
    def gguf(self) -> str | None:
        """The name of a file in GGUF's format that is the whole model; None of a folder."""
        return self.names[0] if self.is_file else None

    def fetch(self) -> Path:
        """Return the folder of the files on this machine.

        Raises StepError if they are not those of the plan, StoreError if a store does not answer.
        """
        if isinstance(self.place.filesystem, pafs.LocalFileSystem):
            self._check(hash_files(self.places))
            path = Path(self.place.path.rstrip("/"))
            return path.parent if self.is_file else path
        folder = _find_cache() / self.sha256
        if not folder.is_dir():
            self._copy(folder)
        return folder

    @contextmanager
    def fetch_settings(self) -> Iterator[Path]:
        """Give a folder of the files on this machine, of which large weights may be missing.

        The planner needs no weights, and may have no room for them. A file that is the whole model
        has everything in it.
        """
        if self.is_file or isinstance(self.place.filesystem, pafs.LocalFileSystem):
            yield self.fetch()
            return
        settings = [name for name in self.names if not name.endswith(_WEIGHTS)]
        with tempfile.TemporaryDirectory() as temporary:
            hash_files({name: self.place.join(name) for name in settings}, Path(temporary))
            yield Path(temporary)

    def _copy(self, folder: Path) -> None:
        """Copy the files: all of them, or none, whatever other processes do at the same time."""
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".copy-") as temporary:
                whole = Path(temporary, "model")
                self._check(hash_files(self.places, whole))
                if not folder.is_dir():  # else another process was faster
                    os.rename(whole, folder)
        except OSError as error:
            if folder.is_dir():
                return
            raise StepError(
                f"{self.place.uri}: cannot copy the model to {folder.parent}: {error}; make room "
                "there, or name another folder by XDG_CACHE_HOME"
            ) from error

    @property
    def places(self) -> Mapping[str, Location]:
        """The place of each file, by its name."""
        if self.is_file:
            return {self.names[0]: self.place}
        return {name: self.place.join(name) for name in self.names}

    def _check(self, found: str) -> None:
        if found != self.sha256:
            raise StepError(
                f"{self.place.uri}: the model's files must have SHA-256 {self.sha256}, as when the "
                f"run began, but have {found}; restore them, or start a new run"
            )


def open_files(uri: str, opening: Opening, *, needs: str, suffixes: tuple[str, ...]) -> ModelFiles:
    """Find the files of a model, and pin them.

    Args:
        needs: a file that a folder must have, so that another folder is not read as a whole.
        suffixes: those of a model that is a single file.

    Raises a broken rule if there is no model, or the run began with another one.
    """
    place = open_location(uri, opening.storage_root)
    kind = find_info(place, _READING).type
    name = place.path.rstrip("/").rpartition("/")[2]
    is_file = kind == _FILE and name.endswith(suffixes)
    names: tuple[str, ...] = (name,)
    if kind == _FOLDER and find_info(place.join(needs), _READING).type == _FILE:
        names = _list_names(place)
    elif not is_file:
        found = {_FILE: "is another file", _FOLDER: f"is a folder without {needs}"}
        file = "".join(f", or a file {suffix}" for suffix in suffixes)
        raise broken(
            f"must be a folder with {needs}{file}, but {place.uri} "
            f"{found.get(kind, 'does not exist')}; download the model there first, since nothing "
            "is fetched from a hub"
        )
    files = ModelFiles(place=place, is_file=is_file, names=names, sha256="")
    sha256 = hash_files(files.places)
    pinned = opening.pins.find_model(place.full_uri)
    if pinned is not None and pinned.sha256 != sha256:
        raise broken(
            f"must have the files that this run began with (SHA-256 {pinned.sha256}), but they "
            f"have {sha256}; restore them, or start a new run"
        )
    opening.pins.pin_model(ModelPin(source=place.full_uri, uri=place.full_uri, sha256=sha256))
    return replace(files, sha256=sha256)


def _list_names(folder: Location) -> tuple[str, ...]:
    """Return the files below a folder, without hidden ones, such as those of Git and of hubs."""
    root = folder.path.rstrip("/")
    with asking(folder.uri, _READING):
        infos = folder.filesystem.get_file_info(pafs.FileSelector(root, recursive=True))
    paths = (info.path.removeprefix(root).strip("/") for info in infos if info.type == _FILE)
    names = sorted(path for path in paths if not any(p.startswith(".") for p in path.split("/")))
    if len(names) > _MAX_FILES:
        raise broken(
            f"must have at most {_MAX_FILES:,} files, but {folder.uri} has {len(names):,}; give "
            "the folder of one model"
        )
    return tuple(names)


def hash_files(places: Mapping[str, Location], copy_to: Path | None = None) -> str:
    """Return the SHA-256 of files, names included; for one file, that of its content.

    Args:
        places: the files by their names.
        copy_to: a folder that they are copied into.

    Raises StoreError if a file cannot be read.
    """
    digests = {}
    for name, place in sorted(places.items()):
        digest = hashlib.sha256()
        copy = _create(copy_to / name) if copy_to is not None else nullcontext()
        with copy as file:
            for part in _read_parts(place):
                digest.update(part)
                if file is not None:
                    file.write(part)
        digests[name] = digest.hexdigest()
    if len(digests) == 1:
        return next(iter(digests.values()))
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _read_parts(place: Location) -> Iterator[bytes]:
    with asking(place.uri, _READING), open_stream(place) as stream:
        while part := stream.read(_PART_BYTES):
            yield part


def _create(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("xb")


def _find_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lastmile" / "models"
