"""`python -m benchmarks.pairs --base COMMIT`: epochs of this checkout and of another, interleaved.

Both must deliver the same rows. Rounds are added until the bounds of every ratio of speeds are
narrow enough.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.dataloading.workloads import LEVELS
from benchmarks.harness import children
from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run, split
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import Arm, Rounds, Sample, check_agreement, measure
from benchmarks.pairs import cells, child
from pipeline_runtime.allocator import keep_freed_memory

DEFAULT_ROWS: Final = 3_000_000
# Some processes are a few percent slower than others of the same code, by where their memory lies.
# So an arm has several of them, one after another.
ROUNDS_OF_A_PROCESS: Final = 5
# Names of the loaders in `benchmarks.dataloading.peers`.
LOADERS: Final = {"feed": "lastmile", "loader": "loader"}
SPEED = "rowsPerSecond"

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
        Metric(name="peakBytes", label="peak memory, MiB", scale=2**-20, is_drawn=False),
    ),
    targets=(
        Target(text="speed, at least 0.97", metric=SPEED, at_least=0.97),
        Target(text="memory, at most 1.03", metric="peakBytes", at_most=1.03, by_bound=False),
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
        found = Path(process.hello["checkout"])
        assert found == self.folder, f"{self.name} must run {self.folder}, but imported {found}"
        return process

    def ask(self, process: children.Child, cell: cells.Cell, consumer: str) -> Any:
        """Measure an epoch. Raises BenchmarkError if it fails."""
        loader = LOADERS[self.name if self.name in LOADERS else "feed"]
        return process.ask({"loader": loader, "workload": cell.workload, "consumer": consumer})


class Pair:
    """The sides of a cell, each with a process that is renewed from time to time."""

    def __init__(self, cell: cells.Cell, sides: list[Side], stack: ExitStack) -> None:
        self.cell = cell
        self.sides = sides
        self._stack = stack
        self._alive: dict[str, children.Child] = {}

    def renew(self, index: int) -> None:
        """Start new processes every few rounds, and check that they deliver the same values.

        That also loads kernels and fills the page cache.
        """
        if index % ROUNDS_OF_A_PROCESS:
            return
        self._stack.close()
        self._alive = {side.name: self._stack.enter_context(side.open()) for side in self.sides}
        proofs = {s.name: s.ask(self._alive[s.name], self.cell, "prove") for s in self.sides}
        check_agreement(self.cell.name, {name: proof["sums"] for name, proof in proofs.items()})

    def arm(self, side: Side) -> Arm:
        """Return an epoch in the process that stays."""

        def epoch() -> Sample:
            found = side.ask(self._alive[side.name], self.cell, "take")
            values = {name: v for name, v in found["values"].items() if name != "peakBytes"}
            return Sample(values, found["sums"])

        return epoch

    def fresh_arm(self, side: Side) -> Arm:
        """Return an epoch in a new process, for its memory."""

        def epoch() -> Sample:
            with side.open() as process:
                found = side.ask(process, self.cell, "take")
            return Sample({"peakBytes": found["values"]["peakBytes"]}, found["sums"])

        return epoch


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all cells; there is one for each base."""
    with ExitStack() as stack:
        names = [options.subject, *options.base]
        sides = [
            Side(n, children.ROOT if n in LOADERS else stack.enter_context(children.checkout(n)))
            for n in names
        ]
        for side in sides:
            side.compile_kernels()
        for cell in cells.build_cells(options.cells, options.data, options.rows, options.work):
            yield from compare_sides(cell, sides, options, stack.enter_context(ExitStack()))


def compare_sides(
    cell: cells.Cell, sides: list[Side], options: argparse.Namespace, stack: ExitStack
) -> Iterator[Cell]:
    """Measure one cell: memory first, then speed."""
    pair = Pair(cell, sides, stack)
    subject, *bases = (side.name for side in sides)

    def is_enough(found: Cell) -> bool:
        ratios = (found.ratio(subject, SPEED, base) for base in bases)
        return all(ratio is not None and ratio.width < options.width for ratio in ratios)

    rounds = Rounds(
        count=options.rounds,
        max_count=options.max_rounds,
        warmups=0,
        is_enough=is_enough,
        before=pair.renew,
    )
    fresh = measure(
        f"{cell.name}, fresh processes",
        {side.name: pair.fresh_arm(side) for side in sides},
        Rounds(count=options.fresh_rounds, warmups=0),
    )
    found = measure(cell.name, {side.name: pair.arm(side) for side in sides}, rounds)
    stack.close()
    for base in bases:
        arms = {name: found.arms[name] | fresh.arms[name] for name in (base, subject)}
        yield Cell(name=cell.name, base=base, arms=arms, facts=found.facts)


def parse() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = build_parser("pairs", __doc__, rows=DEFAULT_ROWS, rounds=7)
    add = parser.add_argument
    add("--subject", choices=LOADERS, default="feed", help="of this checkout; feed: that of a run")
    add("--base", type=split, required=True, metavar="A,B,…", help="feed, loader, or commits")
    add("--cells", choices=cells.KINDS, default=cells.KINDS[0])
    add("--work", type=split, default=("none", "heavy"), help=f"of {', '.join(LEVELS)}")
    add("--width", type=float, default=0.03, help="rounds are added until bounds are this narrow")
    add("--max-rounds", type=int, default=60)
    add("--fresh-rounds", type=int, default=3, help="fresh processes, for the peak memory")
    return parser


if __name__ == "__main__":
    sys.exit(run(BENCHMARK, parse(), compare, fails_if_missed=True))
