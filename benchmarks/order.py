"""Measure the cost of a fixed order of batches: `python -m benchmarks.order`.

One trainer on this machine trains on the same table with `pipelineOptions.preserveOrder` on and
off: with a loop that does nothing, so that the readers are the bottleneck, and with the built-in
model; and with readers that are threads and processes. With the fixed order, the final losses of
the built-in model must be equal in all rounds.
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

BATCH_SIZE: Final = 4096
COLUMNS: Final = ["item_id", "user_id", *(f"dense_{i:02d}" for i in range(16)), "user_sequence"]
# Of each cell, the entrypoint (the built-in model if none) and the feed.
CELLS: Final = {
    f"{model}, {readers}": (entrypoint, feed)
    for model, entrypoint in (("no model", "benchmarks.order:loop"), ("ranking model", None))
    for readers, feed in (("threads", "Threads"), ("processes", "Readers"))
}
BENCHMARK = Benchmark(
    name="order",
    module="order",
    title="The cost of a fixed order of batches",
    text="One trainer on one machine; rows per second of training with `preserveOrder`, against "
    "those without. Both orders train on the same rows, by the checksum of the run.",
    metrics=(Metric(name="rowsPerSecond", label="rows/s"),),
    cell_label="training, readers",
    arm_label="order",
    fact_labels={"losses": "different final losses in a fixed order"},
)


def loop(ctx: Any) -> None:
    """Take all batches and do nothing with them; Lastmile calls it with the context."""
    for _ in ctx.epochs():
        for _ in ctx.batches():
            pass
        ctx.report({})


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all cells."""
    keep_freed_memory()
    table = options.data.absolute() / f"order-{options.rows}"
    write_sample_data(table, SampleDataOptions(rows=options.rows))
    for name, (entrypoint, feed) in CELLS.items():
        losses: set[Any] = set()
        arms = {
            order: partial(
                train_once, table, entrypoint, {"preserveOrder": is_on, "feed": feed}, found
            )
            for order, is_on, found in (("any", False, set()), ("fixed", True, losses))
        }
        cell = measure(name, arms, Rounds(count=options.rounds))
        if entrypoint is None:
            cell.facts["losses"] = len(losses)
        yield cell


def train_once(
    table: Path, entrypoint: str | None, options: dict[str, Any], losses: set[Any]
) -> Sample:
    """Train once, and add the final loss. Raises AssertionError if the run fails."""
    training = {"batchSize": BATCH_SIZE, "columns": COLUMNS, "labelColumn": "clicked"}
    document = {
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
            "training": training | ({"entrypoint": entrypoint} if entrypoint else {}),
        },
    }
    with tempfile.TemporaryDirectory(prefix="lastmile-order-") as folder:
        place = RunOptions(output=Path(folder) / "out", storage_root=folder)
        finished = run_experiment(parse_experiment(document), "", place)
    assert finished.outcome.kind == "Complete", finished.outcome.error
    summary = finished.summary
    rate = summary.throughput.samples_per_second
    assert rate is not None
    losses.add(summary.training.metrics.get("train_loss"))
    return Sample({"rowsPerSecond": rate}, str(summary.checksum))


if __name__ == "__main__":
    parser = build_parser("order", __doc__, rows=1_000_000, rounds=7)
    sys.exit(run(BENCHMARK, parser, compare))
