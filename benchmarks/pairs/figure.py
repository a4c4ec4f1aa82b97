"""The results as a picture: the bounds of every ratio of speeds."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.pairs.report import MIN_SPEED
from benchmarks.records import Document

_COLOUR = "#0072B2"  # Okabe and Ito's blue


def draw(results: Document, path: Path) -> None:
    """Write the picture as SVG; equal results give equal bytes."""
    pairs = results["pairs"][::-1]
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=(8.0, 1.2 + 0.35 * len(pairs)), layout="constrained")
        axes = figure.subplots()
        for place, row in enumerate(pairs):
            ratio = row["speed"]
            median = ratio["ratio_median"]
            low, high = ratio["ratio_low"] or median, ratio["ratio_high"] or median
            axes.plot([low, high], [place, place], color=_COLOUR, linewidth=4, alpha=0.4)
            axes.plot(median, place, "o", color=_COLOUR)
        axes.axvline(1.0, color="0.4", linewidth=1)
        axes.axvline(MIN_SPEED, color="0.4", linewidth=1, linestyle="--")
        axes.set_yticks(range(len(pairs)), [f"{row['cell']}: {row['base']}" for row in pairs])
        axes.set_xlabel(f"speed of {pairs[0]['subject']} over the base's; dashed: {MIN_SPEED}")
        figure.savefig(path, format="svg", metadata={"Date": None})
