"""The comparison of two programs, each in a process of its own, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks.harness.cells import Cell
from benchmarks.harness.children import Child
from benchmarks.harness.rounds import Rounds, Sample, check_agreement, measure
from benchmarks.iceberg.lakes import Lake

RATE = "rowsPerSecond"


class Program(NamedTuple):
    """A program that brings rows into memory, or writes them.

    Attributes:
        opens: `module:function` of this package, which takes a Lake and yields the rows. One that
            writes the rows, or drops them where they are, takes `proves` too, and yields them only
            as a proof.
    """

    name: str
    opens: str

    def open(self) -> Child:
        """Start a process that runs epochs."""
        return Child(self.name, ["-m", "benchmarks.iceberg.child", self.opens])


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison of two programs on one lake.

    Attributes:
        cell: its name.
        adds_columns: the subject has more columns than the peer; the others must be equal.
        of_memory: each epoch is in a new process, so that its peak means something.
    """

    cell: str
    subject: Program
    peer: Program
    adds_columns: bool = False
    of_memory: bool = False


# Runs an epoch of a program; the second argument says whether it sums up a hash of every value.
Ask = Callable[[Program, bool], Any]


@contextmanager
def open_programs(comparison: Comparison, lake: Lake, warm_up: Lake) -> Iterator[Ask]:
    """Start the processes of both programs.

    Args:
        warm_up: tables for the first epoch of a fresh process, which loads libraries.
    """

    def run(child: Child, tables: Lake, proves: bool) -> Any:
        return child.ask({"folder": str(tables.folder), "rows": tables.rows, "proves": proves})

    def ask_anew(program: Program, proves: bool) -> Any:
        with program.open() as child:
            run(child, warm_up, False)
            return run(child, lake, proves)

    if comparison.of_memory:
        yield ask_anew
        return
    with ExitStack() as stack:
        both = (comparison.peer, comparison.subject)
        alive = {program: stack.enter_context(program.open()) for program in both}
        yield lambda program, proves: run(alive[program], lake, proves)


def compare(comparison: Comparison, ask: Ask, rounds: int) -> Cell:
    """Measure both programs after an epoch of each that proves their rows.

    Raises:
        DisagreementError: they deliver different rows.
        BenchmarkError: one of them does not run here.
    """
    both = (comparison.peer, comparison.subject)
    proofs = {program.name: ask(program, True)["sums"] for program in both}
    if comparison.adds_columns:
        known = proofs[comparison.peer.name].keys()
        proofs = {name: {key: sums[key] for key in known} for name, sums in proofs.items()}
    check_agreement(comparison.cell, proofs)

    def run(program: Program) -> Sample:
        values = ask(program, False)["values"]
        return Sample(values if comparison.of_memory else {RATE: values[RATE]})

    arms = {program.name: partial(run, program) for program in both}
    return measure(comparison.cell, arms, Rounds(count=rounds, warmups=0))
