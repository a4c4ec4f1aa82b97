"""Measure the batches of a sorted, partitioned and bucketed table: `python -m benchmarks.mixing`.

The impressions of the Iceberg sample are partitioned by day, bucketed by user and sorted by user.
Three arms train the built-in model on the same rows, evaluated on the same others:

    permuted   the rows in a random order in one Parquet file: the best that a shuffle can give
    unmixed    the table's files as Parquet, whose neighbouring rows are alike
    mixed      the Iceberg table

For each arm it gives the AUC over seeds; the variance of batch means of label and day, relative to
that of a global permutation; and the speed of reading alone, in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import torch
from matplotlib.figure import Figure

from benchmarks import records
from benchmarks.dataloading.reporting.results import spread
from benchmarks.iceberg.lakes import ALL_COLUMNS, Lake, make_lake
from benchmarks.iceberg.ours import build_experiment
from benchmarks.turns import in_turn
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.batches import Batch
from pipeline_runtime.loader import open_loader, parse_options
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import run_experiment
from pipeline_runtime.sample_data.lake import CATALOG, NAMESPACE
from pipeline_runtime.sample_data.lake_tables import IMPRESSIONS, KEY

NAME = "mixing"
ARMS = ("permuted", "unmixed", "mixed")
# A file has about as many rows as a window, as it has with the default window in a table that is
# eight times as large.
BATCH_SIZE, WINDOW_ROWS, DAYS = 512, 4096, 8
LABEL, TIME = "clicked", "timestamp"
FEATURES = tuple(
    name for name in ALL_COLUMNS if name in (KEY, "item_id") or name.startswith(("dense_", "cat_"))
)
MICROSECONDS_PER_DAY = 86_400_000_000


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
    lake = make_lake(options.data, options.rows, days=DAYS)
    datasets = make_datasets(lake)
    areas: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory(prefix="lastmile-mixing-") as place:
        for seed in range(options.seeds):
            for arm in in_turn(ARMS, seed):
                areas[arm].append(train(lake, datasets[arm], seed, Path(place) / f"{arm}-{seed}"))
                print(f"seed {seed}, {arm}: AUC {areas[arm][-1]:.4f}", file=sys.stderr)
    speeds = measure_speeds(lake, datasets, options.rounds)
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
                **measure_batches(lake, datasets[arm]),
                "rowsPerSecond": spread(options.rows / wall for wall, _ in speeds[arm]),
            }
            for arm in ARMS
        ],
        "speedOfMixed": compare(speeds, 0),
        "cpuSpeedOfMixed": compare(speeds, 1),
    }
    records.print_results(NAME, results, options.output, build_markdown, draw)
    return 0


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


def train(lake: Lake, dataset: dict[str, Any], seed: int, place: Path) -> float:
    """Train once, and return the AUC of the evaluation. Raises AssertionError if the run fails."""
    training = {
        "batchSize": BATCH_SIZE,
        "columns": list(FEATURES),
        "labelColumn": LABEL,
        "seed": seed,
        "shuffle": {"windowRows": WINDOW_ROWS},
        "evaluation": {"holdoutPercent": 20, "by": [KEY]},
    }
    experiment = build_experiment(lake, dataset=dataset, training=training)
    options = RunOptions(output=place, storage_root=str(place.parent))
    finished = run_experiment(experiment, "", options)
    assert finished.outcome.kind == "Complete", finished.outcome.error
    return float(finished.summary.training.metrics["eval_auc"])


def iterate(lake: Lake, dataset: dict[str, Any], columns: Sequence[str]) -> Iterator[Batch]:
    """Yield an epoch's whole batches in the order of a training."""
    training = {
        "batchSize": BATCH_SIZE,
        "columns": list(columns),
        "seed": 1,
        "shuffle": {"windowRows": WINDOW_ROWS},
    }
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


def measure_speeds(
    lake: Lake, datasets: dict[str, dict[str, Any]], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds and CPU seconds of each arm's epochs, which take turns.

    An epoch opens its table again. Raises AssertionError if an arm reads other rows.
    """
    found: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
    read = set()
    for index in range(-1, rounds):  # the first loads libraries and kernels off the clock
        for arm in in_turn(ARMS, index):
            before = time.perf_counter(), time.process_time()
            num_rows = sum(
                len(batch["item_id"]) for batch in iterate(lake, datasets[arm], FEATURES)
            )
            if index >= 0:
                found[arm].append(
                    (time.perf_counter() - before[0], time.process_time() - before[1])
                )
            read.add(num_rows)
    assert len(read) == 1, read
    return found


def compare(speeds: dict[str, list[tuple[float, float]]], which: int) -> dict[str, float]:
    """Return the speed of `mixed` relative to `unmixed`, by seconds (0) or CPU seconds (1)."""
    pairs = zip(speeds["unmixed"], speeds["mixed"], strict=True)
    return spread(unmixed[which] / mixed[which] for unmixed, mixed in pairs)


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
    wall, cpu = results["speedOfMixed"], results["cpuSpeedOfMixed"]
    yield f"\nMixed against unmixed, planning included: {wall['median']:.2f} × the rows per second"
    yield f"({wall['min']:.2f}–{wall['max']:.2f}), {cpu['median']:.2f} × the rows per CPU second"
    yield f"({cpu['min']:.2f}–{cpu['max']:.2f})."


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
