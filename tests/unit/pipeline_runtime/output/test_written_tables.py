"""Whole jobs: which rows are in which files, and what readers find."""

import shutil
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from failing_store import store_in_memory
from written_tables import Written, plan_table

from pipeline_runtime import Pipeline
from pipeline_runtime.errors import OutputError, OutputRefused, SourceError
from pipeline_runtime.output.merge import MAX_PARTITIONS, check_num_partitions
from pipeline_runtime.sources.output_manifest import MANIFEST_FILE

OTHER_RUN = "20250101T000000Z-0000000000000000"
NUMBERS = pa.table({"id": np.arange(1000), "x": np.random.default_rng(0).random(1000)})


def test_files_have_about_the_target_size(tmp_path: Path) -> None:
    stream = plan_table(tmp_path / "in.parquet", NUMBERS, 30)  # 34 units
    whole = Written(stream=stream, uri=str(tmp_path / "whole"), chunk_rows=30).write()
    assert len(whole.files) == 1
    target = whole.num_bytes // 4
    cut = Written(
        stream=stream, uri=str(tmp_path / "cut"), chunk_rows=30, target_bytes=target
    ).write()
    assert 4 <= len(cut.files) <= 5
    assert all(0.7 * target < file.bytes < 1.5 * target for file in cut.files)


def test_rows_keep_the_order_of_the_source(tmp_path: Path) -> None:
    stream = plan_table(tmp_path / "in.parquet", NUMBERS, 30)
    uri = str(tmp_path / "out")
    Written(stream=stream, uri=uri, chunk_rows=20, target_bytes=3000).write()
    assert Pipeline.read_parquet(uri).to_table("").equals(NUMBERS)


def test_types_and_partitions_survive_the_round_trip(tmp_path: Path) -> None:
    table = pa.table(
        {
            "day": pa.array([date(2026, 1, 1), None, date(2026, 1, 2)]),
            "code": pa.array([7, 8, None], pa.uint8()),
            "name": pa.array(["a/b", "", "日本"]).dictionary_encode(),
            "items": pa.array([[1], None, []], pa.list_(pa.int32())),
            "seen": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
        }
    )
    stream = plan_table(tmp_path / "in.parquet", table)
    uri = str(tmp_path / "out")
    Written(stream=stream, uri=uri, partition_by=("day", "code", "name")).write()
    found = Pipeline.read_parquet(uri).to_table("").sort_by("seen")
    assert found.select(table.column_names).to_pylist() == table.to_pylist()
    assert found.schema.field("day").type == pa.date32()
    assert found.schema.field("code").type == pa.uint8()
    assert found.schema.field("seen").type == pa.timestamp("us", "UTC")
    hive = pads.dataset(uri, partitioning="hive").to_table()
    assert sorted(hive["name"].to_pylist()) == ["", "a/b", "日本"]


def test_a_table_without_rows_is_readable(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(NUMBERS, source)
    stream = Pipeline.read_parquet(str(source)).filter("x > 2").plan("").training
    uri = str(tmp_path / "out")
    manifest = Written(stream=stream, uri=uri, partition_by=("id",)).write()
    assert (manifest.rows, len(manifest.files)) == (0, 1)
    found = Pipeline.read_parquet(uri).to_table("")
    assert found.schema.equals(NUMBERS.schema)
    assert found.num_rows == pads.dataset(uri).count_rows() == 0


def test_many_partitions_are_written_with_one_open_file(tmp_path: Path) -> None:
    table = pa.table({"k": np.arange(400) % 80, "v": np.arange(400)})
    stream = plan_table(tmp_path / "in.parquet", table, 100)
    uri = str(tmp_path / "out")
    manifest = Written(stream=stream, uri=uri, partition_by=("k",)).write()
    assert len(manifest.files) == 80
    assert Pipeline.read_parquet(uri).to_table("").num_rows == 400


def test_too_many_partitions_are_refused() -> None:
    check_num_partitions(str(i) for i in range(MAX_PARTITIONS))
    with pytest.raises(OutputRefused, match="partitionBy"):
        check_num_partitions(str(i) for i in range(MAX_PARTITIONS + 1))


def test_another_runs_table_is_refused_unless_overwritten(tmp_path: Path) -> None:
    stream = plan_table(tmp_path / "in.parquet", NUMBERS)
    uri = str(tmp_path / "out")
    Written(stream=stream, uri=uri, run=OTHER_RUN).write()
    with pytest.raises(OutputRefused, match="Overwrite"):
        Written(stream=stream, uri=uri).write()
    other = plan_table(tmp_path / "other.parquet", pa.table({"y": ["other schema"]}))
    Written(stream=other, uri=uri, mode="Overwrite").write()
    assert Pipeline.read_parquet(uri).to_table("").to_pylist() == [{"y": "other schema"}]


def test_a_run_of_the_same_second_replaces_the_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "out")
    Written(stream=plan_table(tmp_path / "a.parquet", NUMBERS), uri=uri).write()
    half = plan_table(tmp_path / "b.parquet", NUMBERS.slice(500))
    Written(stream=half, uri=uri, mode="Overwrite").write()
    assert Pipeline.read_parquet(uri).to_table("").num_rows == 500


