"""The results: what was measured, as a document (docs/benchmarks.md names its fields)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks.dataloading.workloads import FORMS
from benchmarks.gpu.asking import Busyness, Rate
from benchmarks.gpu.cells import FORKING, FROZEN, Cell, Scale, list_cells
from benchmarks.gpu.schedule import Measured
from benchmarks.records import Document

VERSION = 1


def build_results(scale: Scale, measured: Measured, device: Document) -> Document:
    """Return the document, without the circumstances of the run."""
    cells = list_cells({form: measured.best_tuning(form) for form in FORMS})
    missing = [cell for cell in cells if cell not in measured.rates]
    return {
        "version": VERSION,
        "benchmark": "gpu",
        "indicative": list(_explain_indicative(scale, device, measured, missing)),
        "device": device,
        "settings": asdict(scale),
        "tuning": [_describe_tuning(cell, rate) for cell, rate in measured.tuning.items()],
        "cells": [_describe_cell(cell, measured) for cell in cells if cell in measured.rates],
        "missing": [_name(cell) for cell in missing],
        "failures": measured.failures,
    }


def _explain_indicative(
    scale: Scale, device: Document, measured: Measured, missing: Sequence[Cell]
) -> Iterator[str]:
    """Yield why the figures say nothing, or little."""
    if device["type"] == "cpu":
        yield "a small model on a CPU, to see that the benchmark works"
    if missing:
        yield f"{len(missing)} cells are missing"
    if measured.failures:
        yield "measurements failed"
    rounds = min(map(len, measured.rates.values()), default=0)
    if 0 < rounds < scale.rounds:
        yield f"{rounds} of {scale.rounds} rounds"


def _name(cell: Cell) -> Document:
    return {"size": cell.size, "form": cell.form, "way": cell.way}


def _describe_tuning(cell: Cell, rate: Rate) -> Document:
    setting = {"form": cell.form, "workers": cell.tuning.workers, "unit": cell.tuning.unit}
    return setting | {"samplesPerSecond": rate.samples / rate.seconds}


def _describe_cell(cell: Cell, measured: Measured) -> Document:
    rates = measured.rates[cell]
    frozen = measured.rates.get(replace(cell, way=FROZEN), [])
    waited = sum(rate.waited_seconds for rate in rates) / sum(rate.seconds for rate in rates)
    trace = measured.traces.get(cell)
    return _name(cell) | {
        "tuning": str(cell.tuning) if cell.host == FORKING else None,
        "samplesPerSecond": _spread(_speed(rate) for rate in rates),
        "shareOfFrozen": _spread(
            _speed(mine) / _speed(other) for mine, other in zip(rates, frozen, strict=False)
        ),
        "waitedShare": waited,
        "trace": None if trace is None else _describe_trace(trace),
    }


def _speed(rate: Rate) -> float:
    return rate.samples / rate.seconds


def _describe_trace(trace: Busyness) -> Document:
    return {
        "steps": trace.steps,
        "millisecondsPerStep": 1e3 * trace.seconds / trace.steps,
        "utilisation": trace.busy_share,
        "gapShare": trace.gap_share,
        "gapsPerStep": trace.num_gaps / trace.steps,
        "longestGapMilliseconds": 1e3 * trace.longest_gap_seconds,
    }


def _spread(values: Iterable[float]) -> dict[str, Any] | None:
    found = list(values)
    if not found:
        return None
    return {"median": statistics.median(found), "min": min(found), "max": max(found)}
