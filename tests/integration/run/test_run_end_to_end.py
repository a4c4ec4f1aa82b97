"""`lastmile run` on the sample data: its numbers, its files, its metrics and its report."""

import http.client
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loopback import free_ports
from playwright.sync_api import Browser
from prometheus_client.parser import text_string_to_metric_families
from run_support import LASTMILE, checksum_of, sampled
from warm_lastmile import RUN_SECONDS

from pipeline_runtime.hashing import hash_columns
from pipeline_runtime.report.files.evaluation_rows import load_rows

QUICKSTART = Path(__file__).parents[3] / "deploy" / "samples" / "quickstart.yaml"
ROWS = 20_000
EPOCHS = 2
# The quickstart's steps in another language; its downsampling is drawn apart.
REFERENCE = """
    with kept as (
      select *, clicked or coalesce(saves, 0) > 0 as label
      from read_parquet('{root}/impressions/**/*.parquet', hive_partitioning = true) as i
      where day {day} '2026-01-08' and user_country is not null and position < 30
        and not exists (select 1 from '{root}/spam_users/*.parquet' s where s.user_id = i.user_id)
    )
    select _lastmile_row_id, label from kept
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The files and the output of a run."""

    root: Path
    output: Path
    code: int
    stdout: str
    stderr: str
    metrics: str  # the last page of the Prometheus endpoint that was seen while it ran

    @property
    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.output / "summary.json").read_text())
        return document


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    root = tmp_path_factory.mktemp("quickstart")
    made = [LASTMILE, "sample-data", "--rows", str(ROWS), "--output", str(root / "data")]
    subprocess.run(made, check=True, capture_output=True)
    [port] = free_ports(1)
    command = [LASTMILE, "run", "-f", str(QUICKSTART), "--json", "--metrics-port", str(port)]
    command += ["--storage-root", str(root), "--output", str(root / "output")]
    for change in (
        "training.batchSize=256",
        f"training.epochs={EPOCHS}",
        "training.config.reportEverySteps=2",
        # Many small chunks, so that the second epoch's wait for the evaluation between the two.
        "pipelineOptions.rowsPerBlock=200",
    ):
        command += ["--set", f"spec.{change}"]
    with (root / "stdout").open("w+") as out, (root / "stderr").open("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=root)
        try:
            metrics = list(scrape(process, port))
        finally:
            process.kill()
            process.wait()
        out.seek(0)
        err.seek(0)
        return Finished(
            root=root,
            output=root / "output",
            code=process.returncode,
            stdout=out.read(),
            stderr=err.read(),
            metrics=metrics[-1] if metrics else "",
        )


def scrape(process: subprocess.Popen[bytes], port: int) -> Iterator[str]:
    """Pages of the endpoint, until the run ends."""
    polls = int(RUN_SECONDS / 0.2)
    for _ in range(polls):
        try:
            process.wait(timeout=0.2)
            return
        except subprocess.TimeoutExpired:
            pass
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            yield connection.getresponse().read().decode()
        except OSError:
            pass  # not yet, or not any more
        finally:
            connection.close()
    raise TimeoutError("the run does not end")


def reference(root: Path, day: str, *, is_downsampled: bool = True) -> list[int]:
    """Row ids that the quickstart keeps, by DuckDB."""
    query = REFERENCE.format(root=root / "data", day=day)
    rows = duckdb.connect().execute(query).fetchall()
    if not is_downsampled:
        return [row for row, _ in rows]
    drawn = sampled([row for row, _ in rows], seed=17, keep_percent=50)
    return [row for (row, label), kept in zip(rows, drawn, strict=True) if label or kept]


def test_it_ends_well_and_prints_json_alone(finished: Finished) -> None:
    assert finished.code == 0, finished.stderr
    assert json.loads(finished.stdout) == finished.summary
    assert finished.summary["run"]["outcome"] == "Complete"
    assert finished.summary["warnings"] == []
    assert "metrics: http://127.0.0.1:" in finished.stderr


def test_the_rows_are_those_of_duckdb(finished: Finished) -> None:
    training = reference(finished.root, "<")
    expected = checksum_of(training, times=EPOCHS)
    got = finished.summary["checksum"]
    assert got["rows"] == expected["rows"]
    assert got["sum"] == expected["sum"]
    assert got["sumOfSquares"] == expected["sum_of_squares"]
    assert finished.summary["training"]["samples"] == EPOCHS * len(training)
    steps = finished.summary["steps"]
    assert [step["kind"] for step in steps[:4]] == ["read", "where", "split", "antiJoin"]
    for before, after in itertools.pairwise(steps):
        assert before["rowsOut"] == after["rowsIn"] >= after["rowsOut"]
        assert before["bytesOut"] == after["bytesIn"]
    assert steps[-1]["rowsOut"] == EPOCHS * len(training)
    held_out = reference(finished.root, "=", is_downsampled=False)
    assert finished.summary["evaluationSteps"][-1]["rowsOut"] == len(held_out)
    dataset = finished.summary["dataset"]
    assert dataset["filesRead"] == dataset["files"] - 1  # the last day is evaluated on


def test_the_model_was_evaluated_after_every_epoch(finished: Finished) -> None:
    evaluations = finished.summary["training"]["evaluations"]
    assert [evaluation["epoch"] for evaluation in evaluations] == [0, 1]
    assert all(0.5 < evaluation["metrics"]["eval_auc"] <= 1 for evaluation in evaluations)
    assert sum(finished.summary["timeShares"].values()) == pytest.approx(1)


def test_the_rows_of_the_last_evaluation_are_kept(finished: Finished) -> None:
    rows = load_rows(finished.output)
    assert rows is not None
    held_out = reference(finished.root, "=", is_downsampled=False)
    hashes = hash_columns([pa.array(held_out, pa.int64())], seed=0)
    assert rows.column("row").tolist() == sorted(hashes.tolist())
    assert (rows.num_rows, rows.epoch) == (len(held_out), EPOCHS - 1)
    assert set(rows.column("weight").tolist()) == {1.0}
    # Each request has the user's rows of a few minutes.
    assert 1 < len(held_out) / len(set(rows.column("group").tolist())) < 40
    evaluation = finished.summary["training"]["evaluations"][-1]["metrics"]
    assert rows.column("loss").mean() == pytest.approx(evaluation["eval_loss"], rel=1e-4)
    stored = Path(finished.summary["run"]["artifactsUri"])
    assert load_rows(stored) == rows
    assert not (stored / "evaluation").exists()


def test_the_history_has_the_loss_and_where_the_time_went(finished: Finished) -> None:
    history = pq.read_table(finished.output / "metrics.parquet").to_pylist()
    names = {row["name"] for row in history}
    assert {"loss", "train_auc", "eval_auc", "samples_per_second", "queue_length"} <= names
    shares = [row for row in history if row["name"].startswith("share_")]
    moments = {row["seconds"] for row in shares}
    assert moments
    for moment in moments:
        assert sum(row["value"] for row in shares if row["seconds"] == moment) == pytest.approx(1)


def test_prometheus_reads_its_metrics_while_it_runs(finished: Finished) -> None:
    families = {f.name: f for f in text_string_to_metric_families(finished.metrics)}
    assert all(name.startswith("lastmile_") for name in families)
    steps = families["lastmile_trainer_steps"].samples
    assert [(s.name, s.labels) for s in steps] == [("lastmile_trainer_steps_total", {"rank": "0"})]
    stages = {s.labels["stage"] for s in families["lastmile_trainer_blocked_seconds"].samples}
    assert stages == {"production", "transfer", "batching", "collate"}
    rows = {s.labels["step"]: s.value for s in families["lastmile_step_output_rows"].samples}
    assert list(rows)[:2] == ["0-read", "1-where"]
    workers = {s.labels["state"]: s.value for s in families["lastmile_worker_seconds"].samples}
    assert set(workers) == {"read", "compute", "inference", "blocked_output", "idle"}
    assert min(workers["read"], workers["compute"]) > 0
    [readers] = families["lastmile_ready_readers"].samples
    assert readers.value == len(os.sched_getaffinity(0))
    assert {
        "lastmile_trainer_busy_seconds",
        "lastmile_trainer_rows",
        "lastmile_trainer_bytes",
        "lastmile_queue_length",
        "lastmile_step_seconds",
        "lastmile_checkpoints",
    } <= families.keys()


def test_the_report_opens_in_a_browser_without_a_complaint(
    finished: Finished, browser: Browser
) -> None:
    page = browser.new_page()
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.goto((finished.output / "report.html").as_uri())
    text = page.locator("body").inner_text()
    figures = page.locator("figure svg").count()
    page.close()
    assert heard == []
    assert "quickstart" in text
    assert finished.summary["checksum"]["sum"] in text
    assert figures >= 4


def test_the_report_lies_beside_the_checkpoints_too(finished: Finished) -> None:
    [folder] = (finished.root / "experiments" / "quickstart").iterdir()
    for name in ("summary.json", "report.html", "metrics.parquet", "plan.json", "manifest.yaml"):
        assert (folder / name).read_bytes() == (finished.output / name).read_bytes()
    last = finished.summary["checkpoints"]["last"]
    assert Path(last).parent == folder / "checkpoints"
    assert (Path(last) / "checkpoint.json").exists()
