"""Turns a URI of a manifest into a filesystem and a path on it.

A URI without a scheme is relative to the storage root, so one manifest works on a laptop (`build/`)
and on a cluster (`s3://bucket/team/`). `config.texts.storage_uri` lists the schemes. pyarrow serves
them, and fsspec serves the schemes that the environment adds. Credentials and addresses of stores
are never in the URI: pyarrow and fsspec find them in the environment, as each store's own tools do.

The user who opens a URI sends their own credentials to it, although the URI may come from a status
that somebody else wrote. So only the scheme and the bucket reach pyarrow's parser, which accepts
options like `endpoint_override`; the path is appended afterwards.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from pipeline_runtime.config import S3Options
from pipeline_runtime.config.texts.credentials import hide_credentials
from pipeline_runtime.config.texts.storage_uri import (
    has_scheme,
    is_absolute,
    split_storage_uri,
)
from pipeline_runtime.deadline import call_in_time
from pipeline_runtime.errors import SourceError, StoreError

__all__ = ["Location", "has_scheme", "open_location", "resolve_uri"]
_ARROW_SCHEMES = frozenset({"gs", "gcs", "hdfs", "abfs", "abfss"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A place on a filesystem; picklable, so that workers open what the planner found."""

    uri: str
    filesystem: Any  # pyarrow.fs.FileSystem
    path: str

    @property
    def full_uri(self) -> str:
        """A URI that holds in any working folder: a local path is absolute."""
        return self.path if isinstance(self.filesystem, pafs.LocalFileSystem) else self.uri

    def join(self, *parts: str) -> Location:
        """Return the location of these path parts below this one."""
        suffix = "/".join(part.strip("/") for part in parts)
        return Location(
            uri=f"{self.uri.rstrip('/')}/{suffix}",
            filesystem=self.filesystem,
            path=f"{self.path.rstrip('/')}/{suffix}",
        )


def resolve_uri(uri: str, storage_root: str) -> str:
    """Return the full URI of a name in a manifest.

    A name with a scheme, or one that begins with '/' or '~/', is returned as it is. Any other is
    below the storage root.
    """
    if is_absolute(uri):
        return uri
    return f"{storage_root.rstrip('/')}/{uri}" if storage_root else uri


def open_location(uri: str, storage_root: str = "", s3: S3Options | None = None) -> Location:
    """Find the filesystem of a URI, without reading anything.

    Raises:
        SourceError: the URI holds more than a place in a store, or no filesystem has its scheme.
        StoreError: the store does not answer in time. Only hdfs is contacted here.
    """
    whole = resolve_uri(uri, storage_root)
    if not has_scheme(whole):
        path = str(Path(os.path.expanduser(whole)).absolute())  # Path would turn "./~" into "~"
        path += "/" if whole.endswith("/") and path != "/" else ""
        return Location(uri=whole, filesystem=pafs.LocalFileSystem(), path=path)
    # Below a root, '?' belongs to a file's name or to a glob.
    base, below = (whole, "") if has_scheme(uri) else (storage_root.rstrip("/"), f"/{uri}")
    try:
        scheme, authority, path = split_storage_uri(base)
    except ValueError as error:
        raise SourceError(f"{hide_credentials(whole)}: {error}") from error
    try:
        filesystem, path = _open_scheme(scheme, authority, path + below, s3)
    except (pa.ArrowException, ValueError, ImportError) as error:
        raise SourceError(
            f"{whole}: cannot open a filesystem for {scheme!r}: {error}; check what "
            "it needs in the environment"
        ) from error
    except Exception as error:  # hdfs raises OSError; clients of fsspec raise any type
        raise StoreError(f"{whole}: cannot reach the store: {error}; try again") from error
    return Location(uri=whole, filesystem=filesystem, path=path)


def _open_scheme(scheme: str, authority: str, path: str, s3: S3Options | None) -> tuple[Any, str]:
    if scheme == "s3":
        return _open_s3(s3 or S3Options()), authority + path
    if scheme == "file":
        return pafs.LocalFileSystem(), unquote(path)
    if scheme in _ARROW_SCHEMES:
        base = f"{scheme}://{authority}/"
        filesystem, root = call_in_time(partial(pafs.FileSystem.from_uri, base))
        return filesystem, root.rstrip("/") + unquote(path)
    import fsspec

    # Not `url_to_fs`: it reads options from a URI, and opens chained URIs.
    kind = fsspec.get_filesystem_class(scheme)
    store = kind()
    store.invalidate_cache()  # fsspec shares one instance and its listings
    found = kind._strip_protocol(f"{scheme}://{authority}{path}")
    return pafs.PyFileSystem(pafs.FSSpecHandler(store)), found


def _open_s3(options: S3Options) -> Any:
    """Open S3; the keys come from the environment, and so does an endpoint that is not set."""
    arguments: dict[str, Any] = {"anonymous": options.anonymous}
    if options.region:
        arguments["region"] = options.region
    # pyarrow reads the keys from the environment, but not these variables.
    endpoint = options.endpoint or _first_set("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    if endpoint:
        parts = urlsplit(endpoint)
        arguments |= {"scheme": parts.scheme, "endpoint_override": parts.netloc}
        # Without a region, pyarrow would ask AWS for the bucket's region; other stores have none.
        region = _first_set("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        arguments.setdefault("region", region)
    return pafs.S3FileSystem(**arguments)


def _first_set(*names: str) -> str | None:
    """Return the value of the first of these environment variables that is not empty."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
