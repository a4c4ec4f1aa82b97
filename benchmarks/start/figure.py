"""The results as a picture: a bar for each arm, from Enter to the end of the command."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.records import Document

# Okabe and Ito's colours, which people who see colours differently can tell apart.
_PARTS = (
    ("to the plan", "#56B4E9"),
    ("to the first step", "#D55E00"),
    ("to the last step", "#009E73"),
    ("to the report", "#CC79A7"),
    ("to the end", "#999999"),
)
_SIZE_INCHES = (9.0, 2.6)


def draw(results: Document, path: Path) -> None:
    """Write the picture as SVG; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        arms = results["arms"][::-1]
        for place, arm in enumerate(arms):
            left = 0.0
            for (_, colour), seconds in zip(_PARTS, _durations(arm), strict=True):
                axes.barh(place, seconds, left=left, color=colour)
                left += seconds
        axes.set_yticks(range(len(arms)), [arm["name"] for arm in arms])
        axes.set_xlabel("seconds since Enter, medians")
        for name, colour in _PARTS:
            axes.barh(0, 0, color=colour, label=name)
        axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.25))
        figure.savefig(path, format="svg", metadata={"Date": None})


def _durations(arm: Document) -> tuple[float, ...]:
    """Return the seconds of each part; a script has no plan and no report."""
    plan, report = (arm[name]["median"] if arm[name] else 0.0 for name in ("plan", "report"))
    first, end, whole = (arm[name]["median"] for name in ("first_step", "end", "whole"))
    return plan, first - plan, max(0.0, whole - end - first), report, end - report
