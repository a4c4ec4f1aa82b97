"""Measure the batches of a sorted, partitioned and bucketed table: `python -m benchmarks.mixing`.

The sample data is written twice: in a random order, and partitioned by day, bucketed by user and
sorted by user, as an Iceberg table for a join by bucket is. Three arms train the built-in model on
the same rows, evaluated on the same others:

    permuted   the table in a random order: the best that a shuffle can give
    unmixed    the sorted table, as a source that does not know that its neighbouring rows are alike
    mixed      the sorted table, as a source that does

For each arm it gives the AUC over seeds; the variance of batch means of label and day, relative to
that of a global permutation; and rows per second of reading alone, in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import torch
from matplotlib.figure import Figure

from benchmarks import records
from benchmarks.dataloading.reporting.results import spread
from benchmarks.turns import in_turn
from pipeline_runtime import Pipeline
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import run_experiment
from pipeline_runtime.sample_data import SampleDataOptions, write_sample_data
from pipeline_runtime.sources import Predicate, Scan
from pipeline_runtime.sources.parquet.table import ParquetTable

NAME = "mixing"
ARMS = ("permuted", "unmixed", "mixed")
BATCH_SIZE, WINDOW_ROWS, BUCKETS = 512, 4096, 16
COLUMNS = ["item_id", "user_id", *(f"dense_{i:02d}" for i in range(20))]
COLUMNS += [f"cat_{i:02d}" for i in range(16)]


def main() -> int:
    """Measure, and write the results; see `records.write_results`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixing", description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="of the table")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each arm")
    parser.add_argument("--rounds", type=int, default=9, help="epochs of reading of each arm")
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder of the tables")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    keep_freed_memory()
    beginning = records.Beginning()
    folder = options.data.absolute() / f"{NAME}-{options.rows}"
    write_tables(folder, options.rows)
    with tempfile.TemporaryDirectory(prefix="lastmile-mixing-") as place:
        areas = {
            arm: [train(folder, arm, seed, Path(place)) for seed in range(options.seeds)]
            for arm in ARMS
        }
    rates = measure_rates(folder, options.rounds)
    results = {
        "version": 1,
        "benchmark": NAME,
        **beginning.describe(NAME, sys.argv[1:]),
        "settings": {
            "rows": options.rows,
            "seeds": options.seeds,
            "batchSize": BATCH_SIZE,
            "windowRows": WINDOW_ROWS,
        },
        "arms": [
            {
                "name": arm,
                "auc": areas[arm],
                **measure_batches(folder, arm),
                "rowsPerSecond": spread(rates[arm]),
            }
            for arm in ARMS
        ],
        "rateOfMixed": spread(
            mixed / unmixed for mixed, unmixed in zip(rates["mixed"], rates["unmixed"], strict=True)
        ),
    }
    records.print_results(NAME, results, options.output, build_markdown, draw)
    return 0


def write_tables(folder: Path, rows: int) -> None:
    """Write the tables `permuted` and `sorted`, unless they exist."""
    if (folder / "sorted").exists():
        return
    write_sample_data(folder / "sample", SampleDataOptions(rows=rows))
    source = pads.dataset(folder / "sample" / "impressions", partitioning="hive")
    table = source.to_table(columns=["_lastmile_row_id", "day", "clicked", *COLUMNS])
    table = table.take(np.random.default_rng(0).permutation(table.num_rows))
    for name in COLUMNS:
        table = table.set_column(
            table.schema.get_field_index(name), name, pc.fill_null(table[name], 0)
        )
    date = pa.array([float(day[-2:]) for day in table["day"].to_pylist()], pa.float32())
    table = table.append_column("date", date)
    (folder / "permuted").mkdir(parents=True)
    pq.write_table(table, folder / "permuted" / "rows.parquet", row_group_size=WINDOW_ROWS)
    bucket = table["user_id"].to_numpy() * 2_654_435_761 % 2**32 % BUCKETS
    for day in sorted(set(table["day"].to_pylist())):
        below = folder / "sorted" / f"day={day}"
        below.mkdir(parents=True)
        for number in range(BUCKETS):
            mask = pa.array(bucket == number)
            rows_here = table.filter(mask).filter(pads.field("day") == day)
            rows_here = rows_here.sort_by("user_id").drop_columns(["day"])
            pq.write_table(rows_here, below / f"bucket-{number:02}.parquet")


