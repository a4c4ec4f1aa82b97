"""`python -m benchmarks.pairs --base COMMIT`: epochs of this checkout and of another, interleaved.

Both must deliver the same rows. Flat files have expanded batches, nested ones deduplicated batches.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.dataloading import child
from benchmarks.dataloading.jobs import PROVE, TAKE
from benchmarks.dataloading.peers import LOADER, SUBJECT
from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import LEVELS
from benchmarks.harness import children
from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run, split
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import Rounds, Sample, check_agreement, measure
from pipeline_runtime.allocator import keep_freed_memory

# Some processes are a few percent slower than others of the same code, by where their memory lies.
# So an arm has several of them, one after another.
ROUNDS_OF_A_PROCESS: Final = 5
LOADERS: Final = {"feed": SUBJECT, "loader": LOADER}
# The form of batches for each layout.
FORMS: Final = {"flat": "expanded", "nested": "deduplicated"}
SPEED, MEMORY = "rowsPerSecond", "peakBytes"

BENCHMARK = Benchmark(
    name="pairs",
    module="pairs",
    title="Lastmile against itself",
    text="The arms of a cell delivered the same rows, by checksums of every column. The speed is "
    "that of the middle 80 % of the rows; the memory is the peak of fresh processes.",
    metrics=(
        Metric(name=SPEED, label="thousand rows/s", scale=1e-3),
        Metric(name="epochRowsPerSecond", label="in the whole epoch", scale=1e-3, is_drawn=False),
        Metric(name="cpuSeconds", label="core seconds", is_drawn=False),
        Metric(name=MEMORY, label="peak memory, MiB", scale=2**-20, is_drawn=False),
    ),
    targets=(
        Target(text="speed, at least 0.97", metric=SPEED, at_least=0.97),
        Target(text="memory, at most 1.03", metric=MEMORY, at_most=1.03, by_bound=False),
    ),
)


@dataclass(frozen=True, slots=True)
class Side:
    """A checkout and a loader that are compared: `feed`, `loader`, or the feed of a commit."""

    name: str
    folder: Path

    def compile_kernels(self) -> None:
        """Compile the kernels into numba's cache, which each checkout has for itself."""
        command = [sys.executable, "-P", "-m", "pipeline_runtime.kernels"]
        subprocess.run(command, env=children.environment_of(self.folder), check=True)

    def open(self) -> children.Child:
        """Start a process that measures epochs."""
        environment = children.environment_of(self.folder) | keep_freed_memory()
        process = children.Child(self.name, [child.__file__], environment)
        found = Path(process.hello)
        assert found == self.folder, f"{self.name} must run {self.folder}, but imported {found}"
        return process


class Pair:
    """The sides of a cell, each with a process that is renewed from time to time."""

    def __init__(self, workload: dict[str, Any], sides: list[Side], stack: ExitStack) -> None:
        self.peaks: dict[str, list[float]] = {side.name: [] for side in sides}
        self._workload = workload
        self._sides = sides
        self._stack = stack
        self._alive: dict[str, children.Child] = {}

    def renew(self, index: int) -> None:
        """Start new processes every few rounds, and check that they deliver the same values.

        That also loads kernels and fills the page cache.
        """
        if index % ROUNDS_OF_A_PROCESS:
            return
        self._stack.close()
        proofs = {}
        for side in self._sides:
            self._alive[side.name] = self._stack.enter_context(side.open())
            self.peaks[side.name].append(self._ask(side.name, TAKE)["peakBytes"])
            proofs[side.name] = self._ask(side.name, PROVE)["sums"]
        check_agreement("values of all columns", proofs)

    def sample(self, name: str) -> Sample:
        """Measure an epoch of a side."""
        epoch = self._ask(name, TAKE)
        values = {
            SPEED: 1 / epoch["steadySecondsPerRow"],
            "epochRowsPerSecond": epoch["sums"]["rows"] / epoch["seconds"],
            "cpuSeconds": epoch["cpuSeconds"],
        }
        return Sample(values, epoch["sums"])

    def _ask(self, name: str, consumer: str) -> Any:
        loader = LOADERS.get(name, SUBJECT)
        request = {"loader": loader, "workload": self._workload, "consumer": consumer}
        return self._alive[name].ask(request)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all cells; there is one for each base."""
    table = make_table(options.data.absolute(), options.rows, tuple(FORMS))
    names = [options.subject, *options.base]
    with ExitStack() as stack:
        folders = {n: stack.enter_context(children.checkout(n)) for n in names if n not in LOADERS}
        sides = [Side(name, folders.get(name, children.ROOT)) for name in names]
        for side in sides:
            side.compile_kernels()
        for level in LEVELS:
            for layout, form in FORMS.items():
                root = table.roots[layout]
                workload = {"level": level, "root": root, "layout": layout, "form": form}
                yield from compare_sides(f"{level}, {layout}", workload, sides, options.rounds)


def compare_sides(
    cell: str, workload: dict[str, Any], sides: list[Side], num_rounds: int
) -> Iterator[Cell]:
    """Measure the speed of all sides in a cell, and the memory of their new processes."""
    subject, *bases = (side.name for side in sides)
    with ExitStack() as stack:
        pair = Pair(workload, sides, stack)
        arms = {side.name: partial(pair.sample, side.name) for side in sides}
        found = measure(cell, arms, Rounds(count=num_rounds, warmups=0, before=pair.renew))
    for base in bases:
        chosen = {name: found.arms[name] | {MEMORY: pair.peaks[name]} for name in (base, subject)}
        yield Cell(name=cell, base=base, arms=chosen, facts=found.facts)


if __name__ == "__main__":
    parser = build_parser("pairs", __doc__, rows=3_000_000, rounds=20)
    add = parser.add_argument
    add("--subject", choices=LOADERS, default="feed", help="of this checkout; feed: that of a run")
    add("--base", type=split, required=True, metavar="A,B,…", help="feed, loader, or commits")
    sys.exit(run(BENCHMARK, parser, compare, fails_if_missed=True))
