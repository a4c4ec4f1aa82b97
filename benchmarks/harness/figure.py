"""The picture of a benchmark: ratios with bounds, or lines where the cells differ in a size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.cells import Cell
from benchmarks.harness.report import Benchmark, Metric
from benchmarks.harness.statistics import Estimate

# Okabe and Ito's colours.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MAX_LINEAR: Final = 10.0  # ratios above it need a logarithmic axis
# Text stays text, which keeps files small; equal results give equal bytes.
STYLE: Final[Any] = {"svg.hashsalt": "lastmile", "svg.fonttype": "none", "font.size": 9}


def draw(benchmark: Benchmark, cells: Sequence[Cell], path: Path) -> None:
    """Write the picture as SVG, with a panel for each metric that is drawn."""
    metrics = [metric for metric in benchmark.metrics if metric.is_drawn]
    is_growth = any(cell.x is not None for cell in cells)
    cells = [cell for cell in cells if (cell.x is not None) == is_growth]
    num_rows = max(6, sum(len(_compared(cell, metrics)) for cell in cells))
    height = 4.0 if is_growth else 1.2 + 0.25 * num_rows
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.0 + 4.0 * len(metrics), height), layout="constrained")
        panels = figure.subplots(1, len(metrics), squeeze=False, sharey=not is_growth)[0]
        for axes, metric in zip(panels, metrics, strict=True):
            if is_growth:
                _draw_lines(axes, cells, metric, benchmark.x_label)
            else:
                _draw_bars(axes, cells, metric, metrics)
            axes.spines[["top", "right"]].set_visible(False)
        if is_growth:
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        else:
            panels[0].invert_yaxis()
        save(figure, benchmark.title, path)


def save(figure: Figure, title: str, path: Path) -> None:
    """Write a figure with its title; equal figures give equal bytes. For use within `STYLE`."""
    figure.suptitle(title)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _compared(cell: Cell, metrics: Sequence[Metric]) -> list[str]:
    """Return the arms that are drawn: those that have a value for any of the metrics."""
    return [arm for arm in cell.arms if any(_read(cell, arm, metric) for metric in metrics)]


def _read(cell: Cell, arm: str, metric: Metric) -> Estimate | None:
    if metric.is_compared:
        return None if arm == cell.base else cell.ratio(arm, metric.name)
    found = cell.value(arm, metric.name)
    if found is None:
        return None
    bounds = [None if one is None else one * metric.scale for one in (found.low, found.high)]
    return Estimate(found.median * metric.scale, *bounds)


def _label(axes: Axes, metric: Metric) -> str:
    return f"{metric.label}: ratio to the base" if metric.is_compared else metric.label


def _draw_bars(
    axes: Axes, cells: Sequence[Cell], metric: Metric, metrics: Sequence[Metric]
) -> None:
    labels, highest = [], 1.0
    is_ambiguous = len({cell.base for cell in cells}) > 1
    for cell in cells:
        for arm in _compared(cell, metrics):
            found = _read(cell, arm, metric)
            if found is not None:
                axes.errorbar(found.median, len(labels), xerr=_errors([found]), **_MARKS)
                highest = max(highest, found.median)
            base = f" over {cell.base}" if is_ambiguous and cell.base else ""
            labels.append(f"{cell.name}: {arm}{base}")
    axes.set_yticks(range(len(labels)), labels)
    if metric.is_compared:
        axes.axvline(1.0, color="0.4", linewidth=1)
        if highest > MAX_LINEAR:
            axes.set_xscale("log")
    axes.set_xlabel(_label(axes, metric))


_MARKS: Final[dict[str, Any]] = {"fmt": "o", "color": COLOURS[0], "capsize": 3}


def _draw_lines(axes: Axes, cells: Sequence[Cell], metric: Metric, x_label: str) -> None:
    for index, arm in enumerate(dict.fromkeys(arm for cell in cells for arm in cell.arms)):
        points = [
            (cell.x, found)
            for cell in cells
            if cell.x is not None and (found := _read(cell, arm, metric))
        ]
        if not points:
            continue
        axes.errorbar(
            [x for x, _ in points],
            [found.median for _, found in points],
            yerr=_errors([found for _, found in points]),
            marker="o",
            capsize=3,
            label=arm,
            color=COLOURS[index % len(COLOURS)],
        )
    if metric.is_compared:
        axes.axhline(1.0, color="0.4", linewidth=1)
    sizes = sorted({cell.x for cell in cells if cell.x is not None})
    if min(sizes) > 0 and max(sizes) > 8 * min(sizes):
        axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel=x_label, ylabel=_label(axes, metric))
    axes.set_ylim(bottom=0)


def _errors(found: Sequence[Estimate]) -> list[list[float]]:
    """Return the distances of the bounds from the medians, as matplotlib takes them."""
    low = [one.median - min(one.median, one.low or one.median) for one in found]
    high = [max(one.median, one.high or one.median) - one.median for one in found]
    return [low, high]
