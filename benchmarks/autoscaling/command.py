"""The command line of the benchmark, and its document of results."""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from benchmarks.autoscaling.course import trace_course
from benchmarks.autoscaling.figure import draw
from benchmarks.autoscaling.judging import Target, Verdict, compare, judge
from benchmarks.autoscaling.policies import (
    BEST_CONSTANT,
    LATENCY_ORACLE,
    OURS,
    POLICIES,
    Policy,
)
from benchmarks.autoscaling.report import build_markdown
from benchmarks.autoscaling.result_rows import PRICES, Measured, Results, Row, make_rows
from benchmarks.autoscaling.scenarios import SCENARIOS, Cell, CellKey, cells
from benchmarks.autoscaling.simulations import Job, Runner, job_of
from benchmarks.autoscaling.tuning import (
    Chosen,
    Constants,
    constant_jobs,
    find_best_constants,
    tune,
)
from benchmarks.harness.cells import Document
from benchmarks.harness.report import Beginning, write_files
from dataset_operator.simulation.measures import Measures

NAME = "autoscaling"
# The targets need this many; a run with fewer is indicative.
FULL_SEEDS = 20
ABLATION_SEEDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs to simulate."""

    cells: Sequence[Cell]
    policies: Sequence[Policy]
    seeds: Sequence[int]
    ablation_seeds: Sequence[int]

    def seeds_of(self, policy: Policy) -> Sequence[int]:
        """Ablations have fewer."""
        return self.ablation_seeds if policy.is_ablation else self.seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Results of a plan."""

    results: Results
    tuned: Chosen
    num_runs: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_options(arguments)
    plan = build_plan(options)
    beginning = Beginning()
    runner = Runner(
        processes=options.processes,
        niceness=options.nice,
        folder=options.data / "autoscaling",
    )
    found = run(plan, runner)
    results = beginning.describe(NAME, arguments) | summarise(plan, found)
    print(write_files(NAME, results, options.output, build_page=build_markdown, draw=draw))
    return 0


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with an error if it is wrong."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description="Simulate every autoscaling policy over every scenario.",
    )
    add = parser.add_argument
    add("--seeds", type=int, default=FULL_SEEDS, metavar="N", help="per cell; targets need 20")
    add(
        "--ablation-seeds",
        type=int,
        default=ABLATION_SEEDS,
        metavar="N",
        help="of ablations",
    )
    add("--scenarios", type=_names, default=[], metavar="'A;B;…'", help="only these")
    add(
        "--policies",
        type=_names,
        default=[],
        metavar="'A;B;…'",
        help="with ours and its oracle",
    )
    add("--processes", type=int, default=os.cpu_count(), metavar="N")
    add("--nice", type=int, default=0, metavar="N", help="added to the processes' niceness")
    add(
        "--data",
        type=Path,
        default=Path("build"),
        metavar="DIR",
        help="finished simulations",
    )
    add("--output", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    options = parser.parse_args(arguments)
    if min(options.seeds, options.ablation_seeds) < 2:
        parser.error("--seeds, --ablation-seeds: must be 2 or more, one seed has no bounds")
    for option, asked, known in (
        ("scenarios", options.scenarios, [scenario.name for scenario in SCENARIOS]),
        ("policies", options.policies, [policy.name for policy in POLICIES]),
    ):
        unknown = [name for name in asked if name not in known]
        if unknown:
            parser.error(f"--{option}: must be of {'; '.join(known)}; got {unknown!r}")
    return options


def _names(text: str) -> list[str]:
    """Split names, which may contain commas."""
    return [name.strip() for name in text.split(";")]


def build_plan(options: argparse.Namespace) -> Plan:
    """Return the runs to simulate."""
    scenarios = options.scenarios or [scenario.name for scenario in SCENARIOS]
    policies = options.policies or [policy.name for policy in POLICIES]
    always = {OURS, LATENCY_ORACLE}
    return Plan(
        cells=[cell for cell in cells() if cell.scenario.name in scenarios],
        policies=[policy for policy in POLICIES if policy.name in {*policies, *always}],
        seeds=range(1, options.seeds + 1),
        ablation_seeds=range(1, min(options.ablation_seeds, options.seeds) + 1),
    )


def run(plan: Plan, runner: Runner) -> Found:
    """Tune the peers, then simulate every policy in every cell with every seed."""
    names = [policy.name for policy in plan.policies]
    tuned = tune(plan.cells, names, runner)
    constants: Constants = {}
    if BEST_CONSTANT in names:
        constants = find_best_constants(plan.cells, plan.seeds, runner)
    jobs = {
        (cell.key, policy.name): [
            job_of(cell, policy.name, tuned.get(policy.name, {}), seed)
            for seed in plan.seeds_of(policy)
        ]
        for cell in plan.cells
        for policy in plan.policies
        if policy.name != BEST_CONSTANT
    }
    done = runner.run([job for wanted in jobs.values() for job in wanted], "all policies")
    results: dict[CellKey, dict[str, Measured]] = defaultdict(dict)
    for (key, policy), wanted in jobs.items():
        measures = [done[job] for job in wanted]
        results[key][policy] = Measured(by_price=dict.fromkeys(PRICES, measures))
    for cell in plan.cells:
        if cell.key in constants:
            results[cell.key][BEST_CONSTANT] = _best(cell, constants[cell.key], plan, runner)
    return Found(results=results, tuned=tuned, num_runs=runner.num_runs)


def _best(cell: Cell, workers: Mapping[int, int], plan: Plan, runner: Runner) -> Measured:
    """Return the best constant for each price; all of them have been run."""

    def measures(number: int) -> list[Measures]:
        jobs: list[Job] = constant_jobs(cell, number, plan.seeds)
        return list(runner.run(jobs, "constants").values())

    return Measured(
        by_price={price: measures(number) for price, number in workers.items()},
        settings={"workers": {str(price): number for price, number in workers.items()}},
    )


def summarise(plan: Plan, found: Found) -> Document:
    """Return the results as a document, without the environment."""
    summary = {
        "version": 2,
        "benchmark": NAME,
        "seeds": len(plan.seeds),
        "ablationSeeds": len(plan.ablation_seeds),
        "isWhole": len(plan.seeds) >= FULL_SEEDS
        and len(plan.cells) == len(cells())
        and len(plan.policies) == len(POLICIES),
        "numRuns": found.num_runs,
        **describe_rows(make_rows(found.results), found.tuned),
        "comparisons": [asdict(comparison) for comparison in compare(found.results)],
        "course": trace_course(found.tuned),
    }
    rounded: Document = round_floats(summary)
    return rounded


def describe_rows(rows: Sequence[Row], tuned: Chosen) -> Document:
    """Return targets, means of each policy, the worst cells of ours, and all costs."""
    by_policy: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_policy[row.policy].append(row)
    policies = [policy for policy in POLICIES if policy.name in by_policy]
    return {
        "targets": [_describe_target(target) for target in judge(rows)],
        "policies": [_sum_up(policy, by_policy[policy.name], tuned) for policy in policies],
        "scenarios": _by_scenario(by_policy[OURS]),
        "cells": [list(row.cell) for row in by_policy[OURS]],
        "rows": [
            {
                "policy": name,
                "cost": [round(row.cost_per_row_ratio_by_price["20"], 3) for row in mine],
            }
            for name, mine in by_policy.items()
        ],
    }


def round_floats(value: Any) -> Any:
    """Return a value with all floats rounded to four significant digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: round_floats(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [round_floats(each) for each in value]
    return value


def _describe_target(target: Target) -> Document:
    return {
        "name": target.name,
        "limit": target.limit,
        "unit": target.unit,
        "numCells": len(target.verdicts),
        "numMet": target.num_met,
        "worst": _describe_verdict(target.worst),
        "misses": [_describe_verdict(verdict) for verdict in target.misses],
    }


def _describe_verdict(verdict: Verdict) -> list[Any]:
    return [
        verdict.scenario,
        verdict.provisioning_delay_seconds,
        verdict.noise_percent,
        verdict.measured,
    ]


def _sum_up(policy: Policy, rows: Sequence[Row], tuned: Chosen) -> Document:
    """Return the means of a policy over all cells."""
    prices = rows[0].cost_per_row_ratio_by_price
    return {
        "policy": policy.name,
        "is_oracle": policy.is_oracle,
        "is_ablation": policy.is_ablation,
        "seeds": rows[0].seeds,
        "idle_share": fmean(row.idle_share for row in rows),
        "worker_hours_ratio": fmean(row.worker_hours_ratio for row in rows),
        "cost": {p: geometric_mean(r.cost_per_row_ratio_by_price[p] for r in rows) for p in prices},
        "reversals_per_hour": fmean(row.reversals_per_hour for row in rows),
        "moves": fmean(row.moves for row in rows),
        "cut_off": sum(row.cut_off for row in rows),
        "settings": tuned.get(policy.name, {}),
    }


def _by_scenario(ours: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the worst cell of each scenario."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in ours:
        found[row.scenario].append(row)
    return [
        {
            "scenario": scenario,
            "idle_excess_share": max(row.idle_excess_share for row in mine),
            "worker_hours_ratio": max(row.worker_hours_ratio for row in mine),
            "settling_seconds": max(
                (r.settling_seconds for r in mine if r.settling_seconds is not None), default=None
            ),
            "unsettled_share": max(row.unsettled_share for row in mine),
            "overshoot_workers": max(row.overshoot_workers for row in mine),
            "reversals_per_hour": max(row.reversals_per_hour for row in mine),
            "moves": max(row.moves for row in mine),
        }
        for scenario, mine in found.items()
    ]
