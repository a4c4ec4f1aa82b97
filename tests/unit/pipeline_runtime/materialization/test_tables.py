"""Cache tables in a catalog: listed, described, deleted with their files."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.update import SetLocationUpdate

from pipeline_runtime.errors import SourceError
from pipeline_runtime.materialization.coverage import (
    COVERAGE_PROPERTY,
    Covered,
    Input,
    encode_coverage,
)
from pipeline_runtime.materialization.recipe import Recipe
from pipeline_runtime.materialization.tables import (
    DELETING_PROPERTY,
    RECIPE_PROPERTY,
    delete_table,
    expire_snapshots,
    find_nearest,
    find_orphans,
    list_tables,
    load_cache,
    name_table,
)
from tests.support.tables.days_table import SCHEMA, make_rows

COVERAGE = {"{}": Covered(inputs=(Input(table="t", fingerprint="a", snapshot_id=1),))}


def _recipe(**parts: object) -> Recipe:
    return Recipe(parts={"version": 1, "source": "t", **parts})


def _create(catalog: SqlCatalog, recipe: Recipe, num_commits: int = 1) -> Table:
    table = catalog.create_table(
        name_table("db.cache", recipe), SCHEMA, properties={RECIPE_PROPERTY: recipe.to_json()}
    )
    for day in range(num_commits):
        properties = {COVERAGE_PROPERTY: encode_coverage(COVERAGE)}
        table.append(make_rows(day + 1), snapshot_properties=properties)
    return table


def _list_files(tmp_path: Path) -> set[Path]:
    return {path for path in (tmp_path / "lake").rglob("*") if path.is_file()}


def test_tables_of_a_base_name_are_listed_newest_first(catalog: SqlCatalog) -> None:
    assert list_tables(catalog, "db.cache") == []
    assert list_tables(catalog, "nowhere.cache") == []
    first, second = _recipe(where=["a"]), _recipe(where=["b"])
    _create(catalog, first)
    _create(catalog, second, num_commits=2)
    catalog.create_table("db.cache_other", SCHEMA)
    catalog.create_table("db.cache", SCHEMA)
    found = list_tables(catalog, "db.cache")
    assert [table.name for table in found] == [name_table("db.cache", r) for r in (second, first)]
    assert (found[0].rows, found[0].num_files, found[0].coverage) == (8, 2, COVERAGE)
    nearest, changes = find_nearest(found, _recipe(where=["b"], rowKey=["x"]))
    assert (nearest.recipe, len(changes)) == (found[0].recipe, 1)


def test_a_table_of_another_kind_is_refused(catalog: SqlCatalog) -> None:
    catalog.create_table("db.mine", SCHEMA)
    with pytest.raises(SourceError):
        load_cache(catalog, "db.mine")
    assert load_cache(catalog, "db.none") is None


def test_deleting_a_table_leaves_no_file(catalog: SqlCatalog, tmp_path: Path) -> None:
    kept = _create(catalog, _recipe(where=["kept"]))
    before = _list_files(tmp_path)
    name = name_table("db.cache", _recipe())
    table = _create(catalog, _recipe(), num_commits=2)
    (Path(table.location().removeprefix("file://")) / "data/orphan.parquet").write_bytes(b"x")
    files = delete_table(catalog, name)
    assert len(files.paths) > 5
    assert _list_files(tmp_path) == before
    with pytest.raises(NoSuchTableError):
        catalog.load_table(name)
    assert kept.scan().count() == 4


def test_an_interrupted_deletion_is_finished(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = _create(catalog, _recipe())
    with table.transaction() as transaction:
        transaction.set_properties({DELETING_PROPERTY: "true"})
    for path in (tmp_path / "lake").rglob("*.parquet"):
        path.unlink()
    name = name_table("db.cache", _recipe())
    assert load_cache(catalog, name) is None
    assert [each.is_deleting for each in list_tables(catalog, "db.cache")] == [True]
    delete_table(catalog, name)
    assert _list_files(tmp_path) == set()


def test_expired_snapshots_free_the_files_of_replaced_rows(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    table, name = _create(catalog, _recipe(), num_commits=2), name_table("db.cache", _recipe())
    properties = {COVERAGE_PROPERTY: encode_coverage(COVERAGE)}
    table.overwrite(make_rows(3), snapshot_properties=properties)
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().create_tag(first, "audit").commit()
    assert expire_snapshots(catalog, name, timedelta(days=1)) == 0
    assert expire_snapshots(catalog, name, timedelta(0)) >= 1
    table.refresh().manage_snapshots().remove_tag("audit").commit()
    assert expire_snapshots(catalog, name, timedelta(0)) == 1
    find_orphans(catalog, name, timedelta(0)).delete()
    assert len(list((tmp_path / "lake").rglob("*.parquet"))) == 1
    [found] = list_tables(catalog, "db.cache")
    assert (found.rows, found.coverage) == (4, COVERAGE)
    assert catalog.load_table(name).scan().count() == 4


def test_orphans_are_the_files_of_no_snapshot(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = _create(catalog, _recipe(), num_commits=2)
    table.delete("day = '2026-01-01'")  # old snapshots still have its files
    folder = Path(table.location().removeprefix("file://"))
    orphans = {folder / "data/orphan.parquet", folder / "metadata/orphan-m0.avro"}
    for path in orphans:
        path.write_bytes(b"12345")
    name = name_table("db.cache", _recipe())
    assert find_orphans(catalog, name).paths == ()  # too young
    before = _list_files(tmp_path)
    found = find_orphans(catalog, name, timedelta(0))
    assert ({Path(path) for path in found.paths}, found.num_bytes) == (orphans, 10)
    found.delete()
    assert _list_files(tmp_path) == before - orphans


def test_files_under_another_name_of_the_folder_are_used(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    table = _create(catalog, _recipe())
    (tmp_path / "alias").symlink_to(tmp_path / "lake")
    moved = SetLocationUpdate(location=table.location().replace("/lake/", "/alias/"))
    catalog.commit_table(table, (), (moved,))
    name = name_table("db.cache", _recipe())
    assert find_orphans(catalog, name, timedelta(0)).paths == ()
