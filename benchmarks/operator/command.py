"""The benchmark's command line: runs the arms in turn, keeps a journal, writes the results."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import records
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.harness.machine import describe_commit, load_average
from benchmarks.operator import arms
from benchmarks.operator.figure import draw
from benchmarks.operator.report import build_markdown
from benchmarks.operator.results import Document, build_results

NAME: Final = "operator"
_JOURNAL: Final = "operator.jsonl"
ARMS: Final = ("bare", "operator", "forgetful", "asleep", "silent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One arm on a control plane of its own.

    Attributes:
        arm: one of `ARMS`; `forgetful` is an operator that remembers nothing.
        size: experiments.
        round: arms of one round take turns.
    """

    arm: str
    size: int
    round: int

    @property
    def key(self) -> Document:
        """The fields that identify the run in a journal."""
        return {"arm": self.arm, "size": self.size, "round": self.round}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a run fails. Earlier runs are in the journal."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_options(arguments)
    beginning = records.Beginning()
    try:
        runs = asyncio.run(measure(options))
        results = build_results(runs, beginning.describe(NAME, arguments))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    records.print_results(NAME, results, options.output, build_markdown, draw)
    return 0


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with an error if it is wrong."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description="Get many experiments to train, with the operator and with a bare client.",
    )
    add = parser.add_argument
    add("--size", type=int, default=100, metavar="N", help="experiments in each round")
    add("--rounds", type=int, default=5, metavar="N", help="rounds of bare client and operator")
    add("--sizes", type=int, nargs="*", default=[500, 1000], metavar="N", help="sizes to run once")
    add("--changing", type=int, default=200, metavar="N", help="changing ones in the largest run")
    add("--minutes", type=float, default=10.0, metavar="X", help="duration of the changes")
    add("--hold", type=float, default=60.0, metavar="X", help="seconds to measure while all train")
    add("--silent", type=int, default=400, metavar="N", help="heads of one tenant that hang; or 0")
    add("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="arms to run: all by default")
    add("--journal", type=Path, default=Path("build"), metavar="DIR", help="skip the runs in it")
    add("--output", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    options = parser.parse_args(arguments)
    for name, least in (("size", 1), ("rounds", 1), ("silent", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: must be {least} or more, got {getattr(options, name)}")
    if any(size < 1 for size in options.sizes):
        parser.error(f"--sizes: must be 1 or more, got {options.sizes}")
    if options.hold < arms.SETTLE_SECONDS:
        parser.error(f"--hold: must be {arms.SETTLE_SECONDS:g} or more, got {options.hold}")
    return options


def plan_runs(options: argparse.Namespace) -> Iterator[Run]:
    """Yield the runs of the chosen arms, the short ones first."""
    return (run for run in _plan_all(options) if run.arm in options.arms)


def _plan_all(options: argparse.Namespace) -> Iterator[Run]:
    largest = max([options.size, *options.sizes])
    yield Run(arm="forgetful", size=options.size, round=1)
    for number in range(1, options.rounds + 1):
        for arm in _turn(number):
            yield Run(arm=arm, size=options.size, round=number)
    yield Run(arm="asleep", size=largest, round=1)
    if options.silent:
        yield Run(arm="silent", size=options.silent, round=1)
    for number, size in enumerate(sorted(set(options.sizes) - {options.size}), start=1):
        for arm in _turn(number):
            yield Run(arm=arm, size=size, round=1)


def _turn(number: int) -> tuple[str, str]:
    """Return the order of a round; it alternates, so that neither arm always runs second."""
    return ("bare", "operator") if number % 2 else ("operator", "bare")


async def measure(options: argparse.Namespace) -> list[Document]:
    """Return all runs: those in the journal as they are, the others measured now."""
    journal = options.journal / _JOURNAL
    journal.parent.mkdir(parents=True, exist_ok=True)
    known = _read(journal)
    runs = []
    for run in plan_runs(options):
        found = next((each for each in known if run.key.items() <= each.items()), None)
        if found is None:
            print(f"{run.arm}, {run.size} experiments, round {run.round}", flush=True)
            about = {"commit": describe_commit(), "loadAverage": load_average()}
            found = run.key | about | await _perform(run, options)
            with journal.open("a") as stream:
                stream.write(json.dumps(found) + "\n")
        runs.append(found)
    return runs


def _read(journal: Path) -> list[Document]:
    if not journal.exists():
        return []
    return [json.loads(line) for line in journal.read_text().splitlines()]


async def _perform(run: Run, options: argparse.Namespace) -> Document:
    if run.arm == "bare":
        return await arms.bare(run.size)
    if run.arm == "silent":
        return await arms.silent(run.size)
    if run.arm == "asleep":
        return await arms.asleep(run.size, hold=options.hold)
    is_largest = run.size == max([options.size, *options.sizes])
    return await arms.operator(
        run.size,
        hold=options.hold,
        changing=options.changing if is_largest else 0,
        minutes=options.minutes,
        remembers=run.arm == "operator",
    )
