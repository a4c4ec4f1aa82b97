"""Checks URIs that name a place in a store, and splits them to open the store's filesystem.

Somebody else than the reader may have written a manifest or status, and a client sends the reader's
credentials to the address in the URI. So a URI names a place and nothing else: it has no query,
fragment or user, and a host only if the host is the store. The address of a store comes from the
environment, the operator's settings, or a field of its own (`s3.endpoint`).

The check runs when a model is parsed (`base`), and again when a filesystem is opened
(`sources.filesystem`), since URIs of a status or of the command line come from no model.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote

from pipeline_runtime.config.texts.credentials import hide_credentials

# Variable with more schemes, comma-separated, that the installed fsspec packages serve. Only the
# person who runs the process can set it: `spec.env` must not name Lastmile's variables.
SCHEMES_VARIABLE = "LASTMILE_STORAGE_SCHEMES"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_PARTS = re.compile(r"(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL)
_NAME = r"[A-Za-z0-9][A-Za-z0-9._\-]*"
_HOST = rf"({_NAME}(:[0-9]{{1,5}})?)?"
# pyarrow sends Azure's tokens to the host that an abfs URI names, so only Microsoft's are allowed.
_AZURE = rf"{_NAME}@[a-z0-9]{{3,24}}\.dfs\.core\.windows\.net"
_AZURE_EXAMPLE = "CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
# By scheme, a pattern of the part between `://` and the path, and an example of both parts.
_AUTHORITIES = {
    "file": ("", "/PATH"),
    "s3": (_NAME, "BUCKET/PATH"),
    "gs": (_NAME, "BUCKET/PATH"),
    "gcs": (_NAME, "BUCKET/PATH"),
    "hdfs": (_HOST, "HOST:PORT/PATH"),
    "abfs": (_AZURE, _AZURE_EXAMPLE),
    "abfss": (_AZURE, _AZURE_EXAMPLE),
}


class StorageUri(NamedTuple):
    """The parts of a URI with a scheme; the path is not unquoted."""

    scheme: str
    authority: str
    path: str


def has_scheme(uri: str) -> bool:
    """Return whether a URI has a scheme (`s3://…`); without one, it may need a storage root."""
    return _SCHEME.match(uri) is not None


def is_absolute(uri: str) -> bool:
    """Return whether a URI or path needs no storage root: it has a scheme, or begins at / or ~/."""
    return has_scheme(uri) or uri.startswith(("/", "~/")) or uri == "~"


def split_storage_uri(uri: str) -> StorageUri:
    """Return the parts of a URI that has a scheme.

    Raises:
        ValueError: the URI may not name a place in a store; the message says why.
    """
    scheme = _SCHEME.match(uri)
    assert scheme is not None, "a path has no parts"
    name = scheme[1].lower()
    parts = _PARTS.fullmatch(uri, scheme.end())
    assert parts is not None
    shown = hide_credentials(uri)
    if parts["rest"]:
        raise ValueError(
            f"must not have a query or fragment ('?' or '#'), got {shown!r}; remove it: a store's "
            "address and options come from the environment"
        )
    more = _get_more_schemes()
    if name not in _AUTHORITIES and name not in more:
        known = ", ".join((*_AUTHORITIES, *more))
        raise ValueError(
            f"must have one of the schemes {known}, got {name!r}; use one, or add the scheme to "
            f"{SCHEMES_VARIABLE} in the environment"
        )
    pattern, example = _AUTHORITIES.get(name, (_HOST, "BUCKET/PATH"))
    if not re.fullmatch(pattern, parts["authority"]):
        raise ValueError(f"must be like {name}://{example}, got {shown!r}; give the place alone")
    if ".." in unquote(parts["path"]).split("/"):
        raise ValueError(f"must not contain '..', got {shown!r}; give the path in full")
    return StorageUri(name, parts["authority"], parts["path"])


def find_uri_fault(uri: str, *, is_glob: bool = False) -> str | None:
    """Return a message for the rule that a URI or path breaks; None if it breaks none.

    Args:
        is_glob: whether '?' in a path is a glob character. The path of a folder may be appended
            to the URI of a storage root, where '?' would begin a query.
    """
    if has_scheme(uri):
        try:
            split_storage_uri(uri)
        except ValueError as error:
            return str(error)
    elif not is_glob and not uri.startswith("/") and ("?" in uri or "#" in uri):
        return f"must not have '?' or '#', got {hide_credentials(uri)!r}; rename the folder"
    return None


def _get_more_schemes() -> tuple[str, ...]:
    names = os.environ.get(SCHEMES_VARIABLE, "").split(",")
    return tuple(name.strip().lower() for name in names if name.strip())
