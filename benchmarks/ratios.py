"""The page and the picture of results that are ratios with bounds, for several benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.figure import Figure

from benchmarks.records import Document

_COLOUR: Final = "#0072B2"  # Okabe and Ito's blue


def describe_circumstances(results: Document) -> str:
    """Return the first sentence of a page: how the results of `Beginning.describe` were made."""
    machine, load = results["machine"], results["loadAverage"]
    return (
        f"Do not edit; made by `{results['command']}` at commit {results['commit']}, "
        f"{results['finishedAt']}, {results['minutes']:g} minutes, {machine['processor']}, "
        f"{machine['cores']} cores; load average {load[0]} at the start, {load[1]} at the end."
    )


def format_ratio(ratio: Document | None) -> str:
    """Return the median and the bounds of `describe_ratio`, with about three digits."""
    if ratio is None:
        return "–"
    low, high = ratio["ratio_low"], ratio["ratio_high"]
    bounds = "" if low is None else f" [{_format(low)}–{_format(high)}]"
    return _format(ratio["ratio_median"]) + bounds


def _format(value: float) -> str:
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3f}" if value < 2 else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def format_met(is_met: bool | None) -> str:
    """Return a word for a target: met, missed, or a dash if nothing was decided."""
    return {None: "–", True: "met", False: "**missed**"}[is_met]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A line of the picture: a ratio with fields of `describe_ratio`, and its target if any."""

    label: str
    ratio: Document
    target: float | None = None


def draw_intervals(
    intervals: Sequence[Interval], label: str, path: Path, *, is_logarithmic: bool = False
) -> None:
    """Write a picture of ratios as SVG, the first on top; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=(8.0, 1.2 + 0.35 * len(intervals)), layout="constrained")
        axes = figure.subplots()
        for place, interval in enumerate(intervals):
            median = interval.ratio["ratio_median"]
            bounds = [interval.ratio[name] or median for name in ("ratio_low", "ratio_high")]
            axes.plot(bounds, [place, place], color=_COLOUR, linewidth=4, alpha=0.4)
            axes.plot(median, place, "o", color=_COLOUR)
            if interval.target is not None:
                axes.plot(interval.target, place, "|", color="0.2", markersize=14)
        axes.axvline(1.0, color="0.4", linewidth=1)
        axes.invert_yaxis()
        if is_logarithmic:
            axes.set_xscale("log")
        axes.set_yticks(range(len(intervals)), [interval.label for interval in intervals])
        axes.set_xlabel(label)
        figure.savefig(path, format="svg", metadata={"Date": None})
