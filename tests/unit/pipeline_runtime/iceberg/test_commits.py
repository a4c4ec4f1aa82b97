"""Commits land once: refused, unanswered, repeated and concurrent ones."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    ServiceUnavailableError,
)
from pyiceberg.table import Table, Transaction

from pipeline_runtime.errors import OutputError, OutputRefused
from pipeline_runtime.iceberg.commits import (
    CommitKey,
    Committed,
    CommitUnknown,
    Retrying,
    commit_change,
)
from pipeline_runtime.iceberg.files import TableLayout, writing_file

SCHEMA = pa.schema([("id", pa.int64())])
AT_ONCE = Retrying(sleep=lambda seconds: None)


class Scripted(SqlCatalog):
    """Answers commits by a script: raise before the commit, raise after it, or neither."""

    script: list[tuple[str, Exception]]

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        when, error = self.script.pop(0) if self.script else ("never", None)
        if when == "before" and error:
            raise error
        response = super().commit_table(table, requirements, updates)
        if when == "after" and error:
            raise error
        return response


@pytest.fixture
def scripted(catalog: SqlCatalog) -> SqlCatalog:
    catalog.create_table("db.t", SCHEMA)
    catalog.__class__ = Scripted
    catalog.script = []  # type: ignore[attr-defined]
    return catalog


def append(catalog: SqlCatalog, value: int) -> Callable[[Table | None], Transaction]:
    """Return a stage that appends one row in one file."""
    layout = TableLayout.of(catalog.load_table("db.t"))
    path = layout.locate("", f"{value}.parquet")
    with writing_file(layout, path, "zstd") as writer:
        writer.write(pa.table({"id": [value]}).cast(layout.build_arrow_schema()))
        record = writer.finish(is_sorted=False)
    key = key_of(value)

    def stage(table: Table | None) -> Transaction:
        assert table is not None
        transaction = table.transaction()
        producer = transaction.update_snapshot(
            snapshot_properties=key.to_properties()
        ).fast_append()
        producer.append_data_file(layout.build_data_file(record))
        producer.commit()
        return transaction

    return stage


def key_of(value: int) -> CommitKey:
    return CommitKey(run="run", token=f"token-{value}")


def ids(catalog: SqlCatalog) -> list[int]:
    return sorted(catalog.load_table("db.t").scan().to_arrow()["id"].to_pylist())


def unused_metadata(catalog: SqlCatalog) -> set[str]:
    """Return the manifests and manifest lists that no snapshot names."""
    table = catalog.load_table("db.t")
    used = set()
    for snapshot in table.metadata.snapshots:
        used |= {snapshot.manifest_list, *(m.manifest_path for m in snapshot.manifests(table.io))}
    folder = Path(table.location().removeprefix("file://")) / "metadata"
    return {f"file://{path}" for path in folder.glob("*.avro")} - used


CONFLICT = CommitFailedException("409")
LOST = CommitStateUnknownException("502")
SILENT = ConnectionError("reset")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([], id="answered"),
        pytest.param([("before", CONFLICT)], id="conflict"),
        pytest.param([("before", CONFLICT)] * 9, id="many conflicts"),
        pytest.param([("after", CONFLICT)], id="repeated by a proxy"),
        pytest.param([("before", LOST)], id="unknown and not carried out"),
        pytest.param([("after", LOST)], id="lost acknowledgement"),
        pytest.param([("after", SILENT)], id="connection reset after the commit"),
        pytest.param([("before", SILENT), ("before", CONFLICT), ("after", LOST)], id="all"),
        pytest.param([("before", ServiceUnavailableError("503"))], id="unavailable"),
    ],
)
def test_a_commit_lands_once(scripted: SqlCatalog, script: list[tuple[str, Exception]]) -> None:
    scripted.script = list(script)  # type: ignore[attr-defined]
    landed = commit_change(scripted, "db.t", key_of(1), append(scripted, 1), retrying=AT_ONCE)
    assert ids(scripted) == [1]
    table = scripted.load_table("db.t")
    assert [s.snapshot_id for s in table.metadata.snapshots] == [landed.snapshot_id]
    assert landed.summary["lastmile.run"] == "run"
    assert unused_metadata(scripted) == set()
    repeated = commit_change(scripted, "db.t", key_of(1), append(scripted, 1), retrying=AT_ONCE)
    assert (repeated.snapshot_id, ids(scripted)) == (landed.snapshot_id, [1])


def test_an_unknown_outcome_deletes_nothing(scripted: SqlCatalog) -> None:
    scripted.script = [("before", SILENT)] * 9  # type: ignore[attr-defined]
    stage = append(scripted, 1)
    with pytest.raises(CommitUnknown):
        commit_change(scripted, "db.t", key_of(1), stage, retrying=AT_ONCE)
    assert len(unused_metadata(scripted)) > 2
    scripted.script = []  # type: ignore[attr-defined]
    commit_change(scripted, "db.t", key_of(1), stage, retrying=AT_ONCE)
    assert ids(scripted) == [1]


def test_a_refusal_is_final_and_leaves_no_metadata(scripted: SqlCatalog) -> None:
    scripted.script = [("before", ForbiddenError("403"))]  # type: ignore[attr-defined]
    with pytest.raises(OutputError) as caught:
        commit_change(scripted, "db.t", key_of(1), append(scripted, 1), retrying=AT_ONCE)
    assert not isinstance(caught.value, CommitUnknown)
    assert unused_metadata(scripted) == set()
    assert ids(scripted) == []


def test_a_table_that_forbids_the_change_keeps_it_out(scripted: SqlCatalog) -> None:
    def stage(table: Table | None) -> Transaction:
        raise OutputRefused("no")

    with pytest.raises(OutputRefused):
        commit_change(scripted, "db.t", key_of(1), stage, retrying=AT_ONCE)
    assert ids(scripted) == []


@pytest.mark.parametrize(
    ("num_writers", "num_commits"),
    [(3, 2), pytest.param(8, 6, marks=pytest.mark.slow)],
)
def test_concurrent_writers_commit_all_of_their_changes(
    scripted: SqlCatalog, num_writers: int, num_commits: int
) -> None:
    writers = [
        SqlCatalog("lake", uri=scripted.properties["uri"], warehouse="file:///unused")
        for _ in range(num_writers)
    ]
    stages = {value: append(scripted, value) for value in range(num_writers * num_commits)}

    def work(writer: int) -> list[Committed]:
        fast = Retrying(min_wait_seconds=0.01, max_wait_seconds=0.2)
        mine = range(num_commits * writer, num_commits * (writer + 1))
        return [
            commit_change(writers[writer], "db.t", key_of(value), stages[value], retrying=fast)
            for value in mine
        ]

    with ThreadPoolExecutor(num_writers) as pool:
        landed = [each for found in pool.map(work, range(num_writers)) for each in found]
    assert ids(scripted) == list(stages)
    assert len({each.snapshot_id for each in landed}) == len(stages)
    assert unused_metadata(scripted) == set()
    for writer in writers:
        writer.engine.dispose()
