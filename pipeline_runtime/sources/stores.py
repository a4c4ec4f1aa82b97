"""Reads and writes files of a store, and tells "there is no such file" from "no answer".

If a store cannot be reached or refuses the request, StoreError is raised, and the run is retried.
A file counts as missing only if the store clearly answers so. `filesystem` runs before this module
and finds the store of a URI; checkpoints, the listing of tables and the history use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs

from pipeline_runtime.deadline import call_in_time
from pipeline_runtime.errors import LastmileError, StoreError
from pipeline_runtime.files import replacing
from pipeline_runtime.sources.filesystem import Location


@contextmanager
def asking(uri: str, what: str) -> Iterator[None]:
    """Raise StoreError for any error that a file system raises in the block.

    pyarrow's own file systems raise OSError or ArrowException. Those of fsspec raise the errors of
    their client library, such as botocore's, which have no common base class. So the block must do
    nothing but call the store.

    Args:
        uri: the place in the store.
        what: the purpose, as a verb and its object: "list checkpoints".
    """
    try:
        yield
    except LastmileError:
        raise
    except Exception as error:
        raise StoreError(
            f"{uri}: cannot {what}: {str(error) or type(error).__name__}. Check that the store can "
            "be reached from here, has room, and lets in the credentials of the environment; then "
            "try again"
        ) from error


def find_info(place: Location, what: str) -> pafs.FileInfo:
    """Return the file info of a place; its type is NotFound only if the store says so.

    Every use of a store begins with this request, so it has a deadline.

    Raises StoreError if the store does not answer in time.
    """
    look = partial(place.filesystem.get_file_info, place.path.rstrip("/") or "/")
    with asking(place.uri, what):
        is_local = isinstance(place.filesystem, pafs.LocalFileSystem)
        return look() if is_local else call_in_time(look)


def list_folder(place: Location, what: str) -> list[pafs.FileInfo]:
    """Return the entries of a folder; none if the folder does not exist.

    Raises StoreError if the store does not answer. The folder is looked up first, because fsspec
    lists a folder that it cannot reach as an empty one.
    """
    if find_info(place, what).type == pafs.FileType.NotFound:
        return []
    with asking(place.uri, what):
        infos: list[pafs.FileInfo] = place.filesystem.get_file_info(
            pafs.FileSelector(place.path.rstrip("/") or "/", allow_not_found=True)
        )
        return infos


def read_file(place: Location, what: str, max_bytes: int) -> bytes | None:
    """Return up to `max_bytes` of a file's content; None if there is no such file.

    Raises StoreError if the store does not answer. The file is looked up first, because fsspec
    reports a file that it cannot reach as missing.
    """
    if find_info(place, what).type != pafs.FileType.File:
        return None
    with asking(place.uri, what), open_stream(place) as stream:
        content: bytes = stream.read(max_bytes)
        return content


def write_files(folder: Location, files: Mapping[str, bytes], what: str) -> None:
    """Write files, by name, into a folder, which is created if missing.

    Raises StoreError if the store refuses.
    """
    with asking(folder.uri, what):
        folder.filesystem.create_dir(folder.path, recursive=True)
        for name, content in files.items():
            with open_output(folder.join(name)) as stream:
                stream.write(content)


@contextmanager
def open_output(place: Location) -> Iterator[Any]:
    """Open a file to write its bytes; a local one replaces the old file, and follows no link."""
    if isinstance(place.filesystem, pafs.LocalFileSystem):
        with replacing(Path(place.path)) as file:
            yield file
    else:
        with place.filesystem.open_output_stream(place.path) as stream:
            yield stream


def open_stream(place: Location) -> Any:
    """Open a file to read its bytes as stored: a suffix like `.gz` does not decompress it."""
    return place.filesystem.open_input_stream(place.path, compression=None)
