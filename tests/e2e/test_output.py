"""Data workers in real pods write a table; one is lost, and no row is missing or doubled."""

from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from ordered import read_last_summary
from stage import MOUNT, VOLUME, Stage, condition

from dataset_operator.api import DATA_WORKERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAME = "kept"


def on_cluster() -> str:
    mount = {"name": VOLUME, "mountPath": MOUNT}
    pod = {
        "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": VOLUME}}],
        "containers": [{"name": "ray", "volumeMounts": [mount]}],
    }
    mounted = {"template": {"spec": pod}}
    spec = {
        "storage": {"root": MOUNT},
        "dataset": {"parquet": {"uri": "data/impressions/"}},
        "pipeline": [{"filter": {"where": "position < 10"}}],
        "pipelineOptions": {"rowsPerBlock": 2000},
        "output": {
            "columns": ["request_id", "position", "clicked"],
            "partitionBy": ["day"],
            "parquet": {"uri": f"{NAME}/"},
        },
        "head": mounted,
        "dataWorkers": {"minReplicas": 2, "maxReplicas": 2, **mounted},
    }
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": NAME},
        "spec": spec,
    }
    return yaml.safe_dump(document)


def test_data_workers_write_every_row_once_though_one_is_lost(stage: Stage) -> None:
    stage.apply(on_cluster())
    stage.until(NAME, lambda found: condition(found, "Writing") or is_complete(found))
    if not is_complete(stage.get(NAME)):
        stage.lose(NAME, DATA_WORKERS)
    done = stage.until(NAME, is_complete)["status"]

    assert [done[field] for field in ("run", "attempt", "failures")] == [1, 1, 0]
    assert done["usage"]["gpuSeconds"] == 0
    volume = stage.store.volume
    written = read_last_summary(volume / "experiments" / NAME)["output"]
    assert done["output"] == {name: written[name] for name in ("rows", "files", "bytes")}
    files = list((volume / NAME).rglob("*.parquet"))
    assert done["output"]["files"] == len(files)
    assert done["output"]["bytes"] == sum(file.stat().st_size for file in files)
    there = read_rows(volume / "data" / "impressions", "where position < 10")
    assert read_rows(volume / NAME) == there
    assert done["output"]["rows"] == len(there)


def is_complete(found: dict[str, Any]) -> bool:
    return condition(found, "Complete") is not None


def read_rows(folder: Path, where: str = "") -> list[tuple[Any, ...]]:
    """Return the rows of a table, sorted."""
    table = f"read_parquet('{folder}/**/*.parquet', hive_partitioning = true)"
    query = f"select request_id, position, clicked, day::varchar from {table} {where} order by all"
    return duckdb.sql(query).fetchall()
