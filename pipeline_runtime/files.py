"""Write files on this machine whole or not at all.

A reader never finds half a file, and a link in the folder is never followed: the content goes to a
new file beside the place of the old one, which it then replaces.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# O_EXCL follows no link. The usual mode, since others read what runs leave; `tempfile` has 0600.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_MODE = 0o666


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` if the block succeeds.

    It lies in the same folder, since a rename is atomic only within one file system, and is removed
    if the block fails. Its name cannot be guessed, so nobody can put a file there before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, _FLAGS, _MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            # Or a power cut may keep the rename and lose the bytes: ext4 delays allocation.
            os.fsync(descriptor)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
