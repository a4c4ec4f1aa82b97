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
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MAX_LINEAR: Final = 10.0  # ratios above it need a logarithmic axis
# Text stays text, which keeps files small; equal results give equal bytes.
_STYLE: Final[Any] = {"svg.hashsalt": "lastmile", "svg.fonttype": "none", "font.size": 9}


def draw(benchmark: Benchmark, cells: Sequence[Cell], path: Path) -> None:
    """Write the picture as SVG, with a panel for each metric that is drawn."""
    metrics = [metric for metric in benchmark.metrics if metric.is_drawn]
    sizes = sorted({cell.x for cell in cells if cell.x is not None})
    rows = [
        (cell, arm)
        for cell in cells
        for arm in cell.arms
        if (cell.x is not None) == bool(sizes) and any(_read(cell, arm, m) for m in metrics)
    ]
    height = 4.0 if sizes else 1.2 + 0.25 * max(6, len(rows))
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.0 + 4.0 * len(metrics), height), layout="constrained")
        panels = figure.subplots(1, len(metrics), squeeze=False, sharey=not sizes)[0]
        for axes, metric in zip(panels, metrics, strict=True):
            label = f"{metric.label}: ratio to the base" if metric.is_compared else metric.label
            if sizes:
                _draw_lines(axes, rows, metric, sizes)
                axes.set(xlabel=benchmark.x_label, ylabel=label)
            else:
                _draw_rows(axes, rows, metric)
                axes.set_xlabel(label)
            axes.spines[["top", "right"]].set_visible(False)
        if sizes:
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        else:
            panels[0].invert_yaxis()
        figure.suptitle(benchmark.title)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _read(cell: Cell, arm: str, metric: Metric) -> Estimate | None:
    if metric.is_compared:
        return cell.ratio(arm, metric.name) if arm != cell.base else None
    found = cell.value(arm, metric.name)
    return found and found.scaled(metric.scale)


def _draw_rows(axes: Axes, rows: Sequence[tuple[Cell, str]], metric: Metric) -> None:
    is_ambiguous = len({cell.base for cell, _ in rows}) > 1
    labels = []
    for place, (cell, arm) in enumerate(rows):
        if found := _read(cell, arm, metric):
            errors = _find_errors([found])
            axes.errorbar(found.median, place, xerr=errors, fmt="o", color=_COLOURS[0], capsize=3)
        base = f" over {cell.base}" if is_ambiguous and cell.base else ""
        labels.append(f"{cell.name}: {arm}{base}")
    axes.set_yticks(range(len(labels)), labels)
    if metric.is_compared:
        axes.axvline(1.0, color="0.4", linewidth=1)
        if axes.get_xlim()[1] > _MAX_LINEAR:
            axes.set_xscale("log")


def _draw_lines(
    axes: Axes, rows: Sequence[tuple[Cell, str]], metric: Metric, sizes: Sequence[float]
) -> None:
    for index, name in enumerate(dict.fromkeys(arm for _, arm in rows)):
        read = [(cell.x, _read(cell, arm, metric)) for cell, arm in rows if arm == name]
        points = {x: found for x, found in read if x is not None and found}
        found = list(points.values())
        if not found:
            continue
        axes.errorbar(
            list(points),
            [one.median for one in found],
            yerr=_find_errors(found),
            marker="o",
            capsize=3,
            label=name,
            color=_COLOURS[index % len(_COLOURS)],
        )
    if metric.is_compared:
        axes.axhline(1.0, color="0.4", linewidth=1)
    if sizes[0] > 0 and sizes[-1] > 8 * sizes[0]:
        axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)


def _find_errors(found: Sequence[Estimate]) -> list[list[float]]:
    """Return the distances of the bounds from the medians, as matplotlib takes them."""
    low = [max(0.0, one.median - (one.low or one.median)) for one in found]
    high = [max(0.0, (one.high or one.median) - one.median) for one in found]
    return [low, high]
