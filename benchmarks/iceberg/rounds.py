"""Lets the arms take turns, each in a process of its own, and checks that their rows agree."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.measuring.checksums import check_agreement
from benchmarks.dataloading.measuring.piped import Process
from benchmarks.iceberg.lakes import Lake
from benchmarks.iceberg.programs import SPEED, Arm, Epoch, Measure, Program
from benchmarks.iceberg.results import build_row
from benchmarks.records import Document
from benchmarks.turns import in_turn

_IDENTITIES = ("rows", "identities", "identities squared")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two arms.

    Attributes:
        at_least, at_most: target of the measure, by its lower or upper bound; with neither, the
            peer is there for comparison only.
        equal: the arms must deliver equal values of every column, or the same rows, which may have
            more columns, or are on different tables.
    """

    subject: Arm
    peer: Arm
    measure: Measure = SPEED
    at_least: float | None = None
    at_most: float | None = None
    equal: Literal["values", "rows", "none"] = "values"

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """Both arms."""
        return self.subject, self.peer


class Runs(Protocol):
    """Measures epochs: `Processes`, or a stand-in."""

    def run(self, arm: Arm, *, proves: bool) -> Epoch:
        """Measure an epoch. Raises BenchmarkError if the program fails."""
        ...


class Processes:
    """A process for each program; use it as a context.

    Args:
        warm_up: tables for the first epoch of a fresh process, which loads libraries.
        is_fresh: measure each epoch in a process of its own.
    """

    def __init__(self, warm_up: Lake, *, is_fresh: bool) -> None:
        self._warm_up = warm_up
        self._is_fresh = is_fresh
        self._stack = ExitStack()
        self._alive: dict[Program, Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, arm: Arm, *, proves: bool) -> Epoch:
        """See Runs."""
        program = arm.program
        if self._is_fresh:
            with _start(program) as process:
                _ask(process, self._warm_up, proves=False)
                return _ask(process, arm.lake, proves=proves)
        if program not in self._alive:
            self._alive[program] = self._stack.enter_context(_start(program))
        return _ask(self._alive[program], arm.lake, proves=proves)


def _start(program: Program) -> Process:
    return Process(program.name, ("benchmarks.iceberg.child", "serve"), program)


def _ask(process: Process, lake: Lake, *, proves: bool) -> Epoch:
    process.send((lake, proves))
    epoch: Epoch = process.receive()
    return epoch


def compare(
    comparisons: Sequence[Comparison], warm_up: Lake, rounds: int, *, is_fresh: bool
) -> list[Document]:
    """Measure all arms in processes; see `measure`."""
    with Processes(warm_up, is_fresh=is_fresh) as runs:
        return measure(comparisons, runs, rounds)


def measure(comparisons: Sequence[Comparison], runs: Runs, rounds: int) -> list[Document]:
    """Let the arms take turns, and return a row for each comparison.

    An arm whose program does not run here is left out, and its rows say why.

    Raises DisagreementError if two arms of a comparison deliver different rows.
    """
    arms = list(dict.fromkeys(arm for comparison in comparisons for arm in comparison.arms))
    proofs: dict[Arm, Epoch] = {}
    failed: dict[Arm, str] = {}
    for arm in arms:
        try:
            proofs[arm] = runs.run(arm, proves=True)  # warms caches besides
            if arm.program.proves:
                runs.run(arm, proves=False)  # which is other work than the proof
        except BenchmarkError as error:
            failed[arm] = str(error).strip().splitlines()[-1]
            print(f"{arm.program.name} does not run: {error}", file=sys.stderr)
    for comparison in comparisons:
        _check(comparison, proofs)
    epochs: defaultdict[Arm, list[Epoch]] = defaultdict(list)
    for index in range(rounds):
        for arm in in_turn(list(proofs), index) if proofs else ():
            epoch = runs.run(arm, proves=False)
            epochs[arm].append(epoch)
            print(f"round {index + 1}: {arm.program.name}: {epoch.seconds:.2f} s", file=sys.stderr)
    return [_build_row(comparison, epochs, failed) for comparison in comparisons]


def _check(comparison: Comparison, proofs: dict[Arm, Epoch]) -> None:
    found = {arm.program.name: proofs[arm].sums for arm in comparison.arms if arm in proofs}
    if comparison.equal == "rows":
        found = {name: {key: sums[key] for key in _IDENTITIES} for name, sums in found.items()}
    if comparison.equal != "none" and len(found) == 2:
        check_agreement(comparison.subject.program.name, found)


def _build_row(
    comparison: Comparison, epochs: dict[Arm, list[Epoch]], failed: dict[Arm, str]
) -> Document:
    subject, peer = comparison.arms
    mine, others = epochs[subject], epochs[peer]
    times = subject.lake.rows / peer.lake.rows
    of = comparison.measure.of
    return build_row(
        subject=subject.program.name + (f", {times:g} × the rows" if times != 1 else ""),
        peer=peer.program.name if subject.program != peer.program else "1 × the rows",
        measure=comparison.measure.name,
        values=[of(a, b, subject.lake) for a, b in zip(mine, others, strict=False)],
        at_least=comparison.at_least,
        at_most=comparison.at_most,
        not_run="; ".join(f"{a.program.name}: {failed[a]}" for a in comparison.arms if a in failed),
        epochs={"subject": mine, "peer": others},
    )
