"""The results as a picture: rates and CPU by number of nodes, rates while nodes come and go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.scaling.results import MAX_CPU_RATIO, MIN_RATE_RATIO, Document

# Okabe and Ito's colours, which people who see colours differently can tell apart.
_COLOURS = ("#56B4E9", "#D55E00")
_LINE = "#222222"
_SIZE_INCHES = (12.0, 4.0)
_THOUSAND = 1000


def draw(results: Document, path: Path) -> None:
    """Write the picture as SVG; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        rates, costs, elastic = figure.subplots(1, 3)
        _draw_ratios(rates, results["cells"], "rate_ratio", "rate, of n times a reader's")
        rates.axhline(MIN_RATE_RATIO, color=_LINE, linewidth=0.8, linestyle="dashed")
        _draw_ratios(costs, results["cells"], "cpu_ratio", "CPU a row, to the fewest nodes")
        costs.axhline(MAX_CPU_RATIO, color=_LINE, linewidth=0.8, linestyle="dashed")
        _draw_elastic(elastic, results["elastic"])
        handles, labels = rates.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        figure.suptitle(_title(results))
        figure.savefig(path, format="svg", metadata={"Date": None})


def _title(results: Document) -> str:
    kind = "indicative: " if results["indicative"] else ""
    cores, rate = results["machine"]["cores"], results["intake"]["readerRowsPerSecond"]
    return f"{kind}readers of {rate:,.0f} rows/s, {cores} cores, {results['rounds']} rounds"


def _draw_ratios(axes: Axes, cells: Sequence[Document], name: str, title: str) -> None:
    for units, colour in zip(_units(cells), _COLOURS, strict=False):
        mine = [cell for cell in cells if cell["units"] == units]
        medians = [cell[f"{name}_median"] for cell in mine]
        lows = [cell[f"{name}_low"] or cell[f"{name}_median"] for cell in mine]
        highs = [cell[f"{name}_high"] or cell[f"{name}_median"] for cell in mine]
        axes.errorbar(
            [cell["nodes"] for cell in mine],
            medians,
            yerr=[
                [max(0.0, median - low) for median, low in zip(medians, lows, strict=True)],
                [max(0.0, high - median) for median, high in zip(medians, highs, strict=True)],
            ],
            fmt="o-",
            color=colour,
            capsize=2,
            markersize=4,
            label=f"{units} units",
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({cell["nodes"] for cell in cells}))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    _frame(axes, title, "data nodes")


def _draw_elastic(axes: Axes, rows: Sequence[Document]) -> None:
    for row, colour in zip(rows, _COLOURS, strict=False):
        # The last second is not whole.
        values = [count / _THOUSAND for count in row["rowsBySecond"][:-1]]
        axes.step(range(len(values)), values, where="post", color=colour, linewidth=1)
        for at in [*row["joinedSeconds"], row["leftSeconds"]]:
            axes.axvline(at, color=colour, linewidth=0.6, linestyle="dotted")
    _frame(axes, "nodes join and leave: thousand rows by second", "seconds; dotted: they did")


def _units(rows: Sequence[Document]) -> list[str]:
    return list(dict.fromkeys(row["units"] for row in rows))


def _frame(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(below)
    axes.spines[["top", "right"]].set_visible(False)
