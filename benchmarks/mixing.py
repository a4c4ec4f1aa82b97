"""Measure the batches of a sorted, partitioned and bucketed table: `python -m benchmarks.mixing`.

The impressions of the Iceberg sample are partitioned by day, bucketed by user and sorted by user.
Three arms train the built-in model on the same rows, evaluated on the same others:

    permuted   the rows in a random order in one Parquet file: the best that a shuffle can give
    unmixed    the table's files as Parquet, whose neighbouring rows are alike
    mixed      the Iceberg table
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import torch

from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.iceberg.lakes import ALL_COLUMNS, Lake, make_lake
from benchmarks.iceberg.ours import build_experiment
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.batches import Batch
from pipeline_runtime.loader import open_loader, parse_options
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import run_experiment
from pipeline_runtime.sample_data.lake import CATALOG, NAMESPACE
from pipeline_runtime.sample_data.lake_tables import IMPRESSIONS, KEY

# A file has about as many rows as a window, as it has with the default window in a table that is
# eight times as large.
BATCH_SIZE, WINDOW_ROWS, DAYS = 512, 4096, 8
LABEL, TIME = "clicked", "timestamp"
FEATURES: Final = tuple(
    name for name in ALL_COLUMNS if name in (KEY, "item_id") or name.startswith(("dense_", "cat_"))
)
MICROSECONDS_PER_DAY: Final = 86_400_000_000
BENCHMARK = Benchmark(
    name="mixing",
    module="mixing",
    title="Batches of a sorted table",
    text="AUC of a seed's training; variance of the batch means of label and day, relative to that "
    "of a global permutation; speed of reading alone, planning included.",
    metrics=(
        Metric(name="auc", label="AUC", is_compared=False),
        Metric(name="labelVariance", label="variance of labels", is_compared=False, is_drawn=False),
        Metric(name="dayVariance", label="variance of days", is_compared=False, is_drawn=False),
        Metric(name="rowsPerSecond", label="rows/s", is_drawn=False),
        Metric(name="rowsPerCpuSecond", label="rows per CPU second", is_drawn=False),
    ),
    arm_label="order",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure the AUC over seeds, the variance of batches, and the speed of reading."""
    keep_freed_memory()
    lake = make_lake(options.data, options.rows, days=DAYS)
    datasets = make_datasets(lake)
    seeds = dict.fromkeys(datasets, 0)

    def train_next(arm: str) -> Sample:
        seeds[arm] += 1
        return Sample({"auc": train(lake, datasets[arm], seeds[arm])})

    trained = measure(
        "training",
        {arm: partial(train_next, arm) for arm in datasets},
        Rounds(count=options.seeds, warmups=0),
    )
    read = measure(
        "reading",
        {arm: partial(read_epoch, lake, dataset) for arm, dataset in datasets.items()},
        Rounds(count=options.rounds),
        base="unmixed",
    )
    for arm, dataset in datasets.items():
        variances = {name: [value] for name, value in measure_batches(lake, dataset).items()}
        read.arms[arm] |= trained.arms[arm] | variances
    yield read


def make_datasets(lake: Lake) -> dict[str, dict[str, Any]]:
    """Return the dataset of each arm; write the permuted rows unless they exist."""
    files = list(lake.files(IMPRESSIONS))
    permuted = lake.folder / "permuted.parquet"
    if not permuted.exists():
        table = pads.dataset(files).to_table(columns=[*FEATURES, LABEL, TIME])
        table = table.take(np.random.default_rng(0).permutation(table.num_rows))
        pq.write_table(table, permuted, row_group_size=WINDOW_ROWS)
    return {
        "permuted": {"parquet": {"uri": str(permuted)}},
        "unmixed": {"parquet": {"uris": files}},
        "mixed": {"iceberg": {"catalog": CATALOG, "table": f"{NAMESPACE}.{IMPRESSIONS.name}"}},
    }


def describe_training(columns: Sequence[str], seed: int, **more: Any) -> dict[str, Any]:
    """Return the `training` of a manifest."""
    shuffle = {"windowRows": WINDOW_ROWS}
    columns = list(columns)
    return {"batchSize": BATCH_SIZE, "columns": columns, "seed": seed, "shuffle": shuffle, **more}


def train(lake: Lake, dataset: dict[str, Any], seed: int) -> float:
    """Train once, and return the AUC of the evaluation. Raises AssertionError if the run fails."""
    evaluation = {"holdoutPercent": 20, "by": [KEY]}
    training = describe_training(FEATURES, seed, labelColumn=LABEL, evaluation=evaluation)
    experiment = build_experiment(lake, dataset=dataset, training=training)
    with tempfile.TemporaryDirectory(prefix="lastmile-mixing-") as folder:
        options = RunOptions(output=Path(folder) / "out", storage_root=folder)
        finished = run_experiment(experiment, "", options)
    assert finished.outcome.kind == "Complete", finished.outcome.error
    return float(finished.summary.training.metrics["eval_auc"])


def iterate(lake: Lake, dataset: dict[str, Any], columns: Sequence[str]) -> Iterator[Batch]:
    """Yield an epoch's whole batches in the order of a training."""
    training = describe_training(columns, 1)
    experiment = build_experiment(lake, dataset=dataset, training=training)
    options = parse_options(last_batch="drop", device=None, num_threads=None, distributed=False)
    return iter(open_loader(experiment, str(lake.folder), options))


def measure_batches(lake: Lake, dataset: dict[str, Any]) -> dict[str, float]:
    """Return the variance of batch means of label and day, relative to a global permutation's."""
    batches = list(iterate(lake, dataset, [LABEL, TIME]))
    labels = torch.stack([batch[LABEL].double() for batch in batches])
    days = torch.stack([batch[TIME] // MICROSECONDS_PER_DAY for batch in batches]).double()
    return {
        f"{name}Variance": float(rows.mean(1).var() / (rows.var() / BATCH_SIZE))
        for name, rows in (("label", labels), ("day", days))
    }


def read_epoch(lake: Lake, dataset: dict[str, Any]) -> Sample:
    """Open the table and read an epoch."""
    wall, cpu = time.perf_counter(), time.process_time()
    num_rows = sum(len(batch["item_id"]) for batch in iterate(lake, dataset, FEATURES))
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    rates = {"rowsPerSecond": num_rows / seconds, "rowsPerCpuSecond": num_rows / cpu_seconds}
    return Sample(rates, num_rows)


if __name__ == "__main__":
    parser = build_parser("mixing", __doc__, rows=300_000, rounds=9)
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each arm")
    sys.exit(run(BENCHMARK, parser, compare))
