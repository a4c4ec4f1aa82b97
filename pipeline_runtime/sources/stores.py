"""Asks a store for files, and tells "there is none" from "the store did not answer".

A store that cannot be reached, or that refuses, is a StoreError, which a run retries. Only a clear
answer that nothing is there counts as nothing. `filesystem` runs before this and finds the store of
a URI; checkpoints, the listing of tables and the history ask through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyarrow import fs as pafs

from pipeline_runtime.errors import LastmileError, StoreError
from pipeline_runtime.sources.filesystem import Location


@contextmanager
def asking(uri: str, what: str) -> Iterator[None]:
    """Raise StoreError for whatever a file system raises in the block.

    pyarrow's own file systems raise OSError or ArrowException. Those of fsspec raise what their
    client library does, such as botocore's errors, which have no base class in common. So the block
    must do nothing but ask the store.

    Args:
        uri: the place that is asked for.
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
    """Return what is at a place; its type is NotFound if the store says that nothing is.

    Raises StoreError if the store does not answer.
    """
    with asking(place.uri, what):
        return place.filesystem.get_file_info(place.path.rstrip("/") or "/")


def list_folder(place: Location, what: str) -> list[pafs.FileInfo]:
    """Return what lies in a folder, which is nothing where there is none.

    Raises StoreError if the store does not answer. The folder itself is looked for first: fsspec
    lists a folder that it cannot reach as an empty one.
    """
    if find_info(place, what).type == pafs.FileType.NotFound:
        return []
    with asking(place.uri, what):
        infos: list[pafs.FileInfo] = place.filesystem.get_file_info(
            pafs.FileSelector(place.path, allow_not_found=True)
        )
        return infos


def read_file(place: Location, what: str, max_bytes: int) -> bytes | None:
    """Return a file's content, its first `max_bytes` at most; None if there is no such file.

    Raises StoreError if the store does not answer. The file is looked for first: fsspec says of a
    file that it cannot reach that it is not there.
    """
    if find_info(place, what).type != pafs.FileType.File:
        return None
    with asking(place.uri, what), open_stream(place) as stream:
        content: bytes = stream.read(max_bytes)
        return content


def open_stream(place: Location) -> Any:
    """Open a file to read its bytes as they are stored, whatever its name ends with."""
    return place.filesystem.open_input_stream(place.path, compression=None)
