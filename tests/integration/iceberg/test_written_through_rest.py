"""Outputs to tables of a real REST catalog, whose answers a proxy loses, delays and refuses."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from iceberg_readers import read_by_duckdb, sorted_rows
from iceberg_rest import Fault, RestProxy
from pyiceberg.catalog import load_catalog
from written_iceberg import WrittenIceberg, list_orphans
from written_tables import plan_table

from pipeline_runtime.config import Catalog
from pipeline_runtime.errors import OutputError
from pipeline_runtime.iceberg import commits

ROWS = pa.table({"n": range(8), "day": ["a", "a/b", None, "null"] * 2})


def build_job(
    rest: RestProxy, folder: Path, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> WrittenIceberg:
    monkeypatch.setenv("PYICEBERG_CATALOG__REST__TOKEN", rest.token)
    load_catalog("rest", **rest.properties).create_namespace_if_not_exists(namespace)
    return WrittenIceberg(
        stream=plan_table(folder / "in.parquet", ROWS),
        uri=str(folder),
        model=Catalog(name="rest", type="Rest", uri=rest.uri),
        table=f"{namespace}.t",
        partition_by=("day",),
        bucket_by="n",
        num_buckets=2,
        sort_by=("n",),
    )


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([], id="none"),
        pytest.param([Fault(status=0, is_forwarded=True)], id="lost acknowledgement"),
        pytest.param([Fault(status=0)], id="lost request"),
        pytest.param([Fault(status=409, is_forwarded=True)], id="conflict with itself"),
        pytest.param([Fault(status=409), Fault(status=503)], id="conflict, then busy"),
        pytest.param([Fault(status=502, is_forwarded=True)], id="gateway lost the answer"),
        pytest.param([Fault(delay_seconds=3.0)], id="no answer in time"),
    ],
)
@pytest.mark.parametrize("mode", ["Fail", "Overwrite"])
def test_rows_are_committed_once(
    rest: RestProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    faults: list[Fault],
    mode: str,
) -> None:
    monkeypatch.setattr(commits, "_COMMIT_SECONDS", 1.0)
    case = list(request.node.callspec.indices.values())
    job = build_job(rest, tmp_path, monkeypatch, "written_" + "_".join(map(str, case)))
    if mode == "Overwrite":
        job.finish()
        job = WrittenIceberg(**{**job.__dict__, "mode": mode, "run": "20260102T000000Z-0"})
    for fault in faults:
        rest.fail(fault)
    committed = job.finish()
    assert rest.faults == []
    table = load_catalog("rest", **rest.properties).load_table(job.table)
    assert len(table.metadata.snapshots) == (2 if mode == "Overwrite" else 1)
    assert committed.snapshot_id == str(table.metadata.current_snapshot_id)
    assert sorted_rows(read_by_duckdb(table.metadata_location)) == sorted_rows(ROWS)
    assert list_orphans(table) == set()


def test_a_refused_commit_says_so_and_is_resumed(
    rest: RestProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = build_job(rest, tmp_path, monkeypatch, "refused")
    rest.fail(Fault(status=403))
    with pytest.raises(OutputError) as caught:
        job.finish()
    assert not isinstance(caught.value, commits.CommitUnknown)
    assert job.finish(resume=True).rows == len(ROWS)
