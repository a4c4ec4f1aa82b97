"""Measure the cost of a fixed order of batches: `python -m benchmarks.order`.

One trainer on this machine trains the built-in model on the same table with
`pipelineOptions.preserveOrder` on and off, with readers that are threads and processes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric
from benchmarks.harness.rounds import Rounds, Sample, measure
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import run_experiment
from pipeline_runtime.sample_data import SampleDataOptions, write_sample_data

COLUMNS: Final = ["item_id", "user_id", *(f"dense_{i:02d}" for i in range(16)), "user_sequence"]
BENCHMARK = Benchmark(
    name="order",
    module="order",
    title="The cost of a fixed order of batches",
    text="One trainer on one machine; rows per second of training with `preserveOrder`, against "
    "those without. Both orders train on the same rows, by the checksum of the run.",
    metrics=(Metric(name="rowsPerSecond", label="rows/s"),),
    cell_label="training, readers",
    arm_label="order",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure both kinds of readers."""
    keep_freed_memory()
    table = options.data.absolute() / f"order-{options.rows}"
    write_sample_data(table, SampleDataOptions(rows=options.rows))
    for name, feed in (("threads", "Threads"), ("processes", "Readers")):
        arms = {
            order: partial(train_once, table, {"preserveOrder": is_on, "feed": feed})
            for order, is_on in (("any", False), ("fixed", True))
        }
        yield measure(f"ranking model, {name}", arms, Rounds(count=options.rounds))


def train_once(table: Path, options: dict[str, Any]) -> Sample:
    """Train once. Raises AssertionError if the run fails."""
    document: dict[str, Any] = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "order"},
        "spec": {
            "dataset": {"parquet": {"uri": str(table / "impressions")}},
            "pipeline": [
                {"filter": {"where": "position < 30"}},
                {"truncate": {"columns": ["user_sequence"], "length": 64}},
            ],
            "pipelineOptions": options,
            "training": {"batchSize": 4096, "columns": COLUMNS, "labelColumn": "clicked"},
        },
    }
    with tempfile.TemporaryDirectory(prefix="lastmile-order-") as folder:
        place = RunOptions(output=Path(folder) / "out", storage_root=folder)
        finished = run_experiment(parse_experiment(document), "", place)
    assert finished.outcome.kind == "Complete", finished.outcome.error
    rate = finished.summary.throughput.samples_per_second
    assert rate is not None
    return Sample({"rowsPerSecond": rate}, str(finished.summary.checksum))


if __name__ == "__main__":
    parser = build_parser("order", __doc__, rows=1_000_000, rounds=7)
    sys.exit(run(BENCHMARK, parser, compare))
