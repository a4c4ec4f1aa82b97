"""Simulate autoscaling policies in every scenario: `make bench-autoscaling`.

Each round is a seed, which gives every policy the same noise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from benchmarks.autoscaling.judging import (
    NUM_GPUS,
    PRICE,
    PRICES,
    collect,
    describe_limits,
    find_misses,
    judge,
    sum_up,
    sum_up_limits,
)
from benchmarks.autoscaling.policies import OURS, POLICIES, RIVALS
from benchmarks.autoscaling.scenarios import SCENARIOS
from benchmarks.autoscaling.simulations import Found, open_pool, simulate_scenario
from benchmarks.harness.cells import Cell, Document
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.program import build_parser, run, split
from benchmarks.harness.report import Benchmark, Metric, Target

ROUNDS = 20
ALL_CELLS = {price: f"all, GPU at {price} workers" for price in PRICES}


def find_doubts(results: Document) -> list[str]:
    """Return why results are indicative."""
    settings = results["settings"]
    reasons = {
        f"fewer than {ROUNDS} seeds": settings["rounds"] < ROUNDS,
        "not all scenarios": "scenarios" in settings,
    }
    return [reason for reason, holds in reasons.items() if holds]


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
    """Simulate the scenarios; yield the cells of all together, and of each."""
    names = options.scenarios or [scenario.name for scenario in SCENARIOS]
    chosen = [scenario for scenario in SCENARIOS if scenario.name in names]
    if unknown := set(names) - {scenario.name for scenario in chosen}:
        known = ", ".join(scenario.name for scenario in SCENARIOS)
        raise BenchmarkError(f"--scenarios: must be of {known}; got {', '.join(unknown)}")
    found: dict[str, list[Found]] = {}
    with open_pool() as pool:
        for scenario in chosen:
            seeds = range(1, options.rounds + 1)
            found[scenario.name] = simulate_scenario(pool, scenario, seeds)
            done = f"{len(found)} of {len(chosen)} scenarios"
            print(f"{scenario.name}: {done}", file=sys.stderr, flush=True)
    together = [cell for mine in found.values() for cell in mine]
    figures = {
        scenario.name: collect([judge(cell, scenario) for cell in found[scenario.name]])
        for scenario in chosen
    }
    for price, name in ALL_CELLS.items():
        cell = Cell(name=name, base=OURS, arms={p: sum_up(together, p, price) for p in POLICIES})
        if price == PRICE:
            cell.facts["limits"] = sum_up_limits(figures)
        else:  # only the cost depends on the price
            cell.arms = {policy: {"cost": values["cost"]} for policy, values in cell.arms.items()}
        yield cell
    for name, mine in found.items():
        arms = {OURS: {"cost": sum_up(mine, OURS, PRICE)["cost"]}}
        yield Cell(name=name, base=OURS, arms=arms, facts={"missed": find_misses(figures[name])})


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = build_parser("autoscaling", __doc__, rounds=ROUNDS)
    parser.add_argument("--scenarios", type=split, metavar="A,B,…", help="only these")
    return run(BENCHMARK, parser, simulate, arguments)


if __name__ == "__main__":
    sys.exit(main())
