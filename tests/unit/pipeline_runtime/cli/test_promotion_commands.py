"""`lastmile promote` and `lastmile rollback` by their manifest, options, output and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from facts import assert_told
from promotion_lake import PromotionLake, feature_rows, main_rows

from pipeline_runtime.cli import main

Capture = pytest.CaptureFixture[str]
ICEBERG = {"catalog": "lake", "table": "db.main"}
JOIN = {
    "iceberg": {"catalog": "lake", "table": "db.ctr"},
    "keys": ["day", "user", "item"],
    "columns": ["ctr"],
}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[PromotionLake]:
    found = PromotionLake.make(tmp_path)
    found.create_staging("db.ctr", feature_rows(main_rows())[:-3], buckets=6)
    yield found
    found.catalog.engine.dispose()


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*command: str, **spec: Any) -> int:
        document = {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": "clicks"},
            "spec": {
                "catalogs": [
                    {"name": "lake", "type": "Sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
                ],
                "dataset": {"iceberg": ICEBERG},
                "pipeline": [{"join": JOIN}],
                **spec,
            },
        }
        path = tmp_path / "clicks.yaml"
        path.write_text(yaml.safe_dump(document))
        monkeypatch.setattr(sys, "argv", ["lastmile", *command, "-f", str(path)])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0)

    return run


def test_promotion_is_reported_and_undone(call: Any, lake: PromotionLake, capsys: Capture) -> None:
    rows, head = lake.rows(), lake.head()
    chosen = ["--partition", "day=2026-01-01", "--json"]

    assert call("promote", "--staging", "db.ctr", *chosen, "--dry-run") == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["dryRun"], planned["snapshotId"], lake.head()) == (True, None, head)

    assert call("promote", "--staging", "db.ctr", *chosen) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["snapshotId"], done["previousSnapshotId"]) == (str(lake.head()), str(head))
    assert done["staging"] == planned["staging"]
    assert done["staging"][0]["nulls"] == {"ctr": 1}

    assert call("rollback", "--to", str(head), *chosen) == 0
    undone = json.loads(capsys.readouterr().out)
    assert (undone["columns"], undone["rewritten"]) == (["ctr"], [])
    assert lake.rows() == [row | {"ctr": None} for row in rows]


def test_prune_deletes_orphans_of_named_tables(call: Any, lake: PromotionLake) -> None:
    prune = ("materializations", "prune", "--orphans-of", "db.main", "--orphans-older-than", "0m")
    folder = Path(lake.main.location().removeprefix("file://"))
    orphan, hint = folder / "data" / "orphan.parquet", folder / "metadata" / "version-hint.text"
    for path in (orphan, hint):
        path.write_text("1")
    rows = lake.rows()
    assert call(*prune, "--dry-run") == 0
    assert orphan.exists()
    assert call(*prune) == 0
    assert (orphan.exists(), hint.exists(), lake.rows()) == (False, True, rows)


def test_text_names_counts_and_snapshots(call: Any, lake: PromotionLake, capsys: Capture) -> None:
    head = lake.head()
    assert call("promote", "--staging", "db.ctr") == 0
    assert_told(capsys.readouterr().out, f"… db.ctr … 37 … 40 … {lake.head()} … {head}")
    assert call("rollback", "--to", str(head), "--partition", "day=2026-01-02") == 0
    assert_told(capsys.readouterr().out, f"… day=2026-01-02 … {lake.head()} … ctr")


@pytest.mark.parametrize(
    ("command", "options", "spec", "code", "facts"),
    [
        pytest.param(
            "promote", ["--staging", "db.x"], {}, 2, "--staging … db.ctr … 'db.x'", id="no join"
        ),
        pytest.param(
            "promote",
            ["--staging", "db.ctr"],
            {"pipeline": [{"join": JOIN | {"where": "ctr > 1"}}]},
            2,
            "spec.pipeline[0].join.where",
            id="chosen rows",
        ),
        pytest.param(
            "rollback",
            ["--to", "1"],
            {"dataset": {"parquet": {"uri": "t/"}}},
            2,
            "spec.dataset … parquet",
            id="no Iceberg table",
        ),
        pytest.param(
            "rollback",
            ["--to", "1"],
            {"dataset": {"iceberg": ICEBERG | {"branch": "b"}}},
            2,
            "spec.dataset.iceberg.branch … 'b'",
            id="another branch",
        ),
        pytest.param(
            "rollback",
            ["--to", "1", "--partition", "day"],
            {},
            5,
            "--partition … 'day'",
            id="partition without a value",
        ),
        pytest.param(
            "materializations",
            ["prune", "--orphans-of", "db.x"],
            {},
            2,
            "--orphans-of … db.main, db.ctr … 'db.x'",
            id="no table of the manifest",
        ),
        pytest.param("rollback", ["--to", "1"], {}, 5, "--to … db.main", id="no such snapshot"),
        pytest.param(
            "rollback",
            ["--to", "1"],
            {"dataset": {"iceberg": ICEBERG | {"table": "db.mains"}}},
            3,
            "spec.dataset.iceberg.table … 'db.mains'",
            id="no such table",
        ),
    ],
)
def test_bad_input_gets_one_error(
    call: Any,
    lake: PromotionLake,
    capsys: Capture,
    command: str,
    options: list[str],
    spec: dict[str, Any],
    code: int,
    facts: str,
) -> None:
    head = lake.head()
    assert call(command, *options, **spec) == code
    assert_told(capsys.readouterr().err, f"… {facts}")
    assert lake.head() == head
