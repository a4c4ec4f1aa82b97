"""The folder that a conversion writes: whole or not at all, and never over somebody's data.

On a local file system the files lie in a hidden folder beside the output until all are written,
then that folder takes the output's name. Object stores cannot rename: there each file appears under
its own name when it is whole, and `MARKER_NAME` says `"complete": true` only after the last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyarrow import fs as pafs

from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.sources import Location

MARKER_NAME = "_lastmile_convert.json"  # hidden from readers by its underscore
_VERSION = 1
_FIELD = "--output"


@contextmanager
def open_output(
    output: Location, *, overwrite: bool
) -> Iterator[tuple[Location, Callable[[Mapping[str, Any]], None]]]:
    """Give a folder to write to, and what finishes it with a few facts for the marker.

    Raises ManifestError naming --output: it is not empty and may not be replaced.
    """
    _check_output(output, overwrite=overwrite)
    is_local = isinstance(output.filesystem, pafs.LocalFileSystem)
    folder = _beside(output, "converting") if is_local else output
    try:
        _remove(folder)
        _write_marker(folder, {"complete": False})
        yield folder, lambda facts: _write_marker(folder, {"complete": True, **facts})
        if is_local:
            _take_place(folder, output)
    except BaseException:  # Ctrl-C too leaves nothing behind
        _remove(folder)
        raise


def _check_output(output: Location, *, overwrite: bool) -> None:
    path = output.path.rstrip("/")
    info = output.filesystem.get_file_info(path)
    if info.type == pafs.FileType.NotFound:
        return
    if info.type != pafs.FileType.Directory:
        raise _refuse(output, "must be a folder, is a file; name another")
    selector = pafs.FileSelector(path)
    names = [entry.base_name for entry in output.filesystem.get_file_info(selector)]
    if names and MARKER_NAME not in names:
        raise _refuse(
            output,
            f"must be empty or new, or an earlier conversion's; it holds {min(names)!r}, which "
            "`lastmile convert` did not write; name another folder",
        )
    if names and not overwrite:
        raise _refuse(
            output,
            "must be empty or new, holds a table converted earlier; give --overwrite to replace "
            "it, or name another folder",
        )


def _refuse(output: Location, why: str) -> ManifestError:
    return ManifestError([Problem(path=_FIELD, message=f"{output.uri}: {why}")])


def _beside(output: Location, what: str) -> Location:
    parent, _, name = output.path.rstrip("/").rpartition("/")
    return replace(output, path=f"{parent}/.{name}.{what}")


def _remove(folder: Location) -> None:
    if folder.filesystem.get_file_info(folder.path.rstrip("/")).type != pafs.FileType.NotFound:
        folder.filesystem.delete_dir(folder.path.rstrip("/"))


def _take_place(folder: Location, output: Location) -> None:
    """Rename the folder to the output; what stood there goes after it."""
    earlier = _beside(output, "replaced")
    path, store = output.path.rstrip("/"), output.filesystem
    if store.get_file_info(path).type != pafs.FileType.NotFound:
        _remove(earlier)
        store.move(path, earlier.path)
    store.move(folder.path, path)
    _remove(earlier)


def _write_marker(folder: Location, facts: Mapping[str, Any]) -> None:
    folder.filesystem.create_dir(folder.path.rstrip("/"), recursive=True)
    text = json.dumps({"version": _VERSION, **facts}, indent=2) + "\n"
    with folder.filesystem.open_output_stream(folder.join(MARKER_NAME).path) as stream:
        stream.write(text.encode())
