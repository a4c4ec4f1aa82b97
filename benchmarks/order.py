"""Measure the cost of a fixed order of batches: `python -m benchmarks.order`.

One trainer on this machine trains on the same table with `pipelineOptions.preserveOrder` on and
off, in turn: with a loop that does nothing, so that the readers bind, and with the built-in model;
and with readers that are threads and processes. Both must train on the same rows, by the checksum
of the run. The final losses of the built-in model show what the order is for: with it, they are
equal in all rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import records
from benchmarks.dataloading.reporting.results import spread
from benchmarks.turns import in_turn
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.report.files.summary import Summary
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import run_experiment
from pipeline_runtime.sample_data import SampleDataOptions, write_sample_data

NAME = "order"
DEFAULT_ROWS = 1_000_000
DEFAULT_ROUNDS = 7
BATCH_SIZE = 4096
COLUMNS = ["item_id", "user_id", *(f"dense_{i:02d}" for i in range(16)), "user_sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A training whose two orders are compared."""

    name: str
    feed: str
    training: dict[str, Any] = field(default_factory=dict)


_NOTHING = {"entrypoint": "benchmarks.order:loop"}
CELLS = (
    Cell(name="no model, threads", feed="Threads", training=_NOTHING),
    Cell(name="no model, processes", feed="Readers", training=_NOTHING),
    Cell(name="ranking model, threads", feed="Threads"),
    Cell(name="ranking model, processes", feed="Readers"),
)


def loop(ctx: Any) -> None:
    """Take all batches and do nothing with them; Lastmile calls it with the context."""
    for _ in ctx.epochs():
        for _ in ctx.batches():
            pass
        ctx.report({})


def main() -> int:
    """Measure, and write the results; see `records.write_results`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.order", description=__doc__)
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="of the table")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder of the table")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    keep_freed_memory()
    beginning = records.Beginning()
    table = options.data.absolute() / f"{NAME}-{options.rows}"
    write_sample_data(table, SampleDataOptions(rows=options.rows))
    cells = [measure(table, cell, options.rounds) for cell in CELLS]
    results = {
        "version": 1,
        "benchmark": NAME,
        **beginning.describe(NAME, sys.argv[1:]),
        "settings": {
            "rows": options.rows,
            "rounds": options.rounds,
            "batchSize": BATCH_SIZE,
        },
        "cells": cells,
    }
    records.print_results(NAME, results, options.output, build_markdown, draw)
    return 0


def measure(table: Path, cell: Cell, rounds: int) -> dict[str, Any]:
    """Return rows per second of a cell in both orders, and how many losses it ended with.

    Raises AssertionError if two runs trained on other rows.
    """
    found: dict[bool, list[Summary]] = {True: [], False: []}
    for is_on in found:  # opens files and compiles kernels off the clock
        train(table, cell, in_order=is_on)
    for index in range(rounds):
        for is_on in in_turn(list(found), index):
            found[is_on].append(train(table, cell, in_order=is_on))
    summaries = [summary for each in found.values() for summary in each]
    assert len({summary.checksum for summary in summaries}) == 1, "other rows"
    rates = {is_on: [s.throughput.samples_per_second for s in found[is_on]] for is_on in found}
    losses = {
        is_on: {s.training.metrics.get("train_loss") for s in found[is_on]} for is_on in found
    }
    return {
        "name": cell.name,
        "rowsPerSecondOn": spread(rates[True]),
        "rowsPerSecondOff": spread(rates[False]),
        "ratio": spread(on / off for on, off in zip(rates[True], rates[False], strict=True)),
        "differentLossesOn": None if cell.training else len(losses[True]),
        "differentLossesOff": None if cell.training else len(losses[False]),
    }


def train(table: Path, cell: Cell, *, in_order: bool) -> Summary:
    """Train once, and return the summary. Raises AssertionError if the run fails."""
    spec = {
        "dataset": {"parquet": {"uri": str(table / "impressions")}},
        "pipeline": [
            {"filter": {"where": "position < 30"}},
            {"truncate": {"columns": ["user_sequence"], "length": 64}},
        ],
        "pipelineOptions": {"preserveOrder": in_order, "feed": cell.feed},
        "training": {
            "batchSize": BATCH_SIZE,
            "columns": COLUMNS,
            "labelColumn": "clicked",
            **cell.training,
        },
    }
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": NAME},
        "spec": spec,
    }
    with tempfile.TemporaryDirectory(prefix=f"lastmile-{NAME}-") as folder:
        options = RunOptions(output=Path(folder) / "out", storage_root=folder)
        finished = run_experiment(parse_experiment(document), "", options)
    assert finished.outcome.kind == "Complete", finished.outcome.error
    return finished.summary


def build_markdown(results: records.Document) -> str:
    """The results as a page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: records.Document) -> Iterator[str]:
    settings = results["settings"]
    yield "# The cost of a fixed order of batches\n"
    yield f"Do not edit; made by `{results['command']}` at commit {results['commit']},"
    yield f"{results['finishedAt']}, load average {results['loadAverage'][0]:.2f} at the start.\n"
    yield f"One trainer on one machine, {settings['rows']:,} rows in batches of"
    yield f"{settings['batchSize']:,}, {settings['rounds']} rounds in turn; median"
    yield "(least–largest). Both orders train on the same rows, by the checksum of the run.\n"
    yield "| training, readers | rows/s in order | rows/s in any order | ratio | different losses |"
    yield "|---|---|---|---|---|"
    for cell in results["cells"]:
        on, off, ratio = (cell[n] for n in ("rowsPerSecondOn", "rowsPerSecondOff", "ratio"))
        losses = "–"
        if cell["differentLossesOn"] is not None:
            losses = f"{cell['differentLossesOn']} against {cell['differentLossesOff']}"
        yield (
            f"| {cell['name']} | {on['median']:,.0f} | {off['median']:,.0f} | "
            f"{ratio['median']:.2f} ({ratio['min']:.2f}–{ratio['max']:.2f}) | {losses} |"
        )


def draw(results: records.Document, path: Path) -> None:
    """The rate in order against the rate in any order."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    cells = results["cells"]
    ratios = [cell["ratio"] for cell in cells]
    low = [r["median"] - r["min"] for r in ratios]
    high = [r["max"] - r["median"] for r in ratios]
    names = [cell["name"] for cell in cells]
    axes.barh(names, [r["median"] for r in ratios], xerr=(low, high), capsize=3)
    axes.axvline(1.0, color="0.4", linewidth=1)
    axes.set(xlabel="× the rate in any order")
    axes.set_xlim(left=0)
    figure.suptitle("The rate of training with a fixed order of batches")
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
