"""Tables that `lastmile run` writes: killed processes, and a real S3 server."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import yaml
from pyarrow import fs as pafs
from s3_server import S3Server, files_below

from pipeline_runtime import Pipeline

LASTMILE = str(Path(sys.executable).with_name("lastmile"))
DEADLINE_SECONDS = 120.0
ROWS = 2000
METRICS = [
    {"name": "mean", "mean": {"column": "id"}, "groupBy": ["day"]},
    {"name": "distinct", "distinct": {"column": "id"}},
    {"name": "largest", "accumulator": {"function": "slow_steps:Largest", "columns": ["id"]}},
]
# Slow enough to be killed in between, until the file `hurry` exists.
SLOW_STEP = """
import os, time

def wait(table):
    while os.path.exists("slow") and not os.path.exists("hurry"):
        time.sleep(0.02)
        if not len(table) or table["id"][0].as_py() < 1000:  # the first half passes
            break
    return table

class Largest:
    def init(self):
        return None

    def update(self, state, table):
        return self.merge(state, max(table["id"].to_pylist(), default=None))

    def merge(self, left, right):
        return max((each for each in (left, right) if each is not None), default=None)

    def finish(self, state):
        return state
"""


def write_project(folder: Path, **output: Any) -> None:
    table = pa.table(
        {"id": np.arange(ROWS), "day": pa.array(["a/b", None, "日"] * (ROWS // 3) + ["x", "x"])}
    )
    pq.write_table(table, folder / "in.parquet", row_group_size=100)
    (folder / "slow_steps.py").write_text(SLOW_STEP)
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "kept"},
        "spec": {
            "dataset": {"parquet": {"uri": str(folder / "in.parquet")}, "rowKey": ["id"]},
            "pipelineOptions": {"rowsPerBlock": 100},
            "pipeline": [
                {"measure": {"metrics": METRICS}},
                {"map": {"function": "slow_steps:wait", "inputColumns": ["id"]}},
            ],
            "output": {"partitionBy": ["day"], "parquet": {"uri": "out/"}, **output},
        },
    }
    (folder / "manifest.yaml").write_text(yaml.safe_dump(document))


def start(
    folder: Path, root: str, *more: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    command = ["run", "-f", "manifest.yaml", "--json", "--metrics-port", "0"]
    return subprocess.Popen(
        [LASTMILE, *command, "--storage-root", root, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **(env or {})},
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the summary of a run that is to succeed."""
    out, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, out + errors
    summary: dict[str, Any] = json.loads(out)
    return summary


def wait_for_chunks(staging: Path, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(list(staging.glob("*/pieces/*.json"))) < count:
        assert time.monotonic() < deadline, list(staging.rglob("*"))
        time.sleep(0.02)


def ids(table: pa.Table) -> list[int]:
    return sorted(table["id"].to_pylist())


@pytest.mark.parametrize(
    "signal_number",
    [
        pytest.param(signal.SIGKILL, id="SIGKILL"),
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.slow),
    ],
)
def test_a_killed_process_is_continued_by_another(tmp_path: Path, signal_number: int) -> None:
    write_project(tmp_path)
    (tmp_path / "slow").touch()
    first = start(tmp_path, ".")
    wait_for_chunks(tmp_path / "_staging" / "out", 5)
    first.send_signal(signal_number)
    (tmp_path / "hurry").touch()
    first.communicate(timeout=DEADLINE_SECONDS)
    assert first.returncode == (-9 if signal_number == signal.SIGKILL else 130)
    assert not (tmp_path / "out").exists()

    summary = finish(start(tmp_path, ".", "--resume"))
    assert summary["output"]["rows"] == ROWS
    assert summary["run"]["attempt"] == 2
    found = {measure["name"]: measure for measure in summary["measures"]}
    assert (found["mean"]["rows"], found["mean"]["value"]) == (ROWS, (ROWS - 1) / 2)
    assert (found["distinct"]["value"], found["largest"]["value"]) == (ROWS, ROWS - 1)
    assert ids(pads.dataset(tmp_path / "out", partitioning="hive").to_table()) == list(range(ROWS))
    assert not (tmp_path / "_staging").exists()


@pytest.fixture
def s3(s3_server: S3Server) -> Iterator[pafs.S3FileSystem]:
    with s3_server.bucket("tables") as found:
        yield found


@pytest.mark.slow
def test_a_table_on_s3_is_written_replaced_and_read(
    tmp_path: Path,
    s3: pafs.S3FileSystem,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = s3_server.env
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    root = "s3://tables/team/"
    write_project(tmp_path, mode="Overwrite")
    finish(start(tmp_path, root, env=env))
    old = files_below(s3, "tables/team/out")
    (tmp_path / "slow").touch()
    killed = start(tmp_path, root, env=env)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not any("/pieces/" in path for path in files_below(s3, "tables/team/out")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    assert ids(Pipeline.read_parquet("out/").to_table(root)) == list(range(ROWS))  # the old one
    (tmp_path / "hurry").touch()
    finish(start(tmp_path, root, "--resume", env=env))
    table = Pipeline.read_parquet("out/").to_table(root)
    assert ids(table) == list(range(ROWS))
    assert set(table["day"].to_pylist()) == {"a/b", None, "日", "x"}
    new = files_below(s3, "tables/team/out")
    assert not any("_staging" in path for path in new)
    assert {path for path in old & new if path.endswith(".parquet")} == set()
    plain = pads.dataset("tables/team/out", filesystem=s3, partitioning="hive").to_table()
    assert ids(plain) == list(range(ROWS))


SAMPLE = Path(__file__).parents[2] / "deploy" / "samples" / "output.yaml"
# The sample's steps in another language.
REFERENCE = """
    select request_id, position, i.day::varchar as day,
      clicked or coalesce(saves, 0) > 0 as label
    from read_parquet('{root}/data/impressions/**/*.parquet', hive_partitioning = true) as i
    where i.day >= '2026-01-01'
      and not exists (
        select 1 from '{root}/data/spam_users/*.parquet' s where s.user_id = i.user_id
      )
    order by all
"""


def test_the_sample_writes_the_rows_without_spam(tmp_path: Path) -> None:
    data, root = str(tmp_path / "data"), str(tmp_path)
    commands = (
        ["sample-data", "--rows", "20000", "--output", data],
        ["run", "-f", str(SAMPLE), "--storage-root", root, "--output", str(tmp_path / "report")],
    )
    for command in commands:
        subprocess.run([LASTMILE, *command], check=True, capture_output=True)
    wanted = duckdb.sql(REFERENCE.format(root=tmp_path)).fetchall()
    table = pads.dataset(tmp_path / "clean", partitioning="hive", format="parquet").to_table()
    rows = table.select(["request_id", "position", "day", "label"]).to_pylist()
    found = [(r["request_id"], r["position"], str(r["day"]), r["label"]) for r in rows]
    assert sorted(found) == wanted
