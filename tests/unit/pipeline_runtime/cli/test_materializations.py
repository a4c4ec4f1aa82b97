"""`lastmile materializations`: which tables it lists, describes and deletes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from pipeline_runtime.cli import main
from pipeline_runtime.materialization.coverage import (
    COVERAGE_PROPERTY,
    Covered,
    Input,
    encode_coverage,
)
from pipeline_runtime.materialization.recipe import Recipe
from pipeline_runtime.materialization.tables import RECIPE_PROPERTY, name_table
from tests.support.tables.days_table import SCHEMA, make_rows

MANIFEST = """
apiVersion: experiments.lastmile.dev/v1alpha1
kind: DatasetExperiment
metadata: {{name: kept}}
spec:
  catalogs: [{{name: lake, type: Sql, uri: "{uri}", warehouse: "{folder}/lake"}}]
  dataset: {{parquet: {{uri: t/}}, rowKey: [user_id]}}
  pipeline:
  - materialize: {{iceberg: {{catalog: lake, table: db.cache}}, bucketBy: user_id, buckets: 4}}
"""
COVERAGE = {"{}": Covered(inputs=(Input(table="t", fingerprint="a", snapshot_id=1),))}
Call = Callable[..., Any]


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlCatalog]:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    found = SqlCatalog("lake", uri=uri, warehouse=f"file://{tmp_path}/lake")
    found.create_namespace("db")
    (tmp_path / "m.yaml").write_text(MANIFEST.format(uri=uri, folder=tmp_path))
    monkeypatch.chdir(tmp_path)
    yield found
    found.engine.dispose()


@pytest.fixture
def names(catalog: SqlCatalog) -> list[str]:
    """Create three tables; return their names, the newest first."""
    created: list[str] = []
    for number in range(3):
        recipe = Recipe(parts={"version": 1, "where": [f"x > {number}"]})
        name = name_table("db.cache", recipe)
        table = catalog.create_table(name, SCHEMA, properties={RECIPE_PROPERTY: recipe.to_json()})
        properties = {COVERAGE_PROPERTY: encode_coverage(COVERAGE)}
        table.append(make_rows(1), snapshot_properties=properties)
        created.insert(0, name)
    return created


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Call the command, and return what it prints as JSON."""

    def call(verb: str, *arguments: str, code: int = 0) -> Any:
        argv = ["lastmile", "materializations", verb, "-f", "m.yaml", "--json", *arguments]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as caught:
            main()
        assert int(caught.value.code or 0) == code, capsys.readouterr().err
        return json.loads(capsys.readouterr().out) if code == 0 else capsys.readouterr().err

    return call


def test_list_names_the_newest_first(names: list[str], call: Call) -> None:
    found = call("list")
    assert [table["table"] for table in found] == names
    assert (found[0]["rows"], found[0]["files"], found[0]["partitions"]) == (4, 1, 1)


def test_nothing_is_listed_before_a_run(catalog: SqlCatalog, call: Call) -> None:
    assert call("list") == []
    assert "-f" in call("show", code=2)


def test_show_has_the_recipe_and_the_coverage(names: list[str], call: Call) -> None:
    found = call("show", names[1])
    assert found["recipe"] == {"version": 1, "where": ["x > 1"]}
    assert found["coverage"]["{}"]["inputs"] == [
        {"table": "t", "fingerprint": "a", "snapshotId": "1"}
    ]
    assert call("show")["table"] == names[0]


@pytest.mark.parametrize(
    ("arguments", "deleted"),
    [
        pytest.param([], [], id="no-condition"),
        pytest.param(["--older-than", "1h"], [], id="too-young"),
        pytest.param(["--older-than", "0m"], [0, 1, 2], id="old-enough"),
        pytest.param(["--keep-last", "1"], [1, 2], id="keep-last"),
        pytest.param(["--keep-last", "1", "--older-than", "1h"], [], id="both"),
        pytest.param(["--keep-last", "9"], [], id="keep-more-than-there-are"),
    ],
)
def test_prune_deletes_tables_that_meet_all_conditions(
    catalog: SqlCatalog, names: list[str], call: Call, arguments: list[str], deleted: list[int]
) -> None:
    wanted = [names[index] for index in deleted]
    found = call("prune", "--dry-run", *arguments)
    assert [table["table"] for table in found["deleted"]] == wanted
    assert len(catalog.list_tables("db")) == 3
    call("prune", *arguments)
    assert {".".join(each) for each in catalog.list_tables("db")} == set(names) - set(wanted)


def test_prune_deletes_a_named_table_and_orphans(
    catalog: SqlCatalog, names: list[str], call: Call, tmp_path: Path
) -> None:
    call("prune", names[0])
    assert [table["table"] for table in call("list")] == names[1:]
    folder = Path(catalog.load_table(names[1]).location().removeprefix("file://"))
    (folder / "data/orphan.parquet").write_bytes(b"123")
    assert call("prune")["orphans"] == {}  # too young
    assert call("prune", "--orphans-older-than", "0m")["orphans"] == {
        names[1]: {"files": 1, "bytes": 3}
    }
    assert not (folder / "data/orphan.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        pytest.param(["prune", "db.other"], "db.other", id="unknown-table"),
        pytest.param(["list", "--set", "pipeline=[]"], "materialize", id="no-step"),
    ],
)
def test_unknown_tables_are_refused(
    names: list[str], call: Call, arguments: list[str], fact: str
) -> None:
    assert fact in call(*arguments, code=2)


def test_tables_are_printed_for_people(
    names: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("list", "show", "prune"):
        monkeypatch.setattr(sys, "argv", ["lastmile", "materializations", verb, "-f", "m.yaml"])
        with pytest.raises(SystemExit) as caught:
            main()
        assert not caught.value.code
    said = capsys.readouterr().out
    assert all(name in said for name in names)
