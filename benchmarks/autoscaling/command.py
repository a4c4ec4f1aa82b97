"""The benchmark's command line: the run, and the files it writes."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import records
from benchmarks.autoscaling.jobs import Job, job_of, run_jobs
from benchmarks.autoscaling.judging import CellKey, Row, judge, make_rows
from benchmarks.autoscaling.policies import BEST_CONSTANT, OURS, POLICIES
from benchmarks.autoscaling.report import build_markdown, draw
from benchmarks.autoscaling.scenarios import Cell, cells
from benchmarks.autoscaling.tuning import find_best_constants, tune
from dataset_operator.simulation.measures import Measures

NAME = "autoscaling"
# A constant of a cell is looked for on so many of its seeds.
_CONSTANT_SEEDS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_options(arguments)
    beginning = records.Beginning()
    chosen_cells = [
        cell
        for cell in cells()
        if not options.scenarios or cell.scenario.name in options.scenarios.split(",")
    ]
    rows, num_runs = run(chosen_cells, range(1, options.seeds + 1))
    results = beginning.describe(NAME, arguments) | {
        "version": 1,
        "benchmark": NAME,
        "seeds": options.seeds,
        "numRuns": num_runs,
        "bars": [asdict(bar) for bar in judge(rows)],
        "laws": [_sum_up(policy.name, policy.is_oracle, rows) for policy in POLICIES],
        "scenarios": _by_scenario(rows),
        "rows": [asdict(row) for row in rows],
    }
    print(
        records.write_results(
            NAME, results, options.output, build_markdown=build_markdown, draw=draw
        )
    )
    return 0


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; exits with what is wrong with it."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description="Simulate every law of scaling over every scenario.",
    )
    add = parser.add_argument
    add("--seeds", type=int, default=20, metavar="N", help="of each cell; bars ask for 20")
    add("--scenarios", default="", metavar="A,B,…", help="some of them, by name")
    add("--output", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    return parser.parse_args(arguments)


def run(chosen: Sequence[Cell], seeds: Sequence[int]) -> tuple[list[Row], int]:
    """Tune the peers, then simulate every policy in every cell with every seed."""
    tuned = tune(cells())
    constants = find_best_constants(chosen, seeds[:_CONSTANT_SEEDS])
    settings: dict[tuple[CellKey, str], dict[str, Any]] = {}
    jobs: list[Job] = []
    for cell in chosen:
        for policy in POLICIES:
            found = tuned.get(policy.name, {})
            key = job_of(cell, policy.name, {}, 0).cell
            if policy.name == BEST_CONSTANT:
                found = {"workers": constants[key]}
            settings[key, policy.name] = found
            jobs += [job_of(cell, policy.name, found, seed) for seed in seeds]
    results: dict[CellKey, dict[str, list[Measures]]] = defaultdict(lambda: defaultdict(list))
    for job, measures in run_jobs(jobs):
        results[job.cell][job.policy].append(measures)
    return make_rows(results, settings), len(jobs)


def _sum_up(policy: str, is_oracle: bool, rows: Sequence[Row]) -> records.Document:
    mine = [row for row in rows if row.policy == policy]
    prices = mine[0].cost_per_row_ratio_by_price
    return {
        "policy": policy,
        "is_oracle": is_oracle,
        "idle_share": fmean(row.idle_share for row in mine),
        "worker_hours_ratio": fmean(row.worker_hours_ratio for row in mine),
        "cost": {p: fmean(row.cost_per_row_ratio_by_price[p] for row in mine) for p in prices},
        "reversals_per_hour": fmean(row.reversals_per_hour for row in mine),
        "moves": fmean(row.moves for row in mine),
        "settings": mine[0].settings,
    }


def _by_scenario(rows: Sequence[Row]) -> list[records.Document]:
    """The worst cell of each scenario, of ours."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.policy == OURS:
            found[row.scenario].append(row)
    return [
        {
            "scenario": scenario,
            "idle_excess_share": max(row.idle_excess_share for row in mine),
            "worker_hours_ratio": max(row.worker_hours_ratio for row in mine),
            "settling_seconds": max(
                (r.settling_seconds for r in mine if r.settling_seconds is not None), default=None
            ),
            "overshoot_workers": max(row.overshoot_workers for row in mine),
            "reversals_per_hour": max(row.reversals_per_hour for row in mine),
        }
        for scenario, mine in found.items()
    ]
