"""The arms of a comparison: a checkout and a loader each, and the processes that measure them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.checkouts import ROOT, checkout
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.measuring.checksums import Sums
from benchmarks.pairs import child
from benchmarks.pairs.cells import Cell
from pipeline_runtime.allocator import keep_freed_memory

FEED, LOADER = "feed", "loader"
# Names of the loaders in `benchmarks.dataloading.peers`.
_LOADERS = {FEED: "lastmile", LOADER: "loader"}
_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison."""

    name: str
    checkout: Path
    loader: str = FEED

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that runs the code of the checkout."""
        path = os.pathsep.join([str(self.checkout), str(self.checkout / "operator")])
        return {**os.environ, **keep_freed_memory(), "PYTHONPATH": path}

    def compile_kernels(self) -> None:
        """Compile the kernels into numba's cache, which the checkout has for itself."""
        command = [sys.executable, "-P", "-m", "pipeline_runtime.kernels"]
        subprocess.run(command, env=self.environment, check=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One epoch."""

    seconds: float
    steady_seconds_a_row: float
    cpu_seconds: float
    sums: Sums
    peak_bytes: int


class Process:
    """A process of an arm; use it as a context."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self._process = subprocess.Popen(
            [sys.executable, "-P", child.__file__],
            env=arm.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        found = Path(self._receive()["checkout"])
        assert found == arm.checkout, f"{arm.name} must run {arm.checkout}, but imported {found}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # the process takes it as the end
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def run(self, cell: Cell, consumer: str) -> Measured:
        """Measure an epoch. Raises BenchmarkError if it fails."""
        asked = {
            "loader": _LOADERS[self._arm.loader],
            "workload": cell.workload,
            "consumer": consumer,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Measured(**self._receive())

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            raise BenchmarkError(f"{self._arm.name}: an epoch failed:\n{answer['error']}")
        return answer


class Processes:
    """A process of each arm that stays; and fresh ones, for their memory."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._alive: dict[Arm, Process] = {}

    def run(self, arm: Arm, cell: Cell, consumer: str) -> Measured:
        """Measure an epoch in the arm's process that stays."""
        if arm not in self._alive:
            self._alive[arm] = self._stack.enter_context(Process(arm))
        return self._alive[arm].run(cell, consumer)

    def run_fresh(self, arm: Arm, cell: Cell, consumer: str) -> Measured:
        """Measure an epoch in a process of its own."""
        with Process(arm) as process:
            return process.run(cell, consumer)

    def renew(self) -> None:
        """End the processes that stay; later epochs run in new ones."""
        self._stack.close()
        self._alive.clear()


@contextmanager
def open_arms(subject: str, bases: Sequence[str]) -> Iterator[tuple[list[Arm], Processes]]:
    """Check the commits out, and remove their worktrees at the end.

    Args:
        subject, bases: each `feed` or `loader` of this checkout, or a commit, whose feed it is.
    """
    with ExitStack() as stack:
        arms = [_open(name, stack) for name in (subject, *bases)]
        for arm in arms:
            arm.compile_kernels()
        yield arms, stack.enter_context(_processes())


@contextmanager
def _processes() -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(stack)


def _open(name: str, stack: ExitStack) -> Arm:
    if name in _LOADERS:
        return Arm(name, ROOT, name)
    return Arm(name, stack.enter_context(checkout(name)))
