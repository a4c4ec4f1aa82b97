"""The results as a picture: seconds, memory and cores by number of experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.records import Document

# Okabe and Ito's colours, which people who see colours differently can tell apart.
_COLOURS: Final = {"operator": "#D55E00", "bare": "#0072B2"}
_SIZE_INCHES: Final = (12.0, 3.6)


def draw(results: Document, path: Path) -> None:
    """Write the picture as SVG; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        rise, memory, cores = figure.subplots(1, 3)
        _draw_rise(rise, results["rows"])
        operators = [row for row in results["rows"] if row["arm"] == "operator"]
        windows = [(row["size"], row["windows"]["training"]) for row in operators]
        _draw_window(memory, [(size, window["rssBytes"] / 2**20) for size, window in windows])
        _draw_window(
            cores, [(size, window["cpuSeconds"] / window["seconds"]) for size, window in windows]
        )
        memory.set_title("resident memory while all train, MiB")
        cores.set_title("cores while all train")
        for axes in (rise, memory, cores):
            axes.set(xlabel="experiments")
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_rise(axes: Axes, rows: list[Document]) -> None:
    for arm, colour in _COLOURS.items():
        points = sorted((row["size"], row["steadySeconds"]) for row in rows if row["arm"] == arm)
        axes.plot(*zip(*points, strict=True), "o", color=colour, label=arm, alpha=0.7)
    axes.set_title("seconds until all train")
    axes.legend(frameon=False)


def _draw_window(axes: Axes, points: list[tuple[int, float]]) -> None:
    axes.plot(*zip(*points, strict=True), "o", color=_COLOURS["operator"], alpha=0.7)
