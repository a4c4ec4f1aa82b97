"""Scoring runs as processes: one that is killed halfway, and the sample of `make run-scoring`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import yaml

LASTMILE = str(Path(sys.executable).with_name("lastmile"))
SAMPLES = Path(__file__).parents[2] / "deploy" / "samples"
DEADLINE_SECONDS = 120.0
ROWS = 2000
# Slow enough to be killed in between, until the file `hurry` exists.
SLOW_STEP = """
import os, time

def wait(table):
    while not os.path.exists("hurry"):
        time.sleep(0.02)
        if not len(table) or table["id"][0].as_py() < 1000:  # the first half passes
            break
    return table
"""


def write_manifest(folder: Path, name: str, **spec: Any) -> None:
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": name},
        "spec": {
            "dataset": {"parquet": {"uri": str(folder / "in.parquet")}, "rowKey": ["id"]},
            "pipelineOptions": {"rowsPerBlock": 100},
            **spec,
        },
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))


def start(folder: Path, name: str, *more: str) -> subprocess.Popen[str]:
    command = ["run", "-f", f"{name}.yaml", "--json", "--metrics-port", "0", "--storage-root", "."]
    return subprocess.Popen(
        [LASTMILE, *command, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, out + errors
    summary: dict[str, Any] = json.loads(out)
    return summary


def predict(**ref: str) -> dict[str, Any]:
    model = {
        "name": "teacher",
        "experimentRef": {"name": "teacher", **ref},
        "outputs": [{"name": "score", "type": "float32"}],
    }
    return {"predict": {"models": [model], "batchSize": 64}}


def read_scores(folder: Path, table: str) -> pa.Table:
    return pads.dataset(folder / table).to_table().sort_by("id").select(["id", "score"])


def test_a_killed_scoring_goes_on_with_its_model(tmp_path: Path) -> None:
    """Each row is scored once and no partial file is visible: ray-project/ray/issues/55008."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal(ROWS)
    rows = pa.table({"id": np.arange(ROWS), "x": x, "label": x + rng.standard_normal(ROWS) > 0})
    pq.write_table(rows, tmp_path / "in.parquet", row_group_size=100)
    (tmp_path / "slow_steps.py").write_text(SLOW_STEP)
    training = {"labelColumn": "label", "columns": ["x"], "batchSize": 100}
    write_manifest(tmp_path, "teacher", training={**training, "config": {"hidden": [4]}})
    slow = {"map": {"function": "slow_steps:wait", "inputColumns": ["id"]}}
    out = {"mode": "Overwrite", "layout": "KeyAndScore"}
    write_manifest(
        tmp_path, "all", pipeline=[slow, predict()], output={**out, "parquet": {"uri": "all/"}}
    )
    first = finish(start(tmp_path, "teacher"))
    name = Path(first["run"]["artifactsUri"]).name

    killed = start(tmp_path, "all")
    staging, deadline = tmp_path / "_staging" / "all", time.monotonic() + DEADLINE_SECONDS
    while len(list(staging.glob("*/pieces/*.json"))) < 5:
        assert time.monotonic() < deadline, killed.poll()
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=DEADLINE_SECONDS)
    assert not (tmp_path / "all").exists()
    # A newer model, which the attempt that resumes must not take.
    finish(start(tmp_path, "teacher", "--set", "spec.training.seed=5"))
    (tmp_path / "hurry").touch()
    resumed = finish(start(tmp_path, "all", "--resume"))
    assert resumed["run"]["attempt"] == 2
    assert [model["run"] for model in resumed["models"]] == [name]

    out["parquet"] = {"uri": "once/"}
    write_manifest(tmp_path, "once", pipeline=[predict(run=name)], output=out)
    finish(start(tmp_path, "once"))
    scores = read_scores(tmp_path, "all")
    assert scores["id"].to_pylist() == list(range(ROWS))
    assert scores.equals(read_scores(tmp_path, "once"))


LINEAR_MODEL = """
def load():
    return lambda batch: batch["x"] * 2
"""
CARRIED = 30
# Far below the 115 MB by which ten times the table is larger, decoded; above what allocators keep.
MOST_GROWTH_BYTES = 60 << 20


@pytest.mark.slow
def test_ten_times_the_rows_need_no_more_memory(tmp_path: Path) -> None:
    """A peer's memory grows with the table: github.com/ray-project/ray/issues/65544."""
    (tmp_path / "linear.py").write_text(LINEAR_MODEL)
    rng = np.random.default_rng(1)
    columns = {f"carried_{index}": rng.standard_normal(50_000) for index in range(CARRIED)}
    rows = pa.table({"id": np.arange(50_000), "x": rng.standard_normal(50_000), **columns})
    peaks = []
    for name, copies in (("once", 1), ("ten", 10)):
        (tmp_path / name).mkdir()
        for copy in range(copies):
            path = tmp_path / name / f"{copy}.parquet"
            pq.write_table(rows, path, row_group_size=10_000)
        model = {
            "name": "linear",
            "function": "linear:load",
            "inputs": ["x"],
            "outputs": [{"name": "score", "type": "float64"}],
        }
        write_manifest(
            tmp_path,
            name,
            dataset={"parquet": {"uri": f"{name}/"}},
            pipelineOptions={"rowsPerBlock": 10_000},
            pipeline=[{"predict": {"models": [model], "batchSize": 4096}}],
            output={"parquet": {"uri": f"{name}-scores/"}},
        )
        with start(tmp_path, name) as process:
            assert process.stdout is not None
            summary = json.loads(process.stdout.read())
            _, code, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
        assert (process.returncode, summary["output"]["rows"]) == (0, copies * 50_000)
        peaks.append(usage.ru_maxrss * 1024)
    assert peaks[1] - peaks[0] < MOST_GROWTH_BYTES, peaks


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_samples_score_what_the_quickstart_trained(tmp_path: Path) -> None:
    commands = (
        ["sample-data", "--rows", "20000", "--output", "build/data"],
        ["run", "-f", str(SAMPLES / "quickstart.yaml")],
        ["run", "-f", str(SAMPLES / "scoring.yaml")],
    )
    for command in commands:
        subprocess.run([LASTMILE, *command], cwd=tmp_path, check=True, capture_output=True)
    latest = tmp_path / "build" / "scoring" / "latest"
    summary: dict[str, Any] = json.loads((latest / "summary.json").read_text())
    assert (latest / "report.html").exists()
    table = pads.dataset(tmp_path / "build" / "scores", partitioning="hive").to_table()
    assert table.num_rows == summary["output"]["rows"] > 0
    assert table["score"].null_count == 0
    assert [model["experiment"] for model in summary["models"]] == ["quickstart"]
    assert [measure["name"] for measure in summary["measures"]] == [
        *("position", "history", "dense", "auc", "auc-per-request", "calibration", "log-loss")
    ]
    for name in ("student", "distilled", "compare"):
        command = ["run", "-f", str(SAMPLES / "distillation" / f"{name}.yaml")]
        subprocess.run([LASTMILE, *command], cwd=tmp_path, check=True, capture_output=True)
    compared = tmp_path / "build" / "students" / "latest" / "summary.json"
    measures = json.loads(compared.read_text())["measures"]
    assert [measure["name"] for measure in measures] == ["teacher", "student", "distilled"]
    assert all(0.0 < measure["value"] < 1.0 for measure in measures)
