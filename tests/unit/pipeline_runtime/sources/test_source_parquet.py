"""Parquet tables: the files of a table, its schema, and errors that name the file."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_told

from pipeline_runtime.config import ParquetSource
from pipeline_runtime.config.texts.storage_uri import SCHEMES_VARIABLE
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources import open_location, read_flat, resolve_uri
from pipeline_runtime.sources.parquet import ParquetTable, open_parquet
from pipeline_runtime.sources.parquet.listing import find_files


def put(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns or {"x": [1, 2, 3]}), path)
    return path


def open_(root: Path, *uris: str) -> ParquetTable:
    source = ParquetSource(uri=uris[0]) if len(uris) == 1 else ParquetSource(uris=uris)
    return open_parquet(source, str(root))


def read_all(table: ParquetTable, columns: list[str] | None = None) -> pa.Table:
    names = columns if columns is not None else table.schema.names
    parts = [t for unit in table.scan(()).units for t in read_flat(table, unit, names, 1 << 20)]
    return pa.concat_tables(parts)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    put(tmp_path / "t/day=2026-01-01/hour=5/a.parquet")
    put(tmp_path / "t/day=2026-01-02/hour=11/b.parquet", x=[4])
    put(tmp_path / "t/_old/c.parquet", y=["hidden"])
    put(tmp_path / "t/.tmp/d.parquet", y=["hidden"])
    (tmp_path / "t/_SUCCESS").write_text("")
    (tmp_path / "t/day=2026-01-01/notes.txt").write_text("not Parquet")
    return tmp_path


LOCATIONS = {
    "a directory, hive partitions as columns": (("t/",), 4, {"x", "day", "hour"}),
    "a directory without a slash": (("t",), 4, {"x", "day", "hour"}),
    "one file": (("t/day=2026-01-01/hour=5/a.parquet",), 3, {"x"}),
    "a glob over folders": (("t/day=*/hour=11/*.parquet",), 1, {"x", "day", "hour"}),
    "a glob that names folders": (("t/day=2026-01-0[12]",), 4, {"x", "day", "hour"}),
    "a recursive glob": (("t/**/*.parquet",), 4, {"x", "day", "hour"}),
    "a list": (
        ("t/day=2026-01-01/hour=5/a.parquet", "t/day=2026-01-02/hour=11/b.parquet"),
        4,
        {"x"},
    ),
    "a directory inside a partition": (("t/day=2026-01-02/",), 1, {"x", "hour"}),
}


@pytest.mark.parametrize(("uris", "rows", "columns"), LOCATIONS.values(), ids=LOCATIONS)
def test_locations(lake: Path, uris: tuple[str, ...], rows: int, columns: set[str]) -> None:
    table = open_(lake, *uris)
    assert set(table.schema.names) == columns
    assert read_all(table).num_rows == rows


def test_partition_values_are_integers_or_text(lake: Path) -> None:
    table = open_(lake, "t/")
    assert table.schema.field("day").type == pa.string()
    assert table.schema.field("hour").type == pa.int64()
    assert set(read_all(table, ["hour", "day"]).to_pylist()[0].items()) == {
        ("day", "2026-01-01"),
        ("hour", 5),
    }


def test_row_groups_carry_their_partition_values(lake: Path) -> None:
    units = open_(lake, "t/").scan(()).units
    rows = read_all(open_(lake, "t/"), ["day", "hour"])
    assert [
        dict(unit.partition) for unit in units for _ in range(unit.num_rows)
    ] == rows.to_pylist()


def test_a_partition_column_alone_has_all_rows(lake: Path) -> None:
    assert read_all(open_(lake, "t/"), ["day"]).column("day").to_pylist().count("2026-01-01") == 3


def test_files_are_read_if_none_has_a_suffix(tmp_path: Path) -> None:
    put(tmp_path / "spark/part-00000")
    (tmp_path / "spark/_SUCCESS").write_text("")
    assert read_all(open_(tmp_path, "spark/")).num_rows == 3


def test_a_long_row_group_is_read_in_parts(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", x=list(range(10)))
    table = open_(tmp_path, "a.parquet")
    unit = table.scan(()).units[0]
    parts = [part.column("x").to_pylist() for part in read_flat(table, unit, ["x"], 4)]
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_different_encodings_of_text_are_one_schema(tmp_path: Path) -> None:
    put(tmp_path / "t/a.parquet", s=pa.array(["a", "b"]), n=[1, 2])
    put(tmp_path / "t/b.parquet", n=[3], s=pa.array(["a"]).dictionary_encode())
    put(tmp_path / "t/c.parquet", s=pa.array(["c"], pa.large_string()), n=[4])
    rows = read_all(open_(tmp_path, "t/"))
    assert rows.column("s").to_pylist() == ["a", "b", "a", "c"]
    assert rows.column("n").to_pylist() == [1, 2, 3, 4]


def test_different_encodings_within_structs_are_one_schema(tmp_path: Path) -> None:
    for name, text in (("a", pa.string()), ("b", pa.large_string())):
        kind = pa.struct([pa.field("s", text)])
        put(tmp_path / f"t/{name}.parquet", x=pa.array([{"s": name}], type=kind))
    table = read_all(open_(tmp_path, "t/"))
    assert table.column("x").to_pylist() == [{"s": "a"}, {"s": "b"}]


def test_a_null_column_gets_the_type_of_other_files(tmp_path: Path) -> None:
    put(tmp_path / "t/a.parquet", x=pa.array([None], pa.null()), y=[1])
    put(tmp_path / "t/b.parquet", x=["b"], y=[2])
    put(tmp_path / "t/c.parquet", x=pa.array([], pa.null()), y=pa.array([], pa.int64()))
    table = open_(tmp_path, "t/")
    assert table.schema.field("x").type == pa.string()
    assert read_all(table).column("x").to_pylist() == [None, "b"]


def test_a_rewritten_file_has_another_footer_digest(tmp_path: Path) -> None:
    put(tmp_path / "t/a.parquet", x=[1, 2, 3])
    before = open_(tmp_path, "t/").footer_digests([0])
    assert open_(tmp_path, "t/").footer_digests([0]) == before
    put(tmp_path / "t/a.parquet", x=[1, 2, 4])
    assert open_(tmp_path, "t/").footer_digests([0]) != before


def test_uris_on_two_file_systems_are_refused(lake: Path) -> None:
    with pytest.raises(SourceError, match=r"^gs://x: "):
        open_(lake, "t/", "gs://x")


def test_a_table_is_pickled_without_footers(lake: Path) -> None:
    table = open_(lake, "t/")
    unit = table.scan(()).units[0]
    copy = pickle.loads(pickle.dumps(table))
    assert next(iter(read_flat(copy, unit, ["x"], 10))).equals(
        next(iter(read_flat(table, unit, ["x"], 10)))
    )
    assert copy.fragments == ()


def broken_nothing(root: Path) -> None:
    pass


def broken_no_parquet(root: Path) -> None:
    (root / "t").mkdir()
    (root / "t/_SUCCESS").write_text("")


def broken_missing_column(root: Path) -> None:
    put(root / "t/a.parquet", x=[1], y=[2])
    put(root / "t/b.parquet", x=[1])


def broken_extra_column(root: Path) -> None:
    put(root / "t/a.parquet", x=[1])
    put(root / "t/b.parquet", x=[1], y=[2])


def broken_other_type(root: Path) -> None:
    put(root / "t/a.parquet", x=[1])
    put(root / "t/b.parquet", x=["one"])


def broken_footer(root: Path) -> None:
    put(root / "t/a.parquet", x=[1])
    (root / "t/b.parquet").write_bytes(b"PAR1 this is no Parquet file")


def broken_empty_file(root: Path) -> None:
    put(root / "t/a.parquet", x=[1])
    (root / "t/b.parquet").write_bytes(b"")


def broken_partitions(root: Path) -> None:
    put(root / "t/day=1/a.parquet", x=[1])
    put(root / "t/b.parquet", x=[1])


def broken_repeated_column(root: Path) -> None:
    (root / "t").mkdir()
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(table, root / "t/a.parquet")


BROKEN = {
    broken_nothing: "… t/: … uri",
    broken_no_parquet: "… Parquet",
    broken_missing_column: "… t/b.parquet: … 'y' … t/a.",
    broken_extra_column: "… t/b.parquet: … 'y' … t/a.",
    broken_other_type: "… t/b.parquet: … 'x' … string … int64 … t/a.",
    broken_footer: "… t/b.parquet: … footer",
    broken_empty_file: "… t/b.parquet: … footer",
    broken_partitions: "… partition",
    broken_repeated_column: "… 'x'",
}


@pytest.mark.parametrize(
    ("arrange", "message"), BROKEN.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_a_broken_table_is_refused_with_the_files_name(
    tmp_path: Path, arrange: Any, message: str
) -> None:
    arrange(tmp_path)
    with pytest.raises(SourceError) as caught:
        open_(tmp_path, "t/")
    assert_told(str(caught.value), message)


def test_a_glob_without_a_match_reports_the_files_searched(lake: Path) -> None:
    with pytest.raises(SourceError, match=r"day=1999.*\b2 files"):
        open_(lake, "t/day=1999*/*.parquet")


def test_a_file_deleted_before_reading_is_named(tmp_path: Path) -> None:
    path = put(tmp_path / "t/a.parquet")
    table = open_(tmp_path, "t/")
    unit = table.scan(()).units[0]
    path.unlink()
    with pytest.raises(SourceError, match=r"t/a\.parquet: "):
        list(read_flat(table, unit, ["x"], 10))


def test_a_corrupt_page_is_named_with_its_row_group(tmp_path: Path) -> None:
    path = put(tmp_path / "t/a.parquet", x=list(range(10_000)))
    table = open_(tmp_path, "t/")
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"t/a\.parquet: .*row group 0"):
        list(read_flat(table, table.scan(()).units[0], ["x"], 1 << 20))


def test_fsspec_serves_the_schemes_that_the_environment_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEMES_VARIABLE, "other, local")
    put(tmp_path / "t/day=1/a.parquet", x=[7])
    table = open_parquet(ParquetSource(uri=f"local://{tmp_path}/t/"), "")
    assert read_all(table).to_pylist() == [{"x": 7, "day": 1}]


def test_an_unknown_scheme_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="'nosuch'"):
        open_location("nosuch://bucket/t", str(tmp_path))


ROOTS = {
    "relative to a local root": ("data/", "build/", "build/data/"),
    "relative to a bucket": ("data/", "s3://bucket/team/", "s3://bucket/team/data/"),
    "a scheme stands alone": ("s3://other/t", "build/", "s3://other/t"),
    "an absolute path stands alone": ("/mnt/t", "s3://bucket", "/mnt/t"),
    "a home stands alone": ("~/t", "s3://bucket", "~/t"),
    "no root": ("t", "", "t"),
}


@pytest.mark.parametrize(("uri", "root", "expected"), ROOTS.values(), ids=ROOTS)
def test_a_uri_without_a_scheme_is_relative_to_the_storage_root(
    uri: str, root: str, expected: str
) -> None:
    assert resolve_uri(uri, root) == expected


@pytest.mark.parametrize(
    ("uri", "root", "path"),
    [
        ("t", "~/lake", "/home/me/lake/t"),
        ("~/t", ".", "/home/me/t"),
        ("~/t/*", "s3://bucket", "/home/me/t/*"),
        ("~", "build/", "/home/me"),
        ("a/~/t", "/b", "/b/a/~/t"),  # only at the beginning
        ("~t", "/b", "/b/~t"),
    ],
)
def test_a_tilde_is_the_home_folder(
    uri: str, root: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert open_location(uri, root).path == path


FORMATS = {
    "Delta Lake": "t/_delta_log/00000000000000000000.json",
    "Delta Lake's checkpoint": "t/_delta_log/00000000000000000010.checkpoint.parquet",
    "Hudi": "t/.hoodie/hoodie.properties",
    "Iceberg": "t/metadata/00000-6f3a.metadata.json",
    "Iceberg of Hadoop": "t/metadata/v1.gz.metadata.json",
}


@pytest.mark.parametrize("marker", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("uri", ["t/", "t", "t/*.parquet", "t/day=*/", "./"])
def test_a_table_of_another_format_is_refused_by_name(
    tmp_path: Path, marker: str, uri: str
) -> None:
    put(tmp_path / "t/a.parquet")
    put(tmp_path / "t/day=1/a.parquet")
    (tmp_path / marker).parent.mkdir()
    (tmp_path / marker).write_text("{}")
    with pytest.raises(SourceError, match=r"Delta|Hudi|Iceberg"):
        open_(tmp_path, uri)
    assert open_(tmp_path, "t/a.parquet").files == ("a.parquet",)  # a single file


@pytest.mark.parametrize(
    "other",
    [
        "t/metadata/a.parquet",
        "t/metadata/notes.json",
        "t/metadata/old/v1.metadata.json",
        "t/v1.metadata.json",
        "_delta_log/00000000000000000000.json",
        "u/_delta_log/00000000000000000000.json",
    ],
)
def test_other_folders_do_not_mark_another_format(tmp_path: Path, other: str) -> None:
    put(tmp_path / "t/a.parquet")
    if other.endswith(".parquet"):
        put(tmp_path / other)
    else:
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_text("{}")
    assert "a.parquet" in open_(tmp_path, "t/").files


def test_a_table_of_another_format_costs_no_further_listing(tmp_path: Path) -> None:
    """The check lists no other folder either."""
    put(tmp_path / "t/a.parquet")
    listed: list[str] = []
    location = open_location(str(tmp_path / "t/"))

    class Listing:
        def get_file_info(self, what: Any) -> Any:
            listed.append(getattr(what, "base_dir", what))
            return location.filesystem.get_file_info(what)

    find_files(replace(location, filesystem=Listing()))
    assert listed == [str(tmp_path / "t")] * 2  # its type, and the files below it
