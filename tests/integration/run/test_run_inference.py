"""Models on inference workers: equal to fused ones to the last bit, whatever is killed or hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import yaml
from loopback import free_ports
from prometheus_client.parser import text_string_to_metric_families
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import FloatType, LongType, NestedField
from ray_heads import RealRay
from run_support import Project
from warm_lastmile import Ended, Lastmile
from written_iceberg import make_lake

ROWS = 4000
COLUMNS = ((1, "id", LongType()), (2, "x", FloatType()), (3, "part", LongType()))
# Inference workers are told from data workers and drivers by the name of their actor's class.
MODELS = """
import os, pathlib, signal, time
import ray, torch

class Model(torch.nn.Module):
    def __init__(self, size, folder=None, fault=None, times=1):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last = torch.nn.Linear(2, size), torch.nn.Linear(size, 3)
        self.folder, self.fault, self.times = folder and pathlib.Path(folder), fault, times

    def forward(self, batch):
        x = torch.stack([batch["x"], batch["id"] / 4000], 1)
        if self.fault and batch["id"].max() > 2000 and self.is_in_turn():
            getattr(self, self.fault)()
        scores = self.last(torch.relu(self.first(x)))
        return {"score": scores[:, 0], "vector": scores}

    def is_in_turn(self):
        for number in range(self.times):
            try:
                (self.folder / f"fault-{number}").touch(exist_ok=False)
                return True
            except FileExistsError:
                pass
        return False

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def die_on_request(self):
        while not (self.folder / "die").exists():
            time.sleep(0.05)
        self.die()

    def hang(self):
        time.sleep(1000)

    def complain(self):
        raise ValueError("these rows do not please")

def load(size=32, loads=None, **options):
    if loads:
        (pathlib.Path(loads) / f"load-{time.time_ns()}").touch()
    return Model(size, **options).double().float()
