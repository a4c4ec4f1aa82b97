"""Opens Iceberg catalogs and loads tables, and reports their errors as errors of a source.

The properties of a catalog come from three places, the first that has one first: the manifest
(`spec.catalogs`), the environment (`PYICEBERG_CATALOG__LAKE__TOKEN` is `token` of catalog `lake`;
the operator sets these from the catalog's Secret), and the file `.pyiceberg.yaml`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from pipeline_runtime.config import Catalog as CatalogModel
from pipeline_runtime.config.texts.credentials import hide_credentials
from pipeline_runtime.config.texts.storage_uri import is_absolute
from pipeline_runtime.deadline import call_in_time
from pipeline_runtime.errors import LastmileError, SourceError, StoreError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

# A catalog in the cloud may have to start before it answers the first request.
ANSWER_SECONDS = 30.0

_MAX_NEAR_NAMES = 3
_SQLITE = "sqlite:///"
_JAVA_FILE = "file:/"  # Java writes the URI of a file so, without an authority
_T = TypeVar("_T")


def open_catalog(catalog: CatalogModel, *, creates: bool = False) -> Catalog:
    """Open a catalog of the manifest.

    Args:
        creates: True creates a SQL catalog's tables, and SQLite's file, if there are none. A reader
            must not: a misspelt address would be an empty catalog.

    Raises:
        SourceError: a property is missing or wrong, or the credentials are refused.
        StoreError: the catalog does not answer, or not now.
    """
    from pyiceberg.catalog import load_catalog

    properties = build_properties(catalog)
    if properties.get("type") == "sql":
        properties |= _prepare_sql(catalog.name, properties.get("uri", ""), creates)
    return ask_catalog(
        describe(catalog.name, "open the catalog"), lambda: load_catalog(catalog.name, **properties)
    )


def load_table(catalogs: Sequence[CatalogModel], name: str, table: str) -> Table:
    """Load a table's current metadata.

    Args:
        catalogs: those of the manifest.
        name: the catalog that has the table, by its name.
        table: the table, as `namespace.table`.

    Raises SourceError or StoreError as `open_catalog` does, and if there is no such table.
    """
    from pyiceberg.exceptions import NoSuchIdentifierError, NoSuchNamespaceError, NoSuchTableError

    catalog = open_catalog(find_catalog(catalogs, name))
    what = describe(name, f"load the table {table!r}")
    missing = (NoSuchTableError, NoSuchNamespaceError, NoSuchIdentifierError)
    try:
        return ask_catalog(what, lambda: catalog.load_table(table), passes=missing)
    except missing as error:
        message = f"must be a table of catalog {name!r}, but {_explain_missing(catalog, table)}"
        raise SourceError(message, field="iceberg.table") from error


def find_catalog(catalogs: Sequence[CatalogModel], name: str) -> CatalogModel:
    """Return the catalog of this name.

    Raises SourceError if the manifest has none.
    """
    for catalog in catalogs:
        if catalog.name == name:
            return catalog
    names = ", ".join(catalog.name for catalog in catalogs) or "none"
    raise SourceError(
        f"must be the name of a catalog in spec.catalogs ({names}), but is {name!r}. Add it there",
        field="iceberg.catalog",
    )


def build_properties(catalog: CatalogModel) -> dict[str, str]:
    """Return the properties with which PyIceberg opens a catalog; they may hold credentials."""
    from pyiceberg.utils.config import Config, merge_config

    given: dict[str, Any] = {"uri": catalog.uri, "warehouse": catalog.warehouse}
    kind = catalog.type.lower()
    if "type" in catalog.model_fields_set:
        given["type"] = kind
    given = {name: value for name, value in given.items() if value}
    # Read at each opening: PyIceberg itself reads the environment when it is first imported.
    found = Config().get_catalog_config(catalog.name) or {}
    # Secrets often end in a line break, which no property of a catalog does.
    found = {name: v.strip() if isinstance(v, str) else v for name, v in found.items()}
    properties = _default_store() | merge_config(found, given)
    properties.setdefault("type", kind)
    warehouse = properties.get("warehouse", "")
    is_relative = not is_absolute(warehouse) and not warehouse.startswith(_JAVA_FILE)
    if properties["type"] == "sql" and warehouse and is_relative:
        properties["warehouse"] = str(Path(warehouse).absolute())  # as SQLite's path is taken
    if "credential" in properties and (uri := properties.get("uri")):
        # PyIceberg asks the same address without it, but warns that this will change.
        properties.setdefault("oauth2-server-uri", f"{uri.rstrip('/')}/v1/oauth/tokens")
    return properties


def _default_store() -> dict[str, Any]:
    """Return the store's properties of AWS's variables that Lastmile's own reader heeds too."""
    variables = {
        "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    }
    values = {name: [os.environ.get(v) for v in found] for name, found in variables.items()}
    return {name: next(filter(None, found)) for name, found in values.items() if any(found)}


def _prepare_sql(name: str, uri: str, creates: bool) -> dict[str, str]:
    path = uri.removeprefix(_SQLITE).partition("?")[0]
    if uri.startswith(_SQLITE) and not creates and not Path(path).is_file():
        raise SourceError(
            f"{describe(name, 'open the catalog')}: there is no file {path!r}. Correct the "
            "catalog's uri, or create the catalog first"
        )
    return {"init_catalog_tables": str(creates).lower()}


def describe(name: str, what: str) -> str:
    """Return how a message about a catalog begins: the catalog's field, and what cannot be done."""
    return f"spec.catalogs[{name}]: cannot {what}"


def ask_catalog(
    what: str, call: Callable[[], _T], *, passes: tuple[type[Exception], ...] = ()
) -> _T:
    """Return the result of a call to a catalog, or to the store of a table's metadata.

    Args:
        what: the beginning of a message, from `describe`.
        passes: exceptions that the caller handles itself.

    Raises SourceError or StoreError as `asking_catalog` does, and StoreError if there is no answer
    within `ANSWER_SECONDS`.
    """
    with asking_catalog(what, passes=passes):
        return call_in_time(call, ANSWER_SECONDS)


@contextmanager
def asking_catalog(what: str, *, passes: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn any error of a catalog, or of its store, in the block into SourceError or StoreError.

    The block must do nothing but call PyIceberg: the errors of its clients (requests, SQLAlchemy,
    boto3, Arrow) have no common base class.

    Raises:
        SourceError: another attempt would end the same way.
        StoreError: there is no answer, or a refusal for now (409, 429, 5xx).
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (LastmileError, *passes)):
            raise
        kind, advice = _judge(error)
        told = hide_credentials(" ".join(_summarize(error).split())) or type(error).__name__
        raise kind(f"{what}: {told.rstrip('.')}. {advice}") from error


def _summarize(error: Exception) -> str:
    """Return the text of an error: of one of pydantic the first problem, without the input."""
    found = error if isinstance(error, ValidationError) else error.__cause__
    if not isinstance(found, ValidationError):
        return str(error)
    first = found.errors(include_url=False, include_input=False)[0]
    return ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)


