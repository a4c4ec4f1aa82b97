"""A consumer of a test stands where training stands: planned, leased, counted, explained, run."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toy_consumer.model import ToyExperiment
from toy_consumer.planning import SumConsumer
from toy_consumer.running import SumRun, add_up

from pipeline_runtime import Pipeline
from pipeline_runtime.config import run_hash
from pipeline_runtime.errors import ManifestError
from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.chunk import StepCount, add_counts
from pipeline_runtime.feed.local.thread_readers import ThreadReaders
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.plan import Plan, build_plan, explain, plan_document
from pipeline_runtime.plan.consumers import Consumer
from pipeline_runtime.run.consumers import Reading
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import Finished, Watcher, run_experiment
from pipeline_runtime.run.summarise import step_flows


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    table = pa.table({"id": np.arange(1000), "other": np.arange(1000)})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=100)
    return Pipeline.read_parquet(str(tmp_path / "in.parquet"), row_key="id").filter("id % 2 = 0")


def plan_for(pipeline: Pipeline, consumer: Consumer) -> Plan:
    return build_plan(pipeline.experiment("sum"), "", consumer)


def test_a_plan_serves_any_consumer(pipeline: Pipeline) -> None:
    plan = plan_for(pipeline, SumConsumer("id"))
    assert list(plan.streams) == ["sum"]
    assert plan.main.read_columns == ("id",)  # the other column is not read
    assert explain(plan).splitlines()[-2:] == [
        "Then: the sum of id",
        "Warning: the sum of id may overflow",
    ]
    assert plan_document(plan)["sum"] == "id"


def test_a_consumer_refuses_what_it_cannot_take(pipeline: Pipeline) -> None:
    with pytest.raises(ManifestError, match="sum"):
        plan_for(pipeline, SumConsumer("nothing"))


def test_a_consumer_shares_leases_waiting_and_the_funnel(pipeline: Pipeline) -> None:
    stream = plan_for(pipeline, SumConsumer("id")).main
    readers = ThreadReaders(
        streams={"sum": Stream(plan=stream, chunk_rows=100, finish=add_up)}, num_threads=2
    )
    waited, usage = Waited(), WorkerUsage()
    feed = readers.open("sum", 0, stream.groups(0, 100), in_order=False)
    total, counts = 0, tuple[StepCount, ...]()
    for chunk in feed.chunks(waited, usage):
        total += int(chunk.result)
        counts = add_counts(counts, chunk.header.counts)
    assert total == sum(range(0, 1000, 2))
    assert [flow.rows_out for flow in step_flows(stream, counts)] == [1000, 500]
    assert usage.units == 10
    assert waited.production > 0


def run_sum(root: Path, watcher: Watcher, column: str = "id", **spec: object) -> Finished:
    """Run a manifest with the consumer's own section."""
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "sum"},
        "spec": {
            "dataset": {"parquet": {"uri": "in.parquet"}, "rowKey": ["id"]},
            "pipeline": [{"filter": {"where": "id % 2 = 0"}}],
            "sum": {"column": column},
            **spec,
        },
    }
    options = RunOptions(output=root / "report", storage_root=str(root))
    return run_experiment(parse_sum(document), json.dumps(document), options, watcher)


def parse_sum(document: dict[str, Any]) -> ToyExperiment:
    return ToyExperiment.model_validate(document, strict=False)


def test_the_section_of_a_consumer_is_hashed() -> None:
    document: dict[str, Any] = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "sum"},
        "spec": {"dataset": {"parquet": {"uri": "in.parquet"}}, "sum": {"column": "id"}},
    }
    hashes = {run_hash(parse_sum(document))}
    document["spec"]["sum"] = {"column": "other"}
    hashes.add(run_hash(parse_sum(document)))
    del document["spec"]["sum"]
    hashes.add(run_hash(parse_sum(document)))
    assert len(hashes) == 3


@pytest.mark.usefixtures("pipeline")
def test_a_manifest_with_a_consumers_section_is_run_to_a_report(tmp_path: Path) -> None:
    runs: list[object] = []
    readings: list[Reading] = []
    watcher = Watcher(on_prepared=runs.append, on_reading=readings.append)
    finished = run_sum(tmp_path, watcher)
    assert finished.outcome.kind == "Complete"
    assert isinstance(runs[0], SumRun)
    assert readings[-1].source == sum(range(0, 1000, 2))
    assert [step.rows_out for step in finished.summary.steps] == [1000, 500]
    assert f"the sum is {sum(range(0, 1000, 2))}" in finished.summary.warnings
    [folder] = (tmp_path / "experiments" / "sum").iterdir()
    assert {"summary.json", "report.html"} < {path.name for path in folder.iterdir()}


@pytest.mark.usefixtures("pipeline")
def test_a_consumer_is_stopped_by_a_signal(tmp_path: Path) -> None:
    watcher = Watcher(on_reading=lambda reading: os.kill(os.getpid(), signal.SIGINT))
    finished = run_sum(tmp_path, watcher, pipelineOptions={"rowsPerBlock": 100})
    assert finished.outcome.kind == "Interrupted"
    assert finished.hints == ("start again",)


@pytest.mark.usefixtures("pipeline")
def test_two_consumers_of_one_manifest_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not come with"):
        run_sum(tmp_path, Watcher(), output={"parquet": {"uri": "out/"}})