"""


def build_table() -> pa.Table:
    rng = np.random.default_rng(2)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "x": rng.standard_normal(ROWS).astype(np.float32),
            "big": pa.array([None if i % 3 else 2**53 + i for i in range(ROWS)], pa.int64()),
            "tags": pa.array([None if i % 7 == 0 else ["a"] * (i % 4) for i in range(ROWS)]),
        }
    )


def write(
    run: Project,
    group: dict[str, Any] | None,
    training: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(build_table(), run.folder / "in.parquet", row_group_size=100)
    served: dict[str, Any] = {
        "name": "served",
        "function": "served_models:load",
        "options": options,
        "inputs": ["id", "x"],
        "outputs": [
            {"name": "score", "type": "float32"},
            {"name": "vector", "type": "fixed_size_list<float32>[3]"},
        ],
    }
    spec: dict[str, Any] = {
        "code": {"workingDir": str(run.folder)},
        "dataset": {"parquet": {"uri": "in.parquet"}, "rowKey": ["id"]},
        "pipelineOptions": {"rowsPerBlock": 100},
        "pipeline": [
            {"filter": {"where": "id % 3 != 0"}},
            {"predict": {"models": [served], "batchSize": 16}},
        ],
        "output": {"mode": "Overwrite", "parquet": {"uri": "out/"}},
    }
    if group is not None:
        served["workerGroup"] = "large"
        spec["inferenceWorkers"] = [{"name": "large", "maxReplicas": 2, **group}]
    if training is not None:
        del spec["output"]
        spec["training"] = training
    run.write(spec, {"served_models": MODELS})


def score(run: Project, lastmile: Lastmile, address: str = "auto") -> Ended:
    return lastmile.run(*run.args("--address", address))


def read(run: Project) -> pa.Table:
    return pads.dataset(run.folder / "out").to_table().sort_by("id")


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory, warm_lastmile: Lastmile) -> Project:
    """Return a run that calls the same model in its data workers, on this machine."""
    folder = tmp_path_factory.mktemp("fused")
    run = Project(folder=folder, root=str(folder), name="fused")
    write(run, None)
    ended = score(run, warm_lastmile, "local")
    assert ended.code == 0, str(ended)
    return run


def check_equal(run: Project, fused: Project) -> None:
    table = read(run)
    assert table.equals(read(fused))
    assert table["id"].to_pylist() == [i for i in range(ROWS) if i % 3]
    assert run.summary.checksum == fused.summary.checksum


def list_faults(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("fault-*"))


def test_inference_workers_score_as_data_workers(
    project: Callable[..., Project], on_cluster: Lastmile, fused: Project
) -> None:
    run = project()
    write(run, {})
    ended = score(run, on_cluster)
    assert ended.code == 0, str(ended)
    check_equal(run, fused)
    assert "inference workers large: 2 processes" in (run.output / "run.log").read_text()
    [group] = run.summary.inference
    assert (group.group, group.rows) == ("large", read(run).num_rows)
    assert 0 < group.busy_seconds < group.ready_seconds
    assert "large: 2,666 rows" in ended.stdout


@pytest.mark.parametrize("fault", ["die", pytest.param("hang", marks=pytest.mark.slow)])
def test_a_lost_inference_worker_costs_no_row(
    fault: str, project: Callable[..., Project], on_cluster: Lastmile, fused: Project
) -> None:
    run = project()
    # Much longer than a batch takes on a busy machine.
    group = {"progressDeadlineSeconds": 10} if fault == "hang" else {}
    write(run, group, folder=str(run.folder), fault=fault)
    ended = score(run, on_cluster)
    assert ended.code == 0, str(ended)
    assert list_faults(run.folder) == ["fault-0"]
    check_equal(run, fused)


def scrape(port: int) -> dict[str, float]:
    """Return the values of the metrics of inference workers; none if no page is served."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            families = text_string_to_metric_families(page.read().decode())
            samples = [sample for family in families for sample in family.samples]
    except OSError:
        return {}
    found = [sample for sample in samples if sample.name.startswith("lastmile_inference_")]
    assert all(sample.labels == {"group": "large"} for sample in found)
    return {s.name: s.value for s in found if not s.name.endswith("_created")}


def watch(folder: Path, port: int, is_over: threading.Event) -> list[dict[str, float]]:
    """Return the pages until the end; let the model die once its last batch has been counted.

    The busy seconds of its open call grow with each reading of the workers' counts. The second
    reading after the call began is as new.
    """
    pages: list[dict[str, float]] = []
    busy = set[float]()
    while not is_over.wait(0.1):
        if page := scrape(port):
            pages.append(page)
            if list_faults(folder):
                busy.add(page["lastmile_inference_busy_seconds_total"])
            if len(busy) > 2:
                (folder / "die").touch()
    return pages


def test_counters_of_inference_workers_survive_a_killed_one(
    project: Callable[..., Project], on_cluster: Lastmile, fused: Project
) -> None:
    run = project()
    write(run, {}, folder=str(run.folder), fault="die_on_request")
    [port] = free_ports(1)
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        pages = threads.submit(watch, run.folder, port, is_over)
        try:
            ended = on_cluster.run(*run.args("--address", "auto", "--metrics-port", str(port)))
        finally:
            is_over.set()
    assert ended.code == 0, str(ended)
    check_equal(run, fused)
    rows, busy = "lastmile_inference_rows_total", "lastmile_inference_busy_seconds_total"
    workers, waiting = "lastmile_inference_workers", "lastmile_inference_waiting_requests"
    assert pages.result()[0].keys() == {rows, busy, workers, waiting}
    for name in (rows, busy):
        values = [page[name] for page in pages.result()]
        assert values == sorted(values)
    assert max(page.get(workers, 0) for page in pages.result()) == 2
    [group] = run.summary.inference
    # Batches of the killed worker's open request were scored twice.
    assert 0 <= group.rows - read(run).num_rows < 100


