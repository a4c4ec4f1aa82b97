"""Packs a folder of the user's modules and uploads it, for `lastmile submit`.

The zip is named by its content, so the same code is uploaded once and another is another run. One
folder is on top, which Ray takes off. https://docs.ray.io, runtime environments, remote URIs
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

from pipeline_runtime.errors import SourceError

# Every node fetches it before the driver starts; larger things belong into the image.
MAX_CODE_BYTES = 100 << 20
_TOP = "code"
_LEFT_OUT = frozenset({"__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache"})
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say: the same bytes every time
_HASH_CHARS = 16


def upload_code(folder: Path, storage_root: str) -> str:
    """Upload a folder to `code/` below the storage root, unless it is there; returns its URI.

    Raises:
        SourceError: it is no folder, too large, or the store refuses it.
    """
    content = pack(folder)
    name = f"{_TOP}/{hashlib.sha256(content).hexdigest()[:_HASH_CHARS]}.zip"

    import pyarrow.fs as pafs

    from pipeline_runtime.sources.filesystem import has_scheme, open_location
    from pipeline_runtime.sources.stores import find_info

    location = open_location(storage_root).join(name)
    try:
        if find_info(location, "look for the code").type != pafs.FileType.File:
            location.filesystem.create_dir(str(Path(location.path).parent), recursive=True)
            with location.filesystem.open_output_stream(location.path) as stream:
                stream.write(content)
    except OSError as error:
        raise SourceError(
            f"{location.uri}: the code of {folder} could not be uploaded: {error}; check the "
            "credentials in the environment"
        ) from error
    return location.uri if has_scheme(location.uri) else f"file://{location.path}"


def pack(folder: Path) -> bytes:
    """A folder as a zip: the same bytes for the same files. Raises SourceError."""
    if not folder.is_dir():
        raise SourceError(f"spec.code.workingDir: must be a folder, got {str(folder)!r}")
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _LEFT_OUT & set(path.relative_to(folder).parts)
    ]
    num_bytes = sum(path.stat().st_size for path in files)
    if num_bytes > MAX_CODE_BYTES:
        raise SourceError(
            f"{folder}: code must have at most {MAX_CODE_BYTES:,} bytes, got {num_bytes:,}; build "
            "large files into spec.image, or read them from the store"
        )
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as package:
        for path in files:
            name = f"{_TOP}/{path.relative_to(folder).as_posix()}"
            info = zipfile.ZipInfo(name, date_time=_ZIP_TIME)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            package.writestr(info, path.read_bytes())
    return content.getvalue()
