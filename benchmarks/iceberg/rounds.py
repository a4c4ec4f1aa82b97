"""Lets the programs take turns, each in a process of its own, and checks that their rows agree."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.measuring.checksums import check_agreement
from benchmarks.dataloading.measuring.piped import Process
from benchmarks.iceberg.child import Epoch
from benchmarks.iceberg.lakes import Lake
from benchmarks.iceberg.targets import Program, Target
from benchmarks.turns import in_turn

_IDENTITIES = ("rows", "identities", "identities squared")


class NotRunError(Exception):
    """A program cannot run here: its package is missing, or this version has no such step."""


class Runs(Protocol):
    """Measures epochs: `Processes`, or a stand-in."""

    def run(self, program: Program, lake: Lake, *, proves: bool, is_fresh: bool) -> Epoch:
        """Measure an epoch. Raises NotRunError if the program cannot run here."""
        ...


class Processes:
    """A process for each program; use it as a context.

    Args:
        small: tables for the first epoch of a fresh process, which loads libraries.
    """

    def __init__(self, small: Lake) -> None:
        self._small = small
        self._stack = ExitStack()
        self._alive: dict[Program, Process] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, program: Program, lake: Lake, *, proves: bool, is_fresh: bool) -> Epoch:
        """See Runs."""
        if is_fresh:
            with _start(program) as process:
                _ask(process, self._small, proves=False)
                return _ask(process, lake, proves=proves)
        if program not in self._alive:
            self._alive[program] = self._stack.enter_context(_start(program))
        return _ask(self._alive[program], lake, proves=proves)


def _start(program: Program) -> Process:
    target = ("benchmarks.iceberg.child", "serve")
    return Process(program.name, target, program.opens, program.needs_ray)


def _ask(process: Process, lake: Lake, *, proves: bool) -> Epoch:
    process.send((lake, proves))
    found = process.receive()
    if isinstance(found, str):
        raise NotRunError(f"not installed: {found}")
    epoch: Epoch = found
    return epoch


@dataclass(slots=True, kw_only=True)
class Found:
    """The measurements: epochs by target's lake and program, and why programs did not run."""

    epochs: dict[tuple[bool, Program], list[Epoch]] = field(
        default_factory=lambda: defaultdict(list)
    )
    proofs: dict[tuple[bool, Program], Epoch] = field(default_factory=dict)
    not_run: dict[Program, str] = field(default_factory=dict)


def measure(
    targets: Sequence[Target], lakes: Mapping[bool, Lake], runs: Runs, rounds: int
) -> Found:
    """Measure all programs of the targets.

    Args:
        lakes: the tables with large files (True), and the others.

    Raises DisagreementError if two programs of a target deliver different rows.
    """
    found = Found()
    for is_large in (False, True):
        chosen = [target for target in targets if target.is_large == is_large]
        programs = list(dict.fromkeys(p for t in chosen for p in (t.subject, t.peer)))
        for program in programs:
            _prove(found, program, lakes[is_large], runs, is_large=is_large)
        for target in chosen:
            _check(found, target)
        running = [program for program in programs if program not in found.not_run]
        for index in range(rounds):
            for program in in_turn(running, index) if running else ():
                epoch = runs.run(program, lakes[is_large], proves=False, is_fresh=is_large)
                found.epochs[is_large, program].append(epoch)
                print(f"round {index + 1}: {program.name}: {epoch.seconds:.2f} s", file=sys.stderr)
    return found


def _prove(found: Found, program: Program, lake: Lake, runs: Runs, *, is_large: bool) -> None:
    """Run an epoch that reads every value; it warms caches besides."""
    try:
        epoch = runs.run(program, lake, proves=True, is_fresh=is_large)
    except (BenchmarkError, NotRunError) as error:
        found.not_run[program] = str(error).strip().splitlines()[-1]
        print(f"{program.name} does not run: {error}", file=sys.stderr)
        return
    found.proofs[is_large, program] = epoch


def _check(found: Found, target: Target) -> None:
    proofs = {
        program.name: found.proofs[target.is_large, program].sums
        for program in (target.subject, target.peer)
        if (target.is_large, program) in found.proofs
    }
    if not target.is_equal:
        proofs = {name: {key: sums[key] for key in _IDENTITIES} for name, sums in proofs.items()}
    if len(proofs) == 2:
        check_agreement(target.subject.name, proofs)
