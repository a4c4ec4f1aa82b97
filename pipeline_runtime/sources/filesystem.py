"""From a URI of a manifest to a filesystem and a path on it.

A URI without a scheme is relative to the storage root, which is how one manifest serves a laptop
(`build/`) and a cluster (`s3://bucket/team/`). Local paths and s3, gs, hdfs go to pyarrow's own
filesystems, every other scheme to fsspec. Credentials are never in the URI: pyarrow and fsspec find
them in the environment, as each store's own tools do.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from pipeline_runtime.config import S3Options
from pipeline_runtime.errors import SourceError

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*://")
# The schemes that pyarrow.fs.FileSystem.from_uri knows (pyarrow docs, "Filesystem interface").
_ARROW_SCHEMES = frozenset({"file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A place on a filesystem; picklable, so that workers open what the planner found."""

    uri: str
    filesystem: Any  # pyarrow.fs.FileSystem
    path: str

    def join(self, *parts: str) -> Location:
        """The location below this one."""
        suffix = "/".join(part.strip("/") for part in parts)
        return Location(
            uri=f"{self.uri.rstrip('/')}/{suffix}",
            filesystem=self.filesystem,
            path=f"{self.path.rstrip('/')}/{suffix}",
        )


def has_scheme(uri: str) -> bool:
    """Whether a URI says on its own where it is (`s3://…`), or is relative to the storage root."""
    return bool(_SCHEME.match(uri))


def resolve_uri(uri: str, storage_root: str) -> str:
    """The whole URI of what a manifest names: itself with a scheme or from '/', else below the
    root.
    """
    if has_scheme(uri) or uri.startswith("/"):
        return uri
    return f"{storage_root.rstrip('/')}/{uri}" if storage_root else uri


def open_location(uri: str, storage_root: str = "", s3: S3Options | None = None) -> Location:
    """Find the filesystem of a URI; nothing is read yet.

    Raises SourceError if no filesystem serves the scheme.
    """
    whole = resolve_uri(uri, storage_root)
    if not has_scheme(whole):
        path = str(Path(os.path.expanduser(whole)).absolute())  # Path would make "~" of "./~"
        path += "/" if whole.endswith("/") and path != "/" else ""
        return Location(uri=whole, filesystem=pafs.LocalFileSystem(), path=path)
    try:
        filesystem, path = _open_scheme(whole, s3)
    except (pa.ArrowInvalid, OSError, ValueError, ImportError) as error:
        scheme = urlsplit(whole).scheme
        raise SourceError(
            f"{whole}: cannot open a filesystem for {scheme!r}: {error}; use a scheme that pyarrow "
            "or an installed fsspec package serves"
        ) from error
    return Location(uri=whole, filesystem=filesystem, path=path)


def _open_scheme(uri: str, s3: S3Options | None) -> tuple[Any, str]:
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        return _open_s3(s3 or S3Options()), (parts.netloc + parts.path)
    if parts.scheme in _ARROW_SCHEMES:
        found: tuple[Any, str] = pafs.FileSystem.from_uri(uri)
        return found
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(uri)
    filesystem.invalidate_cache()  # fsspec shares one file system, and what it has listed
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


def _open_s3(options: S3Options) -> Any:
    """S3 with keys, and an endpoint that the manifest does not name, from the environment."""
    arguments: dict[str, Any] = {"anonymous": options.anonymous}
    if options.region:
        arguments["region"] = options.region
    # pyarrow reads the keys from the environment, but not these.
    endpoint = options.endpoint or _first_set("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    if endpoint:
        parts = urlsplit(endpoint)
        arguments |= {"scheme": parts.scheme, "endpoint_override": parts.netloc}
        # Without a region pyarrow would ask AWS for the bucket's; another store has none to give.
        region = _first_set("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        arguments.setdefault("region", region)
    return pafs.S3FileSystem(**arguments)


def _first_set(*names: str) -> str | None:
    """The first of these environment variables that is not empty."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
