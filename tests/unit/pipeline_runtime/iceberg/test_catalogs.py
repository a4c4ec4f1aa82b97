"""Catalogs are opened by name, with properties from the manifest and the environment."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from facts import assert_told
from iceberg_tables import Lake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from pipeline_runtime.config import Catalog
from pipeline_runtime.errors import SourceError, StoreError
from pipeline_runtime.iceberg import catalogs
from pipeline_runtime.iceberg.catalogs import build_properties, load_table, open_catalog

SCHEMA = Schema(NestedField(1, "x", LongType(), required=False))


@pytest.fixture
def lake(tmp_path: Path) -> Catalog:
    """Return a SQL catalog on SQLite with the table db.events."""
    model = Catalog(
        name="lake", type="Sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"{tmp_path}/w"
    )
    catalog = open_catalog(model, creates=True)
    catalog.create_namespace("db")
    catalog.create_table("db.events", SCHEMA)
    return model


def test_table_is_loaded_by_names(lake: Catalog) -> None:
    table = load_table([Catalog(name="other"), lake], "lake", "db.events")
    assert table.schema().column_names == ["x"]


@pytest.mark.parametrize(
    ("catalog", "table", "facts"),
    [
        pytest.param("lak", "db.events", "iceberg.catalog … lake … 'lak'", id="catalog"),
        pytest.param("lake", "dbx.events", "iceberg.table … 'lake' … 'dbx'", id="namespace"),
        pytest.param(
            "lake", "db.event", "iceberg.table … 'lake' … 'db.event' … db.events", id="table"
        ),
        pytest.param("lake", "db.nothing", "iceberg.table … 'lake' … 'db.nothing'", id="none near"),
    ],
)
def test_missing_names_are_reported(lake: Catalog, catalog: str, table: str, facts: str) -> None:
    with pytest.raises(SourceError) as raised:
        load_table([lake], catalog, table)
    assert not isinstance(raised.value, StoreError)
    assert_told(str(raised.value), facts)


def test_reading_creates_no_catalog(tmp_path: Path) -> None:
    model = Catalog(name="lake", type="Sql", uri=f"sqlite:///{tmp_path}/typo.db")
    with pytest.raises(SourceError) as raised:
        load_table([model], "lake", "db.events")
    assert_told(str(raised.value), "spec.catalogs[lake] … typo.db")
    assert list(tmp_path.iterdir()) == []


def test_database_without_catalog_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    model = Catalog(name="lake", type="Sql", uri=f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(SourceError) as raised:
        load_table([model], "lake", "db.events")
    assert_told(str(raised.value), "spec.catalogs[lake]")


def test_missing_metadata_file_is_named(lake: Catalog) -> None:
    location = load_table([lake], "lake", "db.events").metadata_location
    Path(location.removeprefix("file://")).unlink()
    with pytest.raises(SourceError) as raised:
        load_table([lake], "lake", "db.events")
    assert_told(str(raised.value), f"spec.catalogs[lake] … {location.removeprefix('file://')}")


@pytest.mark.parametrize(
    ("model", "environment", "expected"),
    [
        pytest.param(
            Catalog(name="lake", type="Rest", uri="https://catalog/", warehouse="s3://b/w"),
            {"PYICEBERG_CATALOG__LAKE__TOKEN": "t"},
            {"type": "rest", "uri": "https://catalog/", "warehouse": "s3://b/w", "token": "t"},
            id="rest with a token",
        ),
        pytest.param(
            Catalog(name="my-lake", uri="https://catalog/"),
            {
                "PYICEBERG_CATALOG__MY_LAKE__CREDENTIAL": "id:secret",
                "PYICEBERG_CATALOG__MY_LAKE__OAUTH2_SERVER_URI": "https://auth/",
            },
            {
                "type": "rest",
                "uri": "https://catalog/",
                "credential": "id:secret",
                "oauth2-server-uri": "https://auth/",
            },
            id="rest with OAuth and a dash",
        ),
        pytest.param(
            Catalog(name="lake", uri="https://catalog"),
            {"PYICEBERG_CATALOG__LAKE__CREDENTIAL": "id:secret"},
            {
                "type": "rest",
                "uri": "https://catalog",
                "credential": "id:secret",
                "oauth2-server-uri": "https://catalog/v1/oauth/tokens",
            },
            id="rest with OAuth at its own address",
        ),
        pytest.param(
            Catalog(name="lake", uri="https://catalog"),
            {"PYICEBERG_CATALOG__LAKE__TOKEN": "word\n"},
            {"type": "rest", "uri": "https://catalog", "token": "word"},
            id="token that ends in a line break",
        ),
        pytest.param(
            Catalog(name="lake", type="Sql"),
            {"PYICEBERG_CATALOG__LAKE__URI": "postgresql+psycopg2://u:p@db/iceberg"},
            {"type": "sql", "uri": "postgresql+psycopg2://u:p@db/iceberg"},
            id="address with a password from the environment",
        ),
        pytest.param(
            Catalog(name="lake", type="Sql", uri="sqlite:////a"),
            {"PYICEBERG_CATALOG__LAKE__URI": "sqlite:////b"},
            {"type": "sql", "uri": "sqlite:////a"},
            id="the manifest comes first",
        ),
        pytest.param(
            Catalog(name="lake", type="Sql", uri="sqlite:////a", warehouse="file:/b"),
            {},
            {"type": "sql", "uri": "sqlite:////a", "warehouse": "file:/b"},
            id="a folder as Java writes it",
        ),
        pytest.param(
            Catalog(name="lake"),
            {
                "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
                "PYICEBERG_CATALOG__LAKE__URI": "sqlite:////b",
            },
            {"type": "sql", "uri": "sqlite:////b"},
            id="a name alone",
        ),
        pytest.param(
            Catalog(name="lake", type="Hive", uri="thrift://metastore:9083"),
            {"PYICEBERG_CATALOG__LAKE__HIVE__KERBEROS_AUTHENTICATION": "true"},
            {
                "type": "hive",
                "uri": "thrift://metastore:9083",
                "hive.kerberos-authentication": "true",
            },
            id="hive",
        ),
        pytest.param(
            Catalog(name="lake", type="Glue", warehouse="s3://b/w"),
            {"PYICEBERG_CATALOG__LAKE__GLUE__REGION": "eu-west-1"},
            {"type": "glue", "warehouse": "s3://b/w", "glue.region": "eu-west-1"},
            id="glue",
        ),
        pytest.param(
            Catalog(name="lake", type="DynamoDb", warehouse="s3://b/w"),
            {"PYICEBERG_CATALOG__LAKE__TABLE_NAME": "iceberg"},
            {"type": "dynamodb", "warehouse": "s3://b/w", "table-name": "iceberg"},
            id="dynamodb",
        ),
        pytest.param(
            Catalog(name="lake", uri="https://catalog"),
            {
                "PYICEBERG_CATALOG__LAKE__GCS__PROJECT_ID": "p",
                "PYICEBERG_CATALOG__LAKE__ADLS__ACCOUNT_NAME": "a",
            },
            {
                "type": "rest",
                "uri": "https://catalog",
                "gcs.project-id": "p",
                "adls.account-name": "a",
            },
            id="stores of Google and Azure",
        ),
        pytest.param(
            Catalog(name="lake", uri="https://catalog/"),
            {"AWS_ENDPOINT_URL": "http://store:9000", "AWS_DEFAULT_REGION": "eu-west-1"},
            {
                "type": "rest",
                "uri": "https://catalog/",
                "s3.endpoint": "http://store:9000",
                "s3.region": "eu-west-1",
            },
            id="store of the environment",
        ),
    ],
)
def test_properties_come_from_manifest_and_environment(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    model: Catalog,
    environment: dict[str, str],
    expected: dict[str, str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no .pyiceberg.yaml
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert build_properties(model) == expected


@pytest.mark.parametrize("kind", ["Rest", "Sql", "Hive"])
def test_missing_address_is_reported(kind: str) -> None:
    with pytest.raises(SourceError) as raised:
        open_catalog(Catalog(name="lake", type=kind))
    assert_told(str(raised.value), "spec.catalogs[lake] … PYICEBERG_CATALOG__LAKE__URI")


def test_missing_package_is_named() -> None:
    with pytest.raises(SourceError) as raised:
        open_catalog(Catalog(name="lake", type="Hive", uri="thrift://localhost:1"))
    assert_told(str(raised.value), "spec.catalogs[lake] … pyiceberg[hive]")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param("", "JSON", id="empty file"),
        pytest.param("[" * 1000, "recursion", id="deep JSON"),
        pytest.param({"format-version": 7}, "'7'", id="newer version"),
        pytest.param({"schemas": "x" * 10_000}, "schemas", id="another type"),
        pytest.param({"current-schema-id": 9}, "9", id="no such schema"),
        pytest.param({"snapshots": []}, "snapshot … main", id="no such snapshot"),
        pytest.param(
            {"properties": {"schema.name-mapping.default": "{{"}}, "name-mapping", id="name mapping"
        ),
    ],
)
def test_damaged_metadata_are_refused_in_few_words(
    tmp_path: Path, change: str | dict[str, object], told: str
) -> None:
    lake = Lake(tmp_path)
    table = lake.create("t", Schema(NestedField(1, "n", LongType(), required=False)))
    table.append(pa.table({"n": pa.array([1])}))
    file = Path(table.metadata_location.removeprefix("file://"))
    if not isinstance(change, str):
        change = json.dumps(json.loads(file.read_text()) | change)
    file.write_text(change)
    with pytest.raises(SourceError) as raised:
        lake.open("t")
    assert not isinstance(raised.value, StoreError)
    text = str(raised.value)
    assert_told(text, f"… {told}…")
    assert len(text) < 400


@pytest.mark.parametrize("pattern", ["snap-*.avro", "*-m0.avro"])
@pytest.mark.parametrize("content", [b"", b"Obj\x01garbage", b"\xff" * 500, bytes(500)])
def test_damaged_manifests_are_refused(tmp_path: Path, pattern: str, content: bytes) -> None:
    lake = Lake(tmp_path)
    table = lake.create("t", SCHEMA)
    table.append(pa.table({"x": pa.array([1])}))
    [file] = tmp_path.rglob(pattern)
    file.write_bytes(content)
    with pytest.raises(SourceError) as raised:
        lake.open("t").scan(())
    assert not isinstance(raised.value, StoreError)
    assert_told(str(raised.value), "lake.db.t: … snapshot")


class _Broken(BaseHTTPRequestHandler):
    """A REST catalog that answers its configuration, and every other request by one status."""

    def do_GET(self) -> None:
        status: int = self.server.status  # type: ignore[attr-defined]
        if not status:
            time.sleep(1)  # longer than the deadline below
        is_config = self.path.startswith("/v1/config")
        document = {"error": {"message": "no", "type": "T", "code": status}}
        body = json.dumps({"defaults": {}, "overrides": {}} if is_config else document).encode()
        self.send_response(200 if is_config else status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def broken() -> Iterator[ThreadingHTTPServer]:
    """Return a server on loopback that answers by its attribute `status`; 0 for no answer."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "error", "facts"),
    [
        pytest.param(400, SourceError, "", id="bad request"),
        pytest.param(401, SourceError, "secretRef … PYICEBERG_CATALOG__", id="no credentials"),
        pytest.param(403, SourceError, "secretRef … PYICEBERG_CATALOG__", id="forbidden"),
        pytest.param(409, StoreError, "", id="conflict"),
        pytest.param(429, StoreError, "", id="too many requests"),
        pytest.param(500, StoreError, "", id="server error"),
        pytest.param(503, StoreError, "", id="unavailable"),
        pytest.param(0, StoreError, "no answer", id="no answer in time"),
    ],
)
def test_refusals_of_a_catalog_are_errors_of_the_source(
    broken: ThreadingHTTPServer,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    error: type[SourceError],
    facts: str,
) -> None:
    broken.status = status  # type: ignore[attr-defined]
    monkeypatch.setattr(catalogs, "ANSWER_SECONDS", 20.0 if status else 0.2)
    model = Catalog(name="lake", uri=f"http://127.0.0.1:{broken.server_port}/")
    with pytest.raises(SourceError) as raised:
        load_table([model], "lake", "db.events")
    assert type(raised.value) is error, raised.value
    assert_told(str(raised.value), f"spec.catalogs[lake] … {facts}")


def test_catalog_that_is_gone_is_a_store_error() -> None:
    with pytest.raises(StoreError) as raised:
        load_table([Catalog(name="lake", uri="http://127.0.0.1:1/")], "lake", "db.events")
    assert_told(str(raised.value), "spec.catalogs[lake] … 127.0.0.1")


def test_names_agree_with_other_clients(lake: Catalog) -> None:
    """A SQL catalog stores its name with each table; another client must find the same."""
    assert lake.uri is not None
    other = SqlCatalog("lake", uri=lake.uri, warehouse=lake.warehouse)
    assert other.list_tables("db") == [("db", "events")]


def test_a_refused_header_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TOKEN", "first-line\nsecond-line")
    with pytest.raises(SourceError) as caught:
        open_catalog(Catalog(name="lake", uri="http://127.0.0.1:9/"))
    assert "line" not in str(caught.value)
