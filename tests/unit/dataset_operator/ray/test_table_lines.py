"""The lines about tables at the end of a driver's log, in which a user may print anything."""

import json
from dataclasses import replace

import pytest

from dataset_operator.observed import CatalogTables, WrittenTable
from dataset_operator.ray.table_reports import parse_lines
from pipeline_runtime.config import MaterializationStatus, ModelStatus, SnapshotStatus

LINE = b"output: rows=1000 files=3 bytes=4096"


@pytest.mark.parametrize(
    ("log", "rows"),
    [
        (LINE, 1000),
        (b'{"logs": "spooling\\noutput: rows=7 files=1 bytes=9\\nbye\\n"}', 7),
        (b"output: rows=1 files=1 bytes=1\n" + LINE, 1000),  # the last one counts
        (LINE + b"\noutput: rows=none", 1000),
        (b"output: rows=9007199254740991 files=0 bytes=0", 2**53 - 1),
        (b"output: rows=9007199254740992 files=0 bytes=0", None),
        (b"output: rows=12345678901234567 files=0 bytes=0", None),
        (b"output: rows=-1 files=0 bytes=0", None),
        (b"output: rows=1.5 files=0 bytes=0", None),
        ("output: rows=٣ files=0 bytes=0".encode(), None),
        (LINE[:-4], None),
        (LINE[:-11], None),
        (LINE + b" snapshot_id=9223372036854775808", None),  # more than Iceberg's 64 bits
        (LINE + b" partitions=2147483648", None),
        (b"\x00\xff" * 1000, None),
        (b"", None),
    ],
)
def test_only_a_whole_line_is_a_table(log: bytes, rows: int | None) -> None:
    found, _ = parse_lines(log)
    assert (found and found.rows) == rows


def test_all_numbers_are_read() -> None:
    table = WrittenTable(rows=1000, files=3, num_bytes=4096)
    assert parse_lines(LINE) == (table, CatalogTables())
    found, _ = parse_lines(LINE + b" partitions=3 complete_partitions=2 snapshot_id=5")
    assert found == replace(table, partitions=3, complete_partitions=2, snapshot_id="5")


READ = b"read: catalog=lake table=db.rows snapshot_id=5"
KEPT = b"materialized: catalog=lake table=db.cache state=Miss partitions=3 complete_partitions=3"
ROWS = SnapshotStatus(catalog="lake", table="db.rows", snapshot_id="5")
CACHE = MaterializationStatus(
    catalog="lake",
    table="db.cache",
    state="Miss",
    partitions=3,
    complete_partitions=3,
    snapshot_id="7",
)


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(b"report\n%b\n%b snapshot_id=7\n" % (READ, KEPT), id="raw"),
        pytest.param(b'{"logs": "%b\\n%b snapshot_id=7\\n"}' % (READ, KEPT), id="json"),
        pytest.param(b"%b\n%b snapshot_id=7" % (READ, KEPT), id="no line break"),
        pytest.param(b"%b\n%b\n%b snapshot_id=7" % (READ, READ, KEPT), id="twice"),
        pytest.param(b"%b5%b\n%b\n%b snapshot_id=7" % (READ, b"0" * 30, READ, KEPT), id="too long"),
        pytest.param(b"%b /etc\n%b other=1 snapshot_id=7" % (READ, KEPT), id="more fields"),
    ],
)
def test_lines_about_tables_are_read(log: bytes) -> None:
    assert parse_lines(log) == (
        None,
        CatalogTables(snapshots=(ROWS,), materialization=CACHE),
    )


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"\x00\xff" * 1000,
        b"read: catalog=lake table=db.rows",
        b"read: catalog=lake table=rows snapshot_id=5",
        b"read: catalog=lake table=db.rows snapshot_id=-5",
        b"read: catalog=" + b"x" * 64 + b" table=db.rows snapshot_id=5",
        b"read: catalog=lake table=db." + b"x" * 512 + b" snapshot_id=5",
        b"read: catalog=lake table=db.a\\b snapshot_id=5",
        KEPT.replace(b"Miss", b"Maybe"),
        KEPT.replace(b"=3", b"=-3"),
        KEPT.replace(b"=3", b"=3000000000"),
        KEPT + b" snapshot_id=x",
    ],
)
def test_lines_that_cannot_be_are_skipped(log: bytes) -> None:
    assert parse_lines(log) == (None, CatalogTables())


SHA256 = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("line", "model"),
    [
        (
            f"model: model_experiment=base model_run=20260101T-01 file=step-7 sha256={SHA256}",
            {"experiment": "base", "run": "20260101T-01", "file": "step-7"},
        ),
        (f"model: file=ranker.onnx sha256={SHA256}", {"file": "ranker.onnx"}),
        (f"model: file=x sha256={SHA256[:-1]}", None),
        (f"model: file=x sha256={SHA256.upper()}", None),
        (f"model: file={'x' * 129} sha256={SHA256}", None),
        (f"model: model_experiment=Base file=x sha256={SHA256}", None),
        (f"model: sha256={SHA256}", None),
    ],
)
def test_lines_about_models_are_read(line: str, model: dict[str, str] | None) -> None:
    expected = () if model is None else (ModelStatus(**model, sha256=SHA256),)
    for log in (line, json.dumps({"logs": line})):
        assert parse_lines(log.encode())[1].models == expected


def test_names_of_tables_survive_json() -> None:
    line = "read: catalog=lake table=db.строки snapshot_id=5"
    for log in (line, json.dumps({"logs": line}), json.dumps({"logs": line}, ensure_ascii=False)):
        [found] = parse_lines(log.encode())[1].snapshots
        assert found.table == "db.строки"


def test_the_last_16_snapshots_are_taken() -> None:
    lines = [f"read: catalog=lake table=db.t{n} snapshot_id={n + 1}" for n in range(1000)]
    found = parse_lines("\n".join(lines).encode())[1].snapshots
    assert [each.snapshot_id for each in found] == [str(n) for n in range(985, 1001)]
