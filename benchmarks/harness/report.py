"""A benchmark's metrics and targets; its results as JSON and as a page."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import machine
from benchmarks.harness.cells import Cell, Document
from benchmarks.harness.statistics import Estimate, rounded

VERSION: Final = 1
_MET: Final = {None: "not measured", True: "met", False: "**missed**"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A column of the page.

    Attributes:
        name: key of its values in the results.
        label: head of the column, with the unit.
        scale: factor from the stored unit to that of the label.
        is_compared: the page also has the ratio of each arm to the base.
        is_drawn: the picture has a panel of the ratio, or of the value if it is not compared.
    """

    name: str
    label: str
    scale: float = 1.0
    is_compared: bool = True
    is_drawn: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A limit for a metric of the named arms in the named cells (all if empty).

    Attributes:
        of_ratio: the limit is for the ratio to the base, otherwise for the value.
        by_bound: the bound of the estimate must keep the limit, otherwise the median.
    """

    text: str
    metric: str
    arms: Sequence[str] = ()
    cells: Sequence[str] = ()
    at_least: float | None = None
    at_most: float | None = None
    of_ratio: bool = True
    by_bound: bool = True

    def is_met(self, found: Estimate) -> bool | None:
        """Return whether an estimate keeps the limit, or None if it has no bounds."""
        low, high = (found.low, found.high) if self.by_bound else (found.median, found.median)
        if self.at_least is not None:
            return None if low is None else low >= self.at_least
        assert self.at_most is not None, f"{self.text} has no limit"
        return None if high is None else high <= self.at_most


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Everything that the page and the picture of a benchmark need besides its results.

    Attributes:
        name: of the files of the results.
        module: `python -m benchmarks.MODULE` measures it.
        text: says in a sentence or two what is compared, and how.
        arm_label, cell_label: heads of the first two columns.
        x_label: of the axis for the size `x` of the cells.
        fact_labels: heads of columns for facts of cells.
        add_lines: returns more lines of the page.
        find_doubts: returns why results meet or miss no target, such as too few rows; the page
            begins with that.
    """

    name: str
    module: str
    title: str
    text: str
    metrics: Sequence[Metric]
    targets: Sequence[Target] = ()
    cell_label: str = "cell"
    arm_label: str = "arm"
    x_label: str = ""
    fact_labels: dict[str, str] = field(default_factory=dict)
    add_lines: Callable[[Document], Iterator[str]] = lambda _: iter(())
    find_doubts: Callable[[Document], list[str]] = lambda _: []


@dataclass(frozen=True, slots=True)
class Beginning:
    """Start of a benchmark by `time.monotonic`, and the one-minute load average at that time."""

    at: float = field(default_factory=time.monotonic)
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    def describe(self, module: str, arguments: Sequence[str]) -> Document:
        """Return the circumstances of `python -m benchmarks.MODULE ARGUMENTS`, which ends now."""
        return {
            "command": " ".join([f"python -m benchmarks.{module}", *arguments]),
            "commit": machine.describe_commit(),
            "finishedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
            "minutes": round((time.monotonic() - self.at) / 60, 1),
            "machine": machine.describe_machine(),
            "versions": machine.describe_versions(),
            "loadAverage": [round(load, 2) for load in (self.load, os.getloadavg()[0])],
        }


def build_results(
    benchmark: Benchmark, circumstances: Document, settings: Document, cells: Sequence[Cell]
) -> Document:
    """Return the results as they are written."""
    results = {"version": VERSION, "benchmark": benchmark.name, **circumstances}
    return {**results, "settings": settings, "cells": [cell.to_json() for cell in cells]}


def cells_of(results: Document) -> list[Cell]:
    """Return the cells of results."""
    return [Cell.from_json(entry) for entry in results["cells"]]


def judge(benchmark: Benchmark, results: Document) -> list[Document]:
    """Judge every target in every cell that has its metric; `met` is None if none has it."""
    found: list[Document] = []
    for target in benchmark.targets:
        rows: list[tuple[str, Estimate | None, bool | None]] = []
        for cell in cells_of(results):
            if target.cells and cell.name not in target.cells:
                continue
            read = cell.ratio if target.of_ratio else cell.value
            for arm in target.arms or [a for a in cell.arms if a != cell.base]:
                if measured := read(arm, target.metric):
                    where = f"{cell.name}: {arm}"
                    where += f" over {cell.base}" if target.of_ratio else ""
                    rows.append((where, measured, target.is_met(measured)))
        for where, value, met in rows or [("–", None, None)]:
            found.append({"target": target.text, "where": where, "measured": value, "met": met})
    return found


