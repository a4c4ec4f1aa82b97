"""`lastmile convert`: its output, its summary and its refusals."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_one_tells, assert_told

from pipeline_runtime.cli import main
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.config.texts.storage_uri import SCHEMES_VARIABLE
from pipeline_runtime.convert import MARKER_NAME, ConversionOptions, convert_table, windows
from pipeline_runtime.errors import ManifestError
from pipeline_runtime.sources import open_location, read_flat
from pipeline_runtime.sources.parquet import ParquetTable, open_parquet

MANIFEST = """
apiVersion: experiments.lastmile.dev/v1alpha1
kind: DatasetExperiment
metadata: {name: nest}
spec:
  dataset:
    parquet: {uri: t/}
    rowKey: [id]
    requestKey: request
    requestColumns: [user]
"""
ROWS = {
    "id": [1, 2, 3, 4, 5, 6],
    "request": [7, 8, 7, 7, None, None],
    "user": ["a", "b", "a", "c", "d", "d"],
    "score": [0.5] * 6,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "build/t").mkdir(parents=True)
    pq.write_table(pa.table(ROWS), tmp_path / "build/t/a.parquet", compression="gzip")
    (tmp_path / "nest.yaml").write_text(MANIFEST)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Command:
    """Runs the command, and keeps its output."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capture: Any) -> None:
        self.monkeypatch, self.capture = monkeypatch, capture
        self.out = self.error = ""

    def __call__(self, *arguments: str) -> int:
        self.monkeypatch.setattr(sys, "argv", ["/usr/bin/lastmile", "convert", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        captured = self.capture.readouterr()
        self.out, self.error = captured.out, " ".join(captured.err.split())
        return int(caught.value.code or 0)


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def open_(uri: Path | str) -> ParquetTable:
    return open_parquet(ParquetSource(uri=str(uri)), "")


def ids(table: ParquetTable) -> list[int]:
    parts = [t for unit in table.scan(()).units for t in read_flat(table, unit, ["id"], 100)]
    return [value for part in parts for value in part.column("id").to_pylist()]


FLAGS = ("--input", "build/t", "--request-key", "request", "--request-columns", "user")


def test_a_summary_reports_rows_requests_and_mismatches(folder: Path, convert: Command) -> None:
    assert convert(*FLAGS, "--output", "out") == 0
    assert_told(convert.out, "out: … 6 rows … 5 requests … 1.2 … 1 file")
    assert_one_tells(convert.out.splitlines(), "… 1 row … differ")
    assert_one_tells(convert.out.splitlines(), "… 2 rows … key")
    assert ids(open_("out")) == [1, 3, 4, 2, 5, 6]
    assert not list(folder.glob(".*"))


def test_a_manifest_gives_table_key_and_columns(folder: Path, convert: Command) -> None:
    assert convert("-f", "nest.yaml", "--output", "out", "--json") == 0
    summary = json.loads(convert.out)
    assert (summary["rows"], summary["requests"], summary["mismatches"]) == (6, 5, 1)
    assert summary["output_bytes"] == Path("out/a.parquet").stat().st_size
    assert open_("out").schema.names == list(ROWS)  # rowKey is the identity: no other is added


def test_columns_get_codecs_that_read_fast(folder: Path, convert: Command) -> None:
    rng = np.random.default_rng(1)
    rows = {
        "request": np.repeat(np.arange(1000), 10),
        "noise": rng.integers(0, 1 << 62, 10_000),  # no codec gains much
        "few": rng.integers(0, 1 << 40, 500)[rng.integers(0, 500, 10_000)],  # lz4 gains enough
        "even": np.arange(10_000),  # zstd gains far more than lz4
    }
    options = {"use_dictionary": False, "compression": "gzip"}
    pq.write_table(pa.table(rows), folder / "build/t/a.parquet", **options)
    flags = ("--input", "build/t", "--request-key", "request")
    assert convert(*flags, "--output", "out") == 0
    group = pq.read_metadata("out/a.parquet").row_group(0)
    chunks = [group.column(index) for index in range(group.num_columns)]
    found = {chunk.path_in_schema.split(".")[0]: chunk.compression for chunk in chunks}
    assert found["noise"] == "UNCOMPRESSED"
    assert found["few"] == "LZ4"
    assert found["even"] == "ZSTD"


def test_a_flag_wins_over_the_manifest(folder: Path, convert: Command) -> None:
    assert convert("-f", "nest.yaml", "--request-key", "user", "--output", "out") == 0
    assert "6 rows in 4 requests" in convert.out


def test_options_set_codec_and_row_groups(folder: Path, convert: Command) -> None:
    assert convert(*FLAGS, "--output", "out", "--compression", "input") == 0
    assert (
        convert(*FLAGS, "--output", "small", "--row-group-rows", "2", "--compression", "snappy")
        == 0
    )
    kept, asked = (pq.read_metadata(f"{name}/a.parquet") for name in ("out", "small"))
    assert kept.row_group(0).column(0).compression == "GZIP"
    assert asked.row_group(0).column(0).compression == "SNAPPY"
    assert (kept.num_row_groups, asked.num_row_groups) == (1, 3)


WINDOWS = {
    "a request that would be cut goes to the next": ([0, 0, 0, 1, 1, 1, 2, 2, 2], 5, [3, 3, 3]),
    "requests that fit are not held back": ([0, 0, 1, 1, 2, 2], 4, [4, 2]),
    "a request longer than a window is cut": ([0, 1, 1, 1, 1, 1], 2, [1, 2, 2, 1]),
    "rows without a key are cut anywhere": ([None] * 5, 2, [2, 2, 1]),
}


@pytest.mark.parametrize(("keys", "window", "sizes"), WINDOWS.values(), ids=WINDOWS)
def test_windows_end_between_requests(
    tmp_path: Path, keys: list[int | None], window: int, sizes: list[int]
) -> None:
    table = pa.table({"id": range(len(keys)), "request": pa.array(keys, pa.int64())})
    pq.write_table(table, tmp_path / "a.parquet")
    options = ConversionOptions(request_key="request", rows_per_group=window)
    convert_table(open_(tmp_path / "a.parquet"), open_location(f"{tmp_path}/o"), options)
    nested = open_(tmp_path / "o")
    assert [unit.num_rows for unit in nested.scan(()).units] == sizes
    assert ids(nested) == list(range(len(keys)))


def test_windows_of_wide_rows_are_cut_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"id": range(60), "request": [i // 5 for i in range(60)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    row_bytes = table.nbytes // table.num_rows
    monkeypatch.setattr(windows, "MAX_WINDOW_BYTES", 22 * row_bytes)
    options = ConversionOptions(request_key="request")
    summary = convert_table(open_(tmp_path / "a.parquet"), open_location(f"{tmp_path}/o"), options)
    assert summary.requests == 12
    assert [unit.num_rows for unit in open_(tmp_path / "o").scan(()).units] == [35, 20, 5]


def test_files_that_readers_skip_are_refused(tmp_path: Path) -> None:
    for name in ("_a", "_b"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table(ROWS), tmp_path / name / "x.parquet")
    source = ParquetSource(uris=(f"{tmp_path}/_a", f"{tmp_path}/_b"))
    with pytest.raises(ManifestError, match=r"--input: .*_a/"):
        convert_table(
            open_parquet(source, ""),
            open_location(f"{tmp_path}/out"),
            ConversionOptions(request_key="request"),
        )


def test_a_second_conversion_needs_overwrite(folder: Path, convert: Command) -> None:
    assert convert(*FLAGS, "--output", "out") == 0
    assert convert(*FLAGS, "--output", "out") == 2
    assert "--output: out: " in convert.error
    assert convert(*FLAGS[:4], "--output", "out", "--overwrite") == 0
    assert "1 file" in convert.out
    assert open_("out").layouts[0].request_columns == ("request",)
    assert not list(folder.glob(".*"))


def test_a_failed_conversion_keeps_the_old_table(folder: Path, convert: Command) -> None:
    assert convert(*FLAGS, "--output", "out") == 0
    before = ids(open_("out"))
    path = folder / "build/t/b.parquet"
    pq.write_table(pa.table({**ROWS, "id": range(6)}), path)
    data = bytearray(path.read_bytes())
    data[4:200] = b"\xff" * 196
    path.write_bytes(data)
    assert convert(*FLAGS, "--output", "out", "--overwrite") == 3
    assert "b.parquet: " in convert.error
    assert ids(open_("out")) == before
    assert not list(folder.glob(".*"))


def test_a_marker_in_an_object_store_reports_a_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEMES_VARIABLE, "local")
    pq.write_table(pa.table(ROWS), tmp_path / "a.parquet")
    output = open_location(f"local://{tmp_path}/out")  # through fsspec, without renames
    options = ConversionOptions(request_key="request")
    stopped: list[dict[str, Any]] = []

    def stop(_: int) -> None:
        stopped.append(json.loads((tmp_path / "out" / MARKER_NAME).read_text()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_table(open_(tmp_path / "a.parquet"), output, options, stop)
    assert stopped == [{"version": 1, "complete": False}]
    assert not (tmp_path / "out").exists()
    convert_table(open_(tmp_path / "a.parquet"), output, options)
    assert json.loads((tmp_path / "out" / MARKER_NAME).read_text())["complete"] is True
    assert sorted(ids(open_(tmp_path / "out"))) == ROWS["id"]


def test_a_column_of_the_layout_s_own_name_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1], "_lastmile_num_rows": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ManifestError, match=r"--input: .*'_lastmile_num_rows'"):
        convert_table(
            open_(tmp_path / "a.parquet"),
            open_location(f"{tmp_path}/out"),
            ConversionOptions(request_key="k"),
        )


REFUSED = {
    "an unknown key": (
        ("--input", "build/t", "--request-key", "request_"),
        2,
        "--request-key: … 'request_' … 'request'",
    ),
    "unknown columns": (
        (*FLAGS[:4], "--request-columns", "usr,nothing"),
        2,
        "--request-columns: … 'usr' … 'user'",
    ),
    "a column of the manifest": (
        ("-f", "nest.yaml", "--input", "build/other"),
        2,
        "nest.yaml:10:5: spec.dataset.requestColumns: … 'user'",
    ),
    "a key of floats": (
        ("--input", "build/t", "--request-key", "score"),
        2,
        "--request-key: … 'score' … double",
    ),
    "no key": (("--input", "build/t"), 2, "--request-key: "),
    "no table": (("--request-key", "request"), 2, "--input: … -f"),
    "a table that is not there": (
        ("--input", "build/x", "--request-key", "request"),
        3,
        "build/x: ",
    ),
    "a table that is no Parquet": (
        ("--input", "nest.yaml", "--request-key", "request"),
        3,
        "nest.yaml: … Parquet",
    ),
    "an unknown codec": (
        (*FLAGS, "--compression", "zip"),
        2,
        "--compression: … auto, input, none, snappy, gzip, brotli, lz4, zstd … 'zip'",
    ),
    "somebody's folder": (
        (*FLAGS, "--output", "build/other", "--overwrite"),
        2,
        "build/other: … 'a.parquet'",
    ),
    "a file": ((*FLAGS, "--output", "nest.yaml"), 2, "nest.yaml: … folder"),
    "the input": (
        (*FLAGS, "--output", "build/t", "--overwrite"),
        2,
        "--output: … input",
    ),
}


@pytest.mark.parametrize(("arguments", "code", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_names_the_flag_or_field(
    folder: Path, convert: Command, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (folder / "build/other").mkdir()
    pq.write_table(pa.table({"request": [1]}), folder / "build/other/a.parquet")
    output = () if "--output" in arguments else ("--output", "out")
    assert convert(*arguments, *output) == code
    assert_told(convert.error.replace("│ ", ""), f"… {message}")
    assert sorted(path.name for path in folder.iterdir()) == ["build", "nest.yaml"]
    assert pq.read_table(folder / "build/t/a.parquet").num_rows == 6
