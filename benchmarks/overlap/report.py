"""The results as a page and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.overlap.rounds import BARS
from benchmarks.overlap.sessions import FEEDS, MODEL, READERS
from benchmarks.records import Document

# A level of work each; readers each, in Okabe and Ito's colours.
_MARKERS: Final = ("o", "s")
_COLOURS: Final = ("#D55E00", "#0072B2")


def build_markdown(results: Document) -> str:
    """The page."""
    why = results["indicative"]
    lines = [
        "# Training while loading",
        "",
        f"Made by `{results['command']}` at commit {results['commit']}; do not edit. How it is "
        "measured: [docs/benchmarks.md](../../docs/benchmarks.md).",
        "",
        f"{results['rows']:,} input rows, {results['rounds']} interleaved rounds that count, "
        f"{sum(_set_aside(results))} set aside, {results['machine']['processor']}, "
        f"{results['machine']['cores']} cores.",
        "",
        *([f"**Indicative, no measurement of bars: {'; '.join(why)}.**", ""] if why else []),
        "Thousand rows per second; in brackets the bounds, each at 95 %. `auto`: the readers that "
        "`feed: Auto` settles on, of which bars are judged. F': the model alone while the other "
        "core makes chunks that it never sees; what min(F', S) lacks of min(F, S), the machine's "
        "cores, caches and memory take from each other.",
        "",
        "| work | S/F wanted | S/F | F | S, threads | S, processes | R/min(F, S), threads | "
        "processes | auto | asked | met | min(F', S)/min(F, S) | R/min(F', S), auto |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for level in results["levels"]:
        for point in level["points"]:
            rates = point["rows_per_second"]
            cells = [level["work"], f"{point['wanted']:g}"]
            cells.append(f"{point['feed_to_model']['median']:.2f}")
            kinds = (MODEL, *FEEDS.values())
            cells += [f"{rates[str(kind)]['median'] / 1000:,.0f}" for kind in kinds]
            cells += [_bounded(point["readers"][readers]) for readers in READERS]
            met = {None: "unknown", True: "yes", False: "**no**"}[point["met"]]
            cells += [point["auto"], f"≥ {point['at_least']:g}", met]
            cells += [_bounded(point["left"]), _bounded(point["auto_of_left"])]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _set_aside(results: Document) -> list[int]:
    return [point["set_aside"] for level in results["levels"] for point in level["points"]]


def _bounded(ratios: Document) -> str:
    low, high = ratios["ratio_low"], ratios["ratio_high"]
    return f"{ratios['ratio_median']:.2f}" + ("" if low is None else f" [{low:.2f}–{high:.2f}]")


def draw(results: Document, path: Path) -> None:
    """Share of min(F, S) by S/F, as SVG; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for level, marker in zip(results["levels"], _MARKERS, strict=False):
            for readers, colour in zip(READERS, _COLOURS, strict=True):
                found = [point["readers"][readers] for point in level["points"]]
                label = f"{level['work']} work, {readers}"
                _draw_points(axes, level, found, label=label, fmt=marker, color=colour)
            found, label = [point["left"] for point in level["points"]], "what the machine leaves"
            style = {"mfc": "none", "color": "grey"}
            _draw_points(axes, level, found, label=f"{label}, {level['work']}", fmt=marker, **style)
        axes.plot(list(BARS), list(BARS.values()), "k_", markersize=14, label="asked")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        kind = "indicative: " if results["indicative"] else ""
        axes.set_title(f"{kind}{results['rows']:,} rows, {results['rounds']} interleaved rounds")
        axes.set_xlabel("S/F: the feed's rate over the model's")
        axes.set_ylabel("rate of both over the slower of them")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_points(axes: Axes, level: Document, found: list[Document], **style: Any) -> None:
    shares = [ratios["ratio_median"] for ratios in found]
    lows = [s - (r["ratio_low"] or s) for s, r in zip(shares, found, strict=True)]
    highs = [(r["ratio_high"] or s) - s for s, r in zip(shares, found, strict=True)]
    places = [point["feed_to_model"]["median"] for point in level["points"]]
    axes.errorbar(places, shares, yerr=[lows, highs], capsize=2, **style)
