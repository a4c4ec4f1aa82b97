"""The results as a picture: workers and waits of each profile over time, real and simulated."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.cells import Document

# Okabe and Ito's colours, which people with colour blindness can distinguish.
_COLOURS: Final = {"real": "#D55E00", "simulated": "#0072B2"}
_INCHES_PER_PROFILE, _HEIGHT_INCHES = 4.0, 4.5


def draw(results: Document, path: Path) -> None:
    """Write the picture as SVG; equal results give equal bytes."""
    profiles = results["profiles"]
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(
            figsize=(_INCHES_PER_PROFILE * len(profiles), _HEIGHT_INCHES), layout="constrained"
        )
        panels = figure.subplots(2, len(profiles), sharex="col", sharey="row", squeeze=False)
        for place, row in enumerate(profiles):
            _draw_profile(panels[0, place], panels[1, place], row)
        panels[0, 0].set_ylabel("workers ready")
        panels[1, 0].set_ylabel("trainer waits, %")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_profile(workers: Axes, waits: Axes, row: Document) -> None:
    for kind, colour in _COLOURS.items():
        course = row["course"][kind]
        style: dict[str, Any] = {"color": colour, "linewidth": 1.3, "label": kind}
        workers.step(course["seconds"], course["ready"], where="post", **style)
        points = zip(course["seconds"], course["idleSeconds"], strict=True)
        shares = [
            100.0 * (after[1] - before[1]) / (after[0] - before[0])
            for before, after in pairwise([(0.0, 0.0), *points])
        ]
        waits.plot(course["seconds"], shares, **style)
    workers.set_title(f"{row['profile']}{' (predicted)' if row['predicted'] else ''}")
    workers.set_ylim(bottom=0)
    waits.set(ylim=(0, 100), xlabel="seconds")
    for axes in (workers, waits):
        axes.spines[["top", "right"]].set_visible(False)