def write_results(benchmark: Benchmark, results: Document, folder: Path) -> str:
    """Write NAME.json, .md and .svg into a folder, which is created if missing; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    page = build_page(benchmark, results)
    (folder / f"{benchmark.name}.json").write_text(format_json(results))
    (folder / f"{benchmark.name}.md").write_text(page)
    try:
        from benchmarks.harness.figure import draw  # matplotlib takes a second to import
    except ModuleNotFoundError:
        return f"{page}\nNo picture without matplotlib; --redraw writes it later.\n"
    draw(benchmark, cells_of(results), folder / f"{benchmark.name}.svg")
    return page


def format_json(results: Document) -> str:
    """Return compact JSON: a line per field, and one per entry of a list, such as a cell."""
    dump = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    lines = []
    for name, value in results.items():
        is_listed = isinstance(value, list) and value and isinstance(value[0], dict)
        text = "[\n" + ",\n".join(map(dump, value)) + "\n]" if is_listed else dump(value)
        lines.append(f"{dump(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def build_page(benchmark: Benchmark, results: Document) -> str:
    """Return the results as a page in Markdown."""
    return "\n".join(_lines(benchmark, results)) + "\n"


def _lines(benchmark: Benchmark, results: Document) -> Iterator[str]:
    yield f"# {benchmark.title}\n"
    if doubts := benchmark.find_doubts(results):
        yield f"**Indicative, no measurement of targets: {'; '.join(doubts)}.**\n"
    for number, run in enumerate(results.get("runs", ())):
        yield f"- Run {number}: {_describe_circumstances(run)}"
    yield f"{_describe_circumstances(results)}\n" if "runs" not in results else ""
    settings = ", ".join(f"{name} {_show_setting(v)}" for name, v in results["settings"].items())
    settings = settings or "none"
    bounds = results.get("bounds", "one-sided 95 % bounds")
    yield (
        f"{benchmark.text} Settings: {settings}. Medians of interleaved rounds; a ratio is that of "
        f"two arms in one round [{bounds}].\n"
    )
    if judged := judge(benchmark, results):
        rows = [
            (row["target"], row["where"], format_estimate(row["measured"]), _MET[row["met"]])
            for row in judged
        ]
        yield from build_table(("target", "where", "measured", "met"), rows)
        yield ""
    heads = [benchmark.cell_label, benchmark.arm_label]
    for metric in benchmark.metrics:
        heads += [metric.label, f"{metric.label}: ratio"] if metric.is_compared else [metric.label]
    heads += benchmark.fact_labels.values()
    cells = cells_of(results)
    yield from build_table(heads, [_row(benchmark, c, arm) for c in cells for arm in c.arms])
    yield from benchmark.add_lines(results)


def _describe_circumstances(results: Document) -> str:
    """Return the first sentence of a page: how the results were made."""
    system, load = results["machine"], results["loadAverage"]
    return (
        f"Made by `{results['command']}` at commit {results['commit']}, {results['finishedAt']}, "
        f"in {results['minutes']:g} minutes, on {system['processor']}, {system['cores']} cores; "
        f"load average {load[0]} at the start, {load[1]} at the end. Do not edit."
    )


def _show_setting(value: Any) -> str:
    if isinstance(value, list | tuple):  # a list once it was read from JSON
        return "/".join(map(_show_setting, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else f"{value}"


def _row(benchmark: Benchmark, cell: Cell, arm: str) -> list[str]:
    row = [cell.name, arm]
    for metric in benchmark.metrics:
        found = cell.value(arm, metric.name)
        value = found and found.scaled(metric.scale)
        if metric.is_compared:
            ratio = cell.ratio(arm, metric.name) if arm != cell.base else None
            row += [format_estimate(value and Estimate(value.median)), format_estimate(ratio)]
        else:
            row.append(format_estimate(value))
    return row + [_show_setting(cell.facts.get(name, "–")) for name in benchmark.fact_labels]


def build_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a table, without columns in which no row has anything."""
    used = [i for i in range(len(heads)) if any(row[i] != "–" for row in rows)]
    for row in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(row[i] for i in used)} |"


def format_estimate(found: Estimate | None) -> str:
    """Return a median and its bounds with about three digits."""
    if found is None:
        return "–"
    text = format_number(found.median)
    if found.low is None or found.high is None or found.low == found.high:
        return text
    return f"{text} [{format_number(found.low)}–{format_number(found.high)}]"


def format_number(value: float) -> str:
    """Return a number with about three digits, whole ones without a fraction."""
    if value == int(value) or value >= 1000:
        return f"{value:,.0f}"
    if value < 0.01:
        return f"{rounded(value):.3g}"
    return f"{value:.3f}" if value < 2 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