@contextmanager
def table_of(folder: Path, arm: str) -> Iterator[str]:
    """Yield the URI of an arm's table; until the end, Parquet is read as the arm reads it."""
    scan_files = ParquetTable.scan

    def scan(
        self: ParquetTable, predicates: Sequence[Predicate], columns: Collection[str] = ()
    ) -> Scan:
        return replace(scan_files(self, predicates, columns), is_clustered=arm == "mixed")

    with mock.patch.object(ParquetTable, "scan", scan):
        yield f"{folder / ('permuted' if arm == 'permuted' else 'sorted')}/"


def train(folder: Path, arm: str, seed: int, place: Path) -> float:
    """Train once, and return the AUC of the evaluation. Raises AssertionError if the run fails."""
    name = f"{arm}-{seed}"
    with table_of(folder, arm) as uri:
        document = {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": name},
            "spec": {
                "dataset": {"parquet": {"uri": uri}},
                "training": {
                    "batchSize": BATCH_SIZE,
                    "columns": COLUMNS,
                    "labelColumn": "clicked",
                    "seed": seed,
                    "shuffle": {"windowRows": WINDOW_ROWS},
                    "evaluation": {"holdoutPercent": 20, "by": ["user_id"]},
                },
            },
        }
        options = RunOptions(output=place / name, storage_root=str(place))
        finished = run_experiment(parse_experiment(document), "", options)
    assert finished.outcome.kind == "Complete", finished.outcome.error
    return float(finished.summary.training.metrics["eval_auc"])


def measure_batches(folder: Path, arm: str) -> dict[str, float]:
    """Return the variance of batch means of label and day, relative to a global permutation's."""
    found = {}
    with table_of(folder, arm) as uri:
        batches = list(open_loader(Pipeline.read_parquet(uri), ["clicked", "date"]))
    for name, column in (("label", "clicked"), ("day", "date")):
        rows = torch.stack([batch[column].double() for batch in batches])
        found[f"{name}Variance"] = float(rows.mean(1).var() / (rows.var() / BATCH_SIZE))
    return found


def open_loader(pipeline: Pipeline, columns: list[str]) -> Any:
    """Open a loader of whole batches in the order of a training."""
    shuffle = {"window_rows": WINDOW_ROWS}
    return pipeline.loader(BATCH_SIZE, columns, shuffle=shuffle, seed=1, last_batch="drop")


def measure_rates(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the rows per second of each arm's epochs, which take turns."""
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for index in range(-1, rounds):  # the first opens files and compiles kernels off the clock
        for arm in in_turn(list(ARMS), index):
            with table_of(folder, arm) as uri:
                loader = open_loader(Pipeline.read_parquet(uri), COLUMNS)
                started = time.perf_counter()
                num_rows = sum(len(batch["item_id"]) for batch in loader)
                if index >= 0:
                    found[arm].append(num_rows / (time.perf_counter() - started))
    return found


def build_markdown(results: records.Document) -> str:
    """The results as a page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: records.Document) -> Iterator[str]:
    settings = results["settings"]
    yield "# Batches of a sorted table\n"
    yield f"Do not edit; made by `{results['command']}` at commit {results['commit']},"
    yield f"{results['finishedAt']}, load average {results['loadAverage'][0]:.2f} at the start.\n"
    yield f"{settings['rows']:,} rows in batches of {settings['batchSize']:,}, windows of"
    yield f"{settings['windowRows']:,} rows; AUC: mean (least–largest) of {settings['seeds']}"
    yield "seeds; variance of batch means relative to that of a global permutation.\n"
    yield "| order | AUC | variance of labels | of days | rows/s |"
    yield "|---|---|---|---|---|"
    for arm in results["arms"]:
        auc, rate = arm["auc"], arm["rowsPerSecond"]
        yield (
            f"| {arm['name']} | {statistics.mean(auc):.4f} ({min(auc):.4f}–{max(auc):.4f}) | "
            f"{arm['labelVariance']:.2f} | {arm['dayVariance']:.2f} | {rate['median']:,.0f} |"
        )
    ratio = results["rateOfMixed"]
    yield f"\nMixed against unmixed: {ratio['median']:.2f} × the rows per second"
    yield f"({ratio['min']:.2f}–{ratio['max']:.2f})."


def draw(results: records.Document, path: Path) -> None:
    """The AUC of each seed in each order."""
    figure = Figure(figsize=(8, 2.5), layout="constrained")
    axes = figure.subplots()
    for place, arm in enumerate(results["arms"]):
        axes.plot(arm["auc"], [place] * len(arm["auc"]), "o", alpha=0.6)
    axes.set_yticks(range(len(ARMS)), [arm["name"] for arm in results["arms"]])
    axes.set(xlabel="AUC of each seed", ylim=(-0.5, len(ARMS) - 0.5))
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
