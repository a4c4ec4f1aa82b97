"""PyIceberg with a real REST catalog, a proxy before it that fails, and a real PostgreSQL."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
import requests
from iceberg_readers import read_by_duckdb, sorted_rows
from iceberg_rest import Fault, RestProxy
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    OAuthError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from pyiceberg.table import Table

ROWS = pa.table({"user_id": pa.array([1, 2, None], pa.int64()), "text": ["a", None, "c"]})


def create_table(catalog: Catalog, namespace: str) -> Table:
    """Create an empty table of a test's own, whose commits are tried once."""
    catalog.create_namespace(namespace)
    return catalog.create_table(
        (namespace, "events"), ROWS.schema, properties={"commit.retry.num-retries": "0"}
    )


def count_rows(catalog: Catalog, table: Table) -> int:
    return catalog.load_table(table.name()).scan().to_arrow().num_rows


@pytest.mark.parametrize("way", ["token", "OAuth"])
def test_rest_catalog_keeps_a_table(rest: RestProxy, way: str) -> None:
    properties = rest.properties if way == "token" else rest.oauth_properties

    create_table(load_catalog("rest", **properties), f"kept_{way}").append(ROWS)
    table = load_catalog("rest", **properties).load_table((f"kept_{way}", "events"))

    assert sorted_rows(table.scan().to_arrow()) == sorted_rows(ROWS)
    assert sorted_rows(read_by_duckdb(table.metadata_location)) == sorted_rows(ROWS)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        pytest.param({"token": ""}, UnauthorizedError, id="no token"),
        pytest.param({"token": "wrong"}, UnauthorizedError, id="another token"),
        pytest.param({"credential": "lastmile-test:wrong"}, OAuthError, id="another secret"),
    ],
)
def test_rest_catalog_refuses_strangers(
    rest: RestProxy, wrong: dict[str, str], error: type[Exception]
) -> None:
    properties = rest.properties if "token" in wrong else rest.oauth_properties

    with pytest.raises(error):
        load_catalog("rest", **{**properties, **wrong}).list_namespaces()


def test_a_new_token_replaces_an_expired_one(rest: RestProxy) -> None:
    catalog = load_catalog("rest", **rest.oauth_properties)

    rest.revoke()
    rest.fail(Fault(method="GET", path="/v1/namespaces", status=419))

    assert catalog.list_namespaces() is not None


@pytest.mark.parametrize(
    ("fault", "error", "num_rows"),
    [
        pytest.param(Fault(status=409), CommitFailedException, 0, id="a concurrent commit"),
        pytest.param(Fault(status=503), ServiceUnavailableError, 0, id="busy"),
        pytest.param(Fault(status=0), requests.ConnectionError, 0, id="lost request"),
        pytest.param(
            Fault(status=0, is_forwarded=True), requests.ConnectionError, 3, id="lost answer"
        ),
        pytest.param(
            Fault(status=504, is_forwarded=True), CommitStateUnknownException, 3, id="gateway"
        ),
    ],
)
def test_faults_strike_one_commit(
    rest: RestProxy,
    request: pytest.FixtureRequest,
    fault: Fault,
    error: type[Exception],
    num_rows: int,
) -> None:
    catalog = load_catalog("rest", **rest.properties)
    table = create_table(catalog, f"struck_{request.node.callspec.id}".replace(" ", "_"))

    rest.fail(fault)
    with pytest.raises(error):
        table.append(ROWS)
    assert count_rows(catalog, table) == num_rows

    catalog.load_table(table.name()).append(ROWS)
    assert count_rows(catalog, table) == num_rows + 3


def test_a_delayed_commit_takes_place(rest: RestProxy) -> None:
    catalog = load_catalog("rest", **rest.properties)
    table = create_table(catalog, "delayed")

    rest.fail(Fault(delay_seconds=0.5))
    begin = time.monotonic()
    table.append(ROWS)

    assert time.monotonic() - begin >= 0.5
    assert count_rows(catalog, table) == 3


def test_postgres_keeps_a_table(postgres_uri: str, tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": postgres_uri, "warehouse": f"file://{tmp_path}"}

    with load_catalog("lake", **properties) as catalog:
        create_table(catalog, "kept").append(ROWS)
    with load_catalog("lake", **properties) as again:
        found = again.load_table("kept.events").scan().to_arrow()

    assert sorted_rows(found) == sorted_rows(ROWS)
