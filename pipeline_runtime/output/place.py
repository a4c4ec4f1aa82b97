"""The folder of a table, what stands there, and where a run stages its files.

Staged files never lie where readers of the table look. On a local file system they lie beside the
table, so that one rename puts the whole table in place: `build/_staging/scores/RUN/` for
`build/scores/`. On an object store they lie below the table, since credentials may be limited to
it: `scores/_staging/RUN/`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pyarrow import fs as pafs

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.output.names import STAGING_FOLDER
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.output_manifest import OutputManifest, read_output_manifest
from pipeline_runtime.sources.stores import find_info, list_folder

Mode = Literal["Fail", "Overwrite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table's folder, and the folder that holds the staged files of all its runs."""

    table: Storage
    staging: Storage

    def run(self, name: str) -> Storage:
        """Return the folder of a run's staged files."""
        return self.staging.below(name)


def open_place(location: Location) -> Place:
    """Find where a table is staged.

    Raises OutputRefused if the folder cannot be replaced by a rename.
    """
    location = replace(location, uri=location.uri.rstrip("/"), path=location.path.rstrip("/"))
    if not isinstance(location.filesystem, pafs.LocalFileSystem):
        table = Storage(location)
        return Place(table=table, staging=table.below(STAGING_FOLDER))
    path = Path(os.path.realpath(location.path))  # a link to a folder stays a link
    if path.parent == path or os.path.ismount(path):
        raise OutputRefused(
            f"{location.uri}: must be a folder below a mounted one, but is the mounted folder "
            "itself, which no rename can replace. Name a folder in it"
        )
    beside = replace(location, uri=str(path.parent), path=str(path.parent))
    return Place(
        table=Storage(replace(location, path=str(path))),
        staging=Storage(beside.join(STAGING_FOLDER, path.name)),
    )


def check_table(
    table: Storage, mode: Mode, own_id: str | None = None, *, has_begun: bool = False
) -> OutputManifest | None:
    """Return the manifest of the table that a run would replace; None if there is none.

    Args:
        own_id: id of the run's own table, which may stand there.
        has_begun: whether that run has begun to put files there.

    Raises OutputRefused if the run may not write there.
    """
    place = table.location
    info = find_info(place, "look for an existing output")
    if info.type == pafs.FileType.NotFound:
        return None
    if info.type == pafs.FileType.File:
        raise OutputRefused(f"{table.uri}: must be a folder, but is a file. Name another folder")
    entries = [info.base_name for info in list_folder(place, "look for an existing output")]
    others = [name for name in entries if name != STAGING_FOLDER]
    manifest = read_output_manifest(place) if others else None
    if manifest is None and not table.is_local:  # empty folders are none on an object store
        others = [name for name in table.sizes() if not name.startswith(f"{STAGING_FOLDER}/")]
    if manifest is None and (has_begun or not others):
        return None
    if manifest is None:
        raise OutputRefused(
            f"{table.uri}: must be empty, new, or a table that Lastmile wrote, but holds "
            f"{min(others)!r} and no list of files. Name another folder, or empty it yourself"
        )
    if mode == "Fail" and manifest.id != own_id:
        raise OutputRefused(
            f"{table.uri}: must be empty or new, but holds the table of run {manifest.run} "
            f"({manifest.rows:,} rows). Set spec.output.mode to Overwrite to replace it, or name "
            "another folder"
        )
    return manifest
