"""From a URI of a manifest to a filesystem and a path on it.

A URI without a scheme is relative to the storage root, which is how one manifest serves a laptop
(`build/`) and a cluster (`s3://bucket/team/`). `config.storage_uri` lists the schemes; pyarrow
serves them, and fsspec serves those that the environment adds. Credentials and addresses of stores
are never in the URI: pyarrow and fsspec find them in the environment, as each store's tools do.

Whoever opens a URI lends it their credentials, and the URI may come from a status that somebody
else wrote. So only the scheme and the bucket reach pyarrow's parser, which knows options like
`endpoint_override`; the path is appended afterwards.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from pipeline_runtime.config import S3Options
from pipeline_runtime.config.credentials import hide_credentials
from pipeline_runtime.config.storage_uri import has_scheme, split_storage_uri
from pipeline_runtime.errors import SourceError, StoreError

__all__ = ["Location", "has_scheme", "open_location", "resolve_uri"]
_ARROW_SCHEMES = frozenset({"gs", "gcs", "hdfs", "abfs", "abfss"})


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


def resolve_uri(uri: str, storage_root: str) -> str:
    """The whole URI of what a manifest names: itself with a scheme or from '/', else below the
    root.
    """
    if has_scheme(uri) or uri.startswith("/"):
        return uri
    return f"{storage_root.rstrip('/')}/{uri}" if storage_root else uri


def open_location(uri: str, storage_root: str = "", s3: S3Options | None = None) -> Location:
    """Find the filesystem of a URI; nothing is read yet.

    Raises:
        SourceError: the URI says more than a place in a store, or no filesystem serves its scheme.
        StoreError: a store that is asked here (hdfs) does not answer.
    """
    whole = resolve_uri(uri, storage_root)
    if not has_scheme(whole):
        path = str(Path(os.path.expanduser(whole)).absolute())  # Path would make "~" of "./~"
        path += "/" if whole.endswith("/") and path != "/" else ""
        return Location(uri=whole, filesystem=pafs.LocalFileSystem(), path=path)
    # Below a root, '?' is a character of a file's name or of a glob.
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
    except Exception as error:  # OSError of hdfs; clients of fsspec raise errors of any type
        raise StoreError(f"{whole}: cannot reach the store: {error}; try again") from error
    return Location(uri=whole, filesystem=filesystem, path=path)


def _open_scheme(scheme: str, authority: str, path: str, s3: S3Options | None) -> tuple[Any, str]:
    if scheme == "s3":
        return _open_s3(s3 or S3Options()), authority + path
    if scheme == "file":
        return pafs.LocalFileSystem(), unquote(path)
    if scheme in _ARROW_SCHEMES:
        filesystem, root = pafs.FileSystem.from_uri(f"{scheme}://{authority}/")
        return filesystem, root.rstrip("/") + unquote(path)
    import fsspec

    # Not `url_to_fs`, which takes options out of a URI and opens chains of them.
    kind = fsspec.get_filesystem_class(scheme)
    store = kind()
    store.invalidate_cache()  # fsspec shares one file system, and what it has listed
    found = kind._strip_protocol(f"{scheme}://{authority}{path}")
    return pafs.PyFileSystem(pafs.FSSpecHandler(store)), found


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
