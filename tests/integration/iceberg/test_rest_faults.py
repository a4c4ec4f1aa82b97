"""Lastmile with a real REST catalog that fails: one clear error, and nothing lost.

`test_written_through_rest.py` has the faults that a commit survives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from facts import assert_told
from iceberg_rest import COMMITS, Fault, RestProxy
from pyiceberg.catalog import Catalog, load_catalog
from written_iceberg import WrittenIceberg, list_orphans
from written_tables import plan_table

from pipeline_runtime import config
from pipeline_runtime.errors import LastmileError, SourceError, StoreError
from pipeline_runtime.iceberg import catalogs
from pipeline_runtime.iceberg.catalogs import load_table
from pipeline_runtime.iceberg.commits import CommitUnknown

TOKEN = "PYICEBERG_CATALOG__LAKE__TOKEN"
ROWS = pa.table({"n": range(20), "day": [f"d{n % 3}" for n in range(20)]})


@pytest.fixture
def namespace(rest: RestProxy, monkeypatch: pytest.MonkeyPatch, request: Any) -> str:
    """Create a namespace of the test's own; the token is in the environment."""
    monkeypatch.setenv(TOKEN, rest.token)
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)
    open_rest(rest).create_namespace(name)
    rest.requests.clear()
    return name


def open_rest(rest: RestProxy) -> Catalog:
    return load_catalog("other", **rest.properties)


def read(uri: str, table: str) -> pa.Table:
    model = config.Catalog(name="lake", type="Rest", uri=uri)
    return load_table([model], "lake", table).scan().to_arrow()


LOADS = r"/v1/namespaces/[^/]+/tables/[^/]+"
READING = [
    pytest.param(Fault(method="GET", path=LOADS, status=401), SourceError, "token", id="refused"),
    pytest.param(Fault(method="GET", path=LOADS, status=403), SourceError, "token", id="forbidden"),
    pytest.param(Fault(method="GET", path=LOADS, status=503), StoreError, "again", id="busy"),
    pytest.param(Fault(method="GET", path=LOADS, status=0), StoreError, "reached", id="cut off"),
    pytest.param(
        Fault(method="GET", path=LOADS, delay_seconds=20), StoreError, "no answer", id="too late"
    ),
]


@pytest.mark.parametrize(("fault", "error", "advice"), READING)
def test_reading_fails_with_one_error(
    rest: RestProxy,
    namespace: str,
    fault: Fault,
    error: type[LastmileError],
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_rest(rest).create_table(f"{namespace}.t", ROWS.schema).append(ROWS)
    if fault.delay_seconds:
        monkeypatch.setattr(catalogs, "ANSWER_SECONDS", 1.0)

    rest.fail(fault, times=5)  # PyIceberg asks again after a 401
    with pytest.raises(error) as caught:
        read(rest.uri, f"{namespace}.t")
    assert_told(str(caught.value), f"spec.catalogs[lake]: … load the table '{namespace}.t': …")
    assert advice in str(caught.value)

    rest.faults.clear()
    monkeypatch.undo()
    monkeypatch.setenv(TOKEN, rest.token)
    assert read(rest.uri, f"{namespace}.t").num_rows == ROWS.num_rows


@pytest.mark.parametrize("token", ["", "wrong"])
def test_credentials_that_are_refused_are_named(
    rest: RestProxy, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, token)

    with pytest.raises(SourceError) as caught:
        read(rest.uri, "db.t")
    assert_told(str(caught.value), "spec.catalogs[lake]: … PYICEBERG_CATALOG__NAME__TOKEN…")


def test_oauth_clients_need_no_address_of_tokens(
    rest: RestProxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_rest(rest).create_table(f"{namespace}.t", ROWS.schema).append(ROWS)
    monkeypatch.delenv(TOKEN)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__CREDENTIAL", rest.oauth_properties["credential"])

    assert read(rest.uri, f"{namespace}.t").num_rows == ROWS.num_rows


def build_job(folder: Path, rest: RestProxy, namespace: str) -> WrittenIceberg:
    stream = plan_table(folder / "in.parquet", ROWS)
    return WrittenIceberg(
        stream=stream,
        uri=str(folder),
        model=config.Catalog(name="lake", type="Rest", uri=rest.uri),
        table=f"{namespace}.t",
        bucket_by="n",
        num_buckets=2,
    )


def check_rows_once(rest: RestProxy, table_name: str) -> None:
    """Check that the table has each row once, of one commit that left nothing else behind."""
    table = open_rest(rest).load_table(table_name)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == ROWS["n"].to_pylist()
    assert len(table.metadata.snapshots) == 1
    assert list_orphans(table) == set()


@pytest.mark.parametrize("is_forwarded", [False, True], ids=["none landed", "one landed"])
def test_an_unknown_outcome_keeps_files_for_the_resume(
    rest: RestProxy, namespace: str, is_forwarded: bool, tmp_path: Path
) -> None:
    """The catalog is cut off after the commit was sent, until the resume."""
    rest.fail(Fault(status=0, is_forwarded=is_forwarded))
    rest.fail(Fault(status=0, method="GET", path=COMMITS), times=100)
    job = build_job(tmp_path, rest, namespace)

    with pytest.raises((CommitUnknown, StoreError)):
        job.finish()
    rest.faults.clear()
    job.finish(resume=True)

    check_rows_once(rest, f"{namespace}.t")