@pytest.mark.slow
def test_a_student_trains_on_the_scores_of_inference_workers(
    project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    training = {
        "entrypoint": "recorder_loop:loop",
        "batchSize": 100,
        "columns": ["id", "score"],
        "config": {"folder": str(run.folder)},
    }
    write(run, {}, training)
    ended = score(run, on_cluster)
    assert ended.code == 0, str(ended)
    [attempt] = run.attempts()
    assert sorted(attempt.ids) == [i for i in range(ROWS) if i % 3]
    [group] = run.summary.inference
    assert (group.group, group.rows) == ("large", len(attempt.ids))


@pytest.mark.slow
def test_rows_that_kill_inference_workers_fail_the_run(
    project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    write(run, {}, folder=str(run.folder), fault="die", times=100)
    ended = score(run, on_cluster)
    assert ended.code != 0
    assert "inference workers of 'large' died" in str(ended)
    assert "spec.pipeline[1]" in str(ended)
    assert not (run.folder / "out").exists()


@pytest.mark.slow
def test_errors_read_the_same_on_inference_workers(
    project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    for name, group in (("here", None), ("there", {})):
        run = project(name)
        write(run, group, folder=str(run.folder), fault="complain", times=100)
        ended = score(run, on_cluster, "auto" if group is not None else "local")
        assert ended.code != 0
        assert "spec.pipeline[1] (predict" in ended.stdout
        reason = "predict.models[0]: the model raised ValueError: these rows do not please"
        assert f": {reason}" in ended.stdout


# A commit per partition, each of which has much less than a commit usually has.
PROGRAM = """
import sys
from pipeline_runtime import cli
from pipeline_runtime.run import partition_commits
partition_commits._BYTES_PER_COMMIT = 1
sys.argv[0] = "lastmile"
cli.main()
"""


@pytest.mark.slow
def test_inference_workers_outlive_a_commit(
    project: Callable[..., Project], cluster: RealRay, fused: Project
) -> None:
    run = project()
    write(run, {"maxReplicas": 1}, loads=str(run.folder))
    lake = make_lake(run.folder)
    rows = build_table().append_column("part", pa.array(np.arange(ROWS) % 3))
    columns = [NestedField(i, n, t, required=False) for i, n, t in COLUMNS]
    by_part = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "part"))
    lake.create_table("db.rows", Schema(*columns), partition_spec=by_part).append(
        rows.select(["id", "x", "part"])
    )
    manifest = yaml.safe_load((run.folder / "manifest.yaml").read_text())
    uri, warehouse = f"sqlite:///{run.folder}/catalog.db", f"file://{run.folder}/lake"
    changed = {
        "catalogs": [{"name": "lake", "type": "Sql", "uri": uri, "warehouse": warehouse}],
        "dataset": {"iceberg": {"catalog": "lake", "table": "db.rows"}, "rowKey": ["id"]},
        "output": {
            "mode": "OverwritePartitions",
            "columns": ["id", "part", "score"],
            "partitionBy": ["part"],
            "iceberg": {"catalog": "lake", "table": "db.x"},
        },
    }
    run.write({**manifest["spec"], **changed}, {"served_models": MODELS})
    command = [sys.executable, "-c", PROGRAM, *run.args("--address", "auto")]
    env = {**os.environ, **cluster.driver_env}
    subprocess.run(command, check=True, cwd=run.folder, env=env)
    table = lake.load_table("db.x")
    assert len(table.metadata.snapshots) == 3
    found = table.scan().to_arrow().sort_by("id")
    assert found["id"].equals(read(fused)["id"])
    # Batches have other rows, and sums of floats other last bits.
    assert np.allclose(found["score"], read(fused)["score"], atol=1e-6)
    # One by the planner, and one by the only inference worker.
    assert len(list(run.folder.glob("load-*"))) == 2
    lake.engine.dispose()
