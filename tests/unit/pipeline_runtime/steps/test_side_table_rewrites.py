"""Side tables that are rewritten between two reads in one process."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline
from pipeline_runtime.steps import side_tables


@pytest.fixture
def rows(tmp_path: Path) -> Pipeline:
    pq.write_table(pa.table({"user": [1, 2, 3]}), tmp_path / "rows.parquet")
    return Pipeline.read_parquet(str(tmp_path / "rows.parquet"))


def put(path: Path, users: list[int], scores: list[int]) -> str:
    """Write a side table whose footer does not depend on its values."""
    table = pa.table({"user": users, "score": scores})
    pq.write_table(table, path, write_statistics=False, use_dictionary=False, compression="none")
    return str(path)


def join(rows: Pipeline, side: str) -> list[int | None]:
    scores: list[int | None] = rows.join(side, on="user").to_table("/")["score"].to_pylist()
    return scores


def anti_join(rows: Pipeline, side: str) -> list[int]:
    users: list[int] = rows.anti_join(side, on="user").to_table("/")["user"].to_pylist()
    return users


def test_a_rewritten_side_table_is_read_again(rows: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "side.parquet"
    side = put(path, [1, 2], [10, 20])
    assert (join(rows, side), anti_join(rows, side)) == ([10, 20, None], [3])
    first = path.stat()
    put(path, [2, 3], [77, 88])
    assert path.stat().st_size == first.st_size
    assert (join(rows, side), anti_join(rows, side)) == ([None, 77, 88], [1])


def test_a_side_table_with_its_old_modification_time_is_read_again(
    rows: Pipeline, tmp_path: Path
) -> None:
    path = tmp_path / "side.parquet"
    side = put(path, [1, 2], [10, 20])
    changed = path.stat().st_mtime_ns
    assert join(rows, side) == [10, 20, None]
    put(path, [2, 3], [77, 88])
    os.utime(path, ns=(changed, changed))
    assert join(rows, side) == [None, 77, 88]


def test_two_storage_roots_have_different_side_tables(rows: Pipeline, tmp_path: Path) -> None:
    scores = []
    for name, users in {"a": [1, 2], "b": [2, 3]}.items():
        (tmp_path / name).mkdir()
        put(tmp_path / name / "side.parquet", users, [10, 20])
        joined = rows.join("side.parquet", on="user").to_table(str(tmp_path / name))
        scores.append(joined["score"].to_pylist())
    assert scores == [[10, 20, None], [None, 10, 20]]


def test_a_new_index_replaces_that_of_a_rewritten_side_table(
    rows: Pipeline, tmp_path: Path
) -> None:
    side_tables.clear_indices()
    side = put(tmp_path / "side.parquet", [1, 2], [10, 20])
    join(rows, side)
    [first] = side_tables.kept_indices()
    join(rows, side)
    assert side_tables.kept_indices() == [first]
    put(tmp_path / "side.parquet", [2, 3], [77, 88])
    join(rows, side)
    [second] = side_tables.kept_indices()
    assert second is not first


def test_a_new_index_replaces_that_of_a_folder_that_got_a_file(
    rows: Pipeline, tmp_path: Path
) -> None:
    side_tables.clear_indices()
    (tmp_path / "side").mkdir()
    put(tmp_path / "side/a.parquet", [1], [10])
    assert join(rows, f"{tmp_path}/side") == [10, None, None]
    put(tmp_path / "side/b.parquet", [3], [30])
    assert join(rows, f"{tmp_path}/side") == [10, None, 30]
    assert len(side_tables.kept_indices()) == 1


def test_a_copied_table_has_the_digest_that_resume_compares(tmp_path: Path) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    put(paths[0], [1, 2], [10, 20])
    paths[1].write_bytes(paths[0].read_bytes())
    tables = [Pipeline.read_parquet(str(path)).plan("/").training.table for path in paths]
    assert tables[0].footer_digests([0]) == tables[1].footer_digests([0])
    assert tables[0].content_versions([0]) != tables[1].content_versions([0])