@pytest.mark.parametrize("mode", ["Fail", "Overwrite"])
def test_a_folder_that_lastmile_did_not_write_is_never_replaced(tmp_path: Path, mode: str) -> None:
    stream = plan_table(tmp_path / "in.parquet", NUMBERS)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    for place in ("mine", "in.parquet"):
        with pytest.raises(OutputRefused):
            Written(stream=stream, uri=str(tmp_path / place), mode=mode).write()  # type: ignore[arg-type]
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_table_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    stream = plan_table(tmp_path / "in.parquet", NUMBERS)
    uri = str(tmp_path / "out")
    job = Written(stream=stream, uri=uri).open()
    Written(stream=stream, uri=uri, run=OTHER_RUN).write()
    with pytest.raises(OutputRefused, match="Overwrite"):
        Written(stream=stream, uri=uri).write(resume=True)
    assert job.run in str(job.staged.uri)


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "removed"])
def test_a_run_never_takes_another_table_for_its_own(tmp_path: Path, is_replaced: bool) -> None:
    stream = plan_table(tmp_path / "in.parquet", NUMBERS)
    settings = Written(stream=stream, uri=str(tmp_path / "out"), mode="Overwrite")
    job = settings.open()
    settings.write(resume=True)
    if is_replaced:
        Written(stream=stream, uri=settings.uri, mode="Overwrite", run=OTHER_RUN).write()
    else:
        shutil.rmtree(settings.uri)
    with pytest.raises(OutputRefused, match="in place"):
        job.finish()


def test_an_attempt_stops_once_another_took_its_run(tmp_path: Path) -> None:
    stream = plan_table(tmp_path / "in.parquet", NUMBERS)
    settings = Written(stream=stream, uri=str(tmp_path / "out"))
    first = settings.open()
    settings.open(resume=True)
    with pytest.raises(OutputError, match="another attempt"):
        first._check_claim()


def test_a_changed_source_is_not_resumed(tmp_path: Path) -> None:
    uri = str(tmp_path / "out")
    Written(stream=plan_table(tmp_path / "in.parquet", NUMBERS, 100), uri=uri).open()
    changed = plan_table(tmp_path / "in.parquet", NUMBERS, 50)
    with pytest.raises(OutputRefused, match="row groups"):
        Written(stream=changed, uri=uri).open(resume=True)


def test_readers_follow_the_list_of_files(tmp_path: Path) -> None:
    stream = plan_table(tmp_path / "in.parquet", NUMBERS)
    uri = tmp_path / "out"
    manifest = Written(stream=stream, uri=str(uri)).write()
    pq.write_table(NUMBERS, uri / "half-of-the-next-table.parquet")
    assert Pipeline.read_parquet(str(uri)).to_table("").num_rows == 1000
    (uri / manifest.files[0].path).unlink()
    with pytest.raises(SourceError, match=manifest.files[0].path):
        Pipeline.read_parquet(str(uri)).to_table("")


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "no json",
        '{"run": "r", "runHash": "h", "files": [{"path": "../x", "rows": 1, "bytes": 1}]}',
    ],
)
def test_a_damaged_list_of_files_is_refused(tmp_path: Path, text: str) -> None:
    pq.write_table(NUMBERS, tmp_path / "a.parquet")
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(SourceError, match=MANIFEST_FILE):
        Pipeline.read_parquet(str(tmp_path)).plan("")


def test_staged_files_of_a_store_match_no_pattern_for_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LASTMILE_STORAGE_SCHEMES", "away")
    stream = plan_table(tmp_path / "in.parquet", NUMBERS)
    with store_in_memory():
        settings = Written(stream=stream, uri="away://lake/out")
        monkeypatch.setattr("pipeline_runtime.output.folder.commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            settings.write()
        names = settings.place().staging.sizes()
        assert any(".parquet" in name for name in names)
        assert not any(name.endswith(".parquet") for name in names)


def test_a_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = plan_table(tmp_path / "in.parquet", NUMBERS)
    settings = Written(stream=stream, uri=str(tmp_path / "out"))
    spool = settings.place().run(settings.run).location.join("spool")
    Path(spool.path).mkdir(parents=True)
    # A device that is always full stands where the first spool file goes.
    monkeypatch.setattr("pipeline_runtime.output.spool.make_token", lambda: "full")
    (Path(spool.path) / "000000-0000-full.arrows").symlink_to("/dev/full")
    with pytest.raises(OutputError, match="--resume"):
        settings.write(resume=True)
