"""`python -m benchmarks.operator`: the operator under load, against a bare client."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.harness.cells import Cell, Values
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.operator import arms
from benchmarks.operator.arms import PASS_TIMES, Found

ARMS: Final = ("bare", "operator", "forgetful", "asleep", "silent")
BARE, OPERATOR, FORGETFUL = "bare client", "operator", "operator that remembers nothing"
_MIN_DUE: Final = 0.9  # share of due passes that ran; below it the operator does not keep up


def _metric(name: str, label: str, *, is_drawn: bool = False) -> Metric:
    return Metric(name=name, label=label, is_compared=False, is_drawn=is_drawn)


BENCHMARK = Benchmark(
    name="operator",
    module="operator",
    title="The operator under load",
    text="API server, etcd, scheduler, KubeRay, kwok's pods and the operator share this machine, "
    "so ratios and counts apply elsewhere too, and seconds do not. Both arms created the same "
    "clusters, by a digest of their specs. How to read it: "
    "[docs/operating/scaling.md](../../docs/operating/scaling.md).",
    metrics=(
        Metric(name="steadySeconds", label="seconds until all train"),
        _metric("cores", "cores", is_drawn=True),
        _metric("rssMiB", "MiB", is_drawn=True),
        _metric("requestsPerSecond", "requests/s"),
        _metric("requestsPerExperiment", "requests per experiment"),
        _metric("writes", "writes"),
        *(
            _metric(f"{name}P{percent}", f"{label}, p{percent}")
            for name, label in zip(
                PASS_TIMES, ("pass, ms", "without the API server", "nor Ray"), strict=True
            )
            for percent in (50, 99)
        ),
        _metric("editP50", "edit, s, p50"),
        _metric("editP99", "edit, s, p99"),
        _metric("kibPerExperiment", "KiB per experiment"),
    ),
    targets=(
        Target(
            text="time until all train over a bare client's, at most 3",
            metric="steadySeconds",
            arms=(OPERATOR,),
            at_most=3.0,
            by_bound=False,
        ),
        *(
            Target(text=text, metric=metric, at_most=at_most, of_ratio=False, by_bound=False)
            for text, metric, at_most in (
                ("KiB per experiment that trains, at most 100", "kibPerExperiment", 100.0),
                ("writes for suspended experiments, none", "suspendedWrites", 0.0),
                ("edit while another tenant's heads are silent, at most 5 s", "besideSilent", 5.0),
            )
        ),
    ),
    arm_label="client",
    x_label="experiments",
    fact_labels={"mostOpen": "connections to silent heads"},
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Run the chosen arms, the short ones first."""
    largest = max([options.size, *options.sizes])
    operate = partial(arms.operator, hold=options.hold, minutes=options.minutes)
    trained: dict[int, Values] = {}
    if "forgetful" in options.arms:
        found = asyncio.run(operate(options.size, changing=0, remembers=False))
        yield from describe(options.size, FORGETFUL, found)
    for size in sorted({options.size, *options.sizes}) if "operator" in options.arms else ():
        kept: list[Found] = []
        act = partial(operate, size, changing=options.changing if size == largest else 0)
        ways = {BARE: partial(arms.bare, size)} if "bare" in options.arms else {}
        count = options.rounds if size == options.size else 1
        yield measure(
            f"{size} experiments, from nothing",
            {name: partial(run_arm, way, []) for name, way in ways.items()}
            | {OPERATOR: partial(run_arm, act, kept)},
            Rounds(count=count, warmups=0),
            x=size,
        )
        middle = sorted(kept, key=lambda one: one.seconds)[(len(kept) - 1) // 2]
        trained[size] = middle.windows["all train"]
        yield from describe(size, OPERATOR, middle)
    if len(trained) > 1:
        yield Cell(name="growth", base="", arms={OPERATOR: fit(trained)})
    if "asleep" in options.arms:
        found = asyncio.run(arms.asleep(largest, hold=options.hold))
        found.windows["suspended"]["suspendedWrites"] = found.windows["suspended"]["writes"]
        yield from describe(largest, OPERATOR, found)
    if "silent" in options.arms and options.silent:
        found = asyncio.run(arms.silent(options.silent))
        found.windows["silent heads"]["besideSilent"] = found.edits
        yield from describe(options.silent, OPERATOR, found)


def run_arm(work: Callable[[], Coroutine[Any, Any, Found]], kept: list[Found]) -> Sample:
    """Run an arm, and keep what it found."""
    found = asyncio.run(work())
    kept.append(found)
    return Sample({"steadySeconds": found.seconds}, found.digest)


def describe(size: int, arm: str, found: Found) -> Iterator[Cell]:
    """Yield a cell for each period in which an operator was measured."""
    for period, values in found.windows.items():
        edits: Values = {}
        if period in ("some change", "silent heads"):
            edits = {f"editP{p}": [float(np.quantile(found.edits, p / 100))] for p in (50, 99)}
        facts = {"edits": len(found.edits)} if edits else {}
        yield Cell(
            name=f"{size} experiments, {period}",
            base="",
            arms={arm: values | edits},
            x=size if period == "all train" and arm == OPERATOR else None,
            facts=facts | ({"mostOpen": found.most_open} if found.most_open else {}),
        )


def fit(trained: dict[int, Values]) -> Values:
    """Return slopes by least squares over the sizes.

    Cores and requests count only where the operator keeps up. On a busy machine it does less than
    it should, and the line would be too flat.
    """

    def slope(metric: str, sizes: list[int]) -> float:
        return float(np.polyfit(sizes, [trained[size][metric][0] for size in sizes], 1)[0])

    slopes = {"kibPerExperiment": [2**10 * slope("rssMiB", sorted(trained))]}
    abreast = [s for s in sorted(trained) if trained[s].get("duePasses", [0.0])[0] >= _MIN_DUE]
    if len(abreast) > 1:
        slopes["coresPerThousand"] = [1000 * slope("cores", abreast)]
        slopes["requestsPerSecondPerThousand"] = [1000 * slope("requestsPerSecond", abreast)]
    return slopes


def parse() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = build_parser("operator", __doc__, rounds=5)
    add = parser.add_argument
    add("--size", type=int, default=100, metavar="N", help="experiments in each round")
    add("--sizes", type=int, nargs="*", default=[500, 1000], metavar="N", help="sizes to run once")
    add("--changing", type=int, default=200, metavar="N", help="changing ones in the largest run")
    add("--minutes", type=float, default=10.0, metavar="X", help="duration of the changes")
    add("--hold", type=float, default=60.0, metavar="X", help="seconds to measure while all train")
    add("--silent", type=int, default=400, metavar="N", help="heads of one tenant that hang; or 0")
    add("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="arms to run: all by default")
    return parser


if __name__ == "__main__":
    sys.exit(run(BENCHMARK, parse(), compare))