def _judge(error: Exception) -> tuple[type[SourceError], str]:
    """Return the error to raise for an error of PyIceberg, and the advice for the user."""
    from pyiceberg import exceptions

    refused = (
        exceptions.UnauthorizedError,
        exceptions.ForbiddenError,
        exceptions.OAuthError,
        exceptions.AuthorizationExpiredError,
    )
    if isinstance(error, refused):
        return SourceError, (
            "Give credentials that the catalog accepts, such as `token` or `credential`, in the "
            "Secret of secretRef, or in the environment as PYICEBERG_CATALOG__NAME__TOKEN"
        )
    if isinstance(error, exceptions.NotInstalledError | ImportError):
        return SourceError, "Install the package in the image and on this machine"
    if isinstance(error, FileNotFoundError):
        return SourceError, (
            "The file was deleted, or its snapshot expired, while the catalog or the table still "
            "names it. Read a newer snapshot, or restore the file"
        )
    # Errors of PyIceberg's own parsers, which do not expect other types or a file that ends.
    damaged = (UnicodeError, TypeError, LookupError, AttributeError, SystemError, EOFError)
    if isinstance(error, (ValidationError, exceptions.ValidationError, *damaged)):
        return SourceError, (
            "The catalog's answer or the table's metadata are damaged, or of a newer version of "
            "Iceberg. Restore them, or read an older snapshot"
        )
    persistent = (
        exceptions.BadRequestError,
        exceptions.NoSuchTableError,
        exceptions.NoSuchNamespaceError,
        exceptions.NoSuchIdentifierError,
        exceptions.NoSuchPropertyException,
        NotImplementedError,
        ValueError,
    )
    if isinstance(error, persistent):
        return SourceError, "Correct the catalog's fields, or its properties in the environment"
    if isinstance(error, exceptions.CommitFailedException):
        return StoreError, "Another writer changed the table meanwhile; try again"
    return StoreError, (
        "Check that the catalog can be reached from here and is in order; then try again"
    )


def _explain_missing(catalog: Catalog, table: str) -> str:
    """Return which part of a table's name does not exist, and similar names that do."""
    namespace, _, name = table.rpartition(".")
    try:
        if not catalog.namespace_exists(namespace):
            return f"there is no namespace {namespace!r} for {table!r}. Correct it"
        names = [identifier[-1] for identifier in catalog.list_tables(namespace)]
    except Exception:  # noqa: BLE001 - a catalog that lists nothing still lacks the table
        names = []
    near = difflib.get_close_matches(name, names, n=_MAX_NEAR_NAMES)
    hint = f"; similar tables: {', '.join(f'{namespace}.{each}' for each in near)}" if near else ""
    return f"there is no {table!r}{hint}. Correct it"
