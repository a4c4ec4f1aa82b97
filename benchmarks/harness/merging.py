"""Adds the cells of a run to the results of earlier runs, for benchmarks that take hours.

Both sides of a ratio come from one run: an arm that was measured again leaves the cell of before,
and the new cell of that name stands beside it. So runs may be of different machines. The fact `run`
of a cell is the index of its run in `runs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.harness.cells import Cell, Document
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.report import Benchmark, cells_of

_OF_A_RUN: Final = ("command", "commit", "finishedAt", "minutes", "machine", "loadAverage")
_EQUAL_FACTS: Final = ("rows", "checksum")


def merge_results(benchmark: Benchmark, before: Document, now: Document) -> Document:
    """Return the results with the cells of both.

    Raises:
        BenchmarkError: they are of different tables, their arms delivered different output, or one
            of them is indicative and the other is not.
    """
    check_version(before, now["version"])
    old, new = (
        {n: results["settings"].get(n) for n in benchmark.fixed_settings}
        for results in (before, now)
    )
    _check_equal("settings", old, new)
    doubts = [benchmark.find_doubts(results) for results in (before, now)]
    if bool(doubts[0]) != bool(doubts[1]):
        found = "; ".join(doubts[0] or doubts[1])
        raise BenchmarkError(f"--add: both or neither must be indicative, but one is: {found}")
    runs = before.get("runs") or [_circumstances(before)]
    measured = {cell.name: cell for cell in cells_of(now)}
    cells = [kept for cell in cells_of(before) if (kept := _without(cell, measured))]
    for cell in measured.values():
        cell.facts["run"] = len(runs)
    names = list(dict.fromkeys([*(cell.name for cell in cells_of(before)), *measured]))
    cells = sorted([*cells, *measured.values()], key=lambda cell: names.index(cell.name))
    versions = before["versions"] | now["versions"]
    entries = [cell.to_json() for cell in cells]
    return {**now, "versions": versions, "runs": [*runs, _circumstances(now)], "cells": entries}


def check_version(before: Document, version: int) -> None:
    """Raise BenchmarkError if results cannot be added to because they are of another version."""
    if before["version"] != version:
        raise BenchmarkError(
            f"--add: the existing results must be of version {version}, but are of "
            f"{before['version']}. Measure without --add."
        )


def _circumstances(results: Document) -> Document:
    return {name: results[name] for name in _OF_A_RUN}


def _without(cell: Cell, measured: Mapping[str, Cell]) -> Cell | None:
    """Return a cell without the arms that were measured again, or None if only its base is left."""
    cell.facts.setdefault("run", 0)
    again = measured.get(cell.name)
    if again is not None:
        old, new = ({n: one.facts.get(n) for n in _EQUAL_FACTS} for one in (cell, again))
        _check_equal(f"the output of {cell.name}", old, new)
        gone = again.arms.keys() - {cell.base}
        cell.arms = {arm: found for arm, found in cell.arms.items() if arm not in gone}
        cell.ratios = {arm: found for arm, found in cell.ratios.items() if arm not in gone}
    return cell if cell.arms.keys() - {cell.base} else None


def _check_equal(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name, value in new.items():
        if old[name] != value:
            raise BenchmarkError(
                f"--add: {what} must be those of the existing results, but {name} was "
                f"{old[name]!r} and is {value!r}. Measure without --add, or into another folder."
            )
