"""Simulate autoscaling policies in every scenario: `make bench-autoscaling`.

Each round is a seed, which gives every policy the same noise.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from benchmarks.autoscaling.judging import (
    NUM_GPUS,
    PRICE,
    PRICES,
    collect,
    describe_limits,
    judge,
    sum_up,
    sum_up_limits,
)
from benchmarks.autoscaling.policies import OURS, POLICIES, RIVALS
from benchmarks.autoscaling.scenarios import SCENARIOS
from benchmarks.autoscaling.simulations import Found, simulate_scenario
from benchmarks.harness.cells import Cell, Document
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target

ROUNDS = 20
NAMES = [scenario.name for scenario in SCENARIOS]
ALL_CELLS = {price: f"all, GPU at {price} workers" for price in PRICES}


def find_doubts(results: Document) -> list[str]:
    """Return why results are indicative."""
    settings = results["settings"]
    few, some = f"fewer than {ROUNDS} seeds", "not all scenarios"
    return [few] * (settings["rounds"] < ROUNDS) + [some] * ("scenarios" in settings)


BENCHMARK = Benchmark(
    name="autoscaling",
    module="autoscaling",
    title="Autoscaling policies",
    text=(
        "A simulated run trains the same rows under each policy. Its cost per row is (seconds of "
        f"{NUM_GPUS} GPUs · price + worker seconds) ÷ rows, here relative to that of an oracle "
        "that knows the means a window late; the ratio is to lastmile's. Means are over pods that "
        "start in 5, 30, 120 and 300 s, and 5 and 20 % of noise; a round is a seed. Scenarios have "
        f"GPUs at {PRICE} workers. What each rule of the policy brings: "
        "[autoscaling-rules.md](autoscaling-rules.md)."
    ),
    metrics=(
        Metric(name="cost", label="cost per row"),
        Metric(name="idle", label="GPUs idle, %", scale=100, is_compared=False, is_drawn=False),
        Metric(
            name="hours", label="worker hours ÷ the oracle's", is_compared=False, is_drawn=False
        ),
        Metric(name="moves", label="moves per run", is_compared=False, is_drawn=False),
        Metric(name="reversals", label="reversals per hour", is_compared=False, is_drawn=False),
    ),
    targets=(
        Target(
            text="costs more than lastmile",
            metric="cost",
            arms=tuple(RIVALS),
            cells=tuple(ALL_CELLS.values()),
            at_least=1.0,
        ),
    ),
    cell_label="scenarios",
    arm_label="policy",
    add_lines=describe_limits,
    find_doubts=find_doubts,
)


def simulate(options: argparse.Namespace) -> Iterator[Cell]:
    """Simulate the scenarios; yield the cells of all together."""
    chosen = [one for one in SCENARIOS if one.name in (options.scenarios or NAMES)]
    found: dict[str, list[Found]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for scenario in chosen:
            seeds = range(1, options.rounds + 1)
            found[scenario.name] = simulate_scenario(pool, scenario, seeds)
            done = f"{len(found)} of {len(chosen)} scenarios"
            print(f"{scenario.name}: {done}", file=sys.stderr, flush=True)
    together = [cell for mine in found.values() for cell in mine]
    for price, name in ALL_CELLS.items():
        cell = Cell(name=name, base=OURS, arms={p: sum_up(together, p, price) for p in POLICIES})
        if price == PRICE:
            judged = {
                scenario.name: collect([judge(one, scenario) for one in found[scenario.name]])
                for scenario in chosen
            }
            cell.facts = sum_up_limits(judged)
        else:  # only the cost depends on the price
            cell.arms = {policy: {"cost": values["cost"]} for policy, values in cell.arms.items()}
        yield cell


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = build_parser("autoscaling", __doc__, rounds=ROUNDS)
    parser.add_argument("--scenarios", nargs="+", choices=NAMES, metavar="A", help="only these")
    return run(BENCHMARK, parser, simulate, arguments)


if __name__ == "__main__":
    sys.exit(main())
