"""The results as a picture: ratios with their bounds, rates, first batches, memory, by peer; and
what each optimisation is worth.

With runs on several machines, ratios show all of them; the rest shows the first machine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from benchmarks.dataloading.reporting.results import Document

# Okabe and Ito's colours, which colour-blind people can distinguish.
_COLOURS = {"none": "#56B4E9", "light": "#009E73", "heavy": "#D55E00"}
_NAMES = {"none": "no work", "light": "light work", "heavy": "heavy work"}
_LINE = "#222222"
_ROW_INCHES = 0.42  # height of a peer
_ABLATION_ROW = 0.6  # height of a variant, as a share of a peer's
_WIDTH_INCHES = 12.0
_FRAME_INCHES = 2.2
_MARKER_GAP = 0.22  # between levels within a peer's row


def draw(results: Document, path: Path) -> None:
    """Write the picture as SVG. Equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        rows = [row for row in results["throughput"] if _is_drawn(row, results)]
        names = list(dict.fromkeys(_label(row) for row in rows))
        panels = [["ratios", "rates"], ["starts", "memory"]]
        heights = [_ROW_INCHES * len(names)] * 2
        if results["ablation"]:
            panels.append(["ablation", "ablation"])
            heights.append(_ROW_INCHES * _ABLATION_ROW * len(results["ablation"]))
        size = (_WIDTH_INCHES, _FRAME_INCHES + sum(heights))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplot_mosaic(panels, height_ratios=heights)
        _draw_ratios(axes["ratios"], results["comparisons"])
        _draw_bars(axes["rates"], rows, "steady state, thousand input rows/s", _rate)
        _draw_bars(axes["starts"], rows, "first batch of a fresh process, s", _cold)
        _draw_bars(axes["memory"], rows, "most memory of all processes, GiB", _memory)
        if results["ablation"]:
            _draw_ablation(axes["ablation"], results["ablation"])
        handles, labels = axes["rates"].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.suptitle(_title(results))
        figure.savefig(path, format="svg", metadata={"Date": None})


def _is_drawn(row: Document, results: Document) -> bool:
    machine = results["runs"][row["run"]]["machine"]
    return row["consumer"] == "take" and bool(machine == results["machine"])


def _title(results: Document) -> str:
    kind = "indicative: " if results["indicative"] else ""
    return (
        f"{kind}{results['rows']:,} rows, {results['machine']['cores']} cores, "
        f"{results['rounds']} interleaved rounds"
    )


def _label(row: Document) -> str:
    cell = (row["layout"], row["form"])
    return str(row["loader"]) + ("" if cell == ("flat", "expanded") else f" ({', '.join(cell)})")


def _draw_ratios(axes: Axes, comparisons: Sequence[Document]) -> None:
    names = list(dict.fromkeys(_peer(row) for row in comparisons))
    for level, colour in _COLOURS.items():
        mine = [row for row in comparisons if row["work"] == level]
        if not mine:
            continue
        medians = [row["ratio_median"] for row in mine]
        axes.errorbar(
            medians,
            [names.index(_peer(row)) + _shift(level) for row in mine],
            xerr=_whiskers(mine),
            fmt="o",
            color=colour,
            capsize=2,
            markersize=4,
        )
    axes.axvline(1, color=_LINE, linewidth=0.8, linestyle="dashed")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    _name_rows(axes, names, "Lastmile's speed, times the peer's (steady state, 95 % bounds)")


def _peer(row: Document) -> str:
    own = (row["layout"], row["form"])
    return str(row["peer"]) + ("" if own == ("flat", "expanded") else f" | {', '.join(own)}")


def _whiskers(rows: Sequence[Document]) -> list[list[float]]:
    """Return the distances of the bounds from the median; none for a single round."""
    medians = [row["ratio_median"] for row in rows]
    lows = [row["ratio_low"] or median for row, median in zip(rows, medians, strict=True)]
    highs = [row["ratio_high"] or median for row, median in zip(rows, medians, strict=True)]
    return [
        [max(0.0, median - low) for median, low in zip(medians, lows, strict=True)],
        [max(0.0, high - median) for median, high in zip(medians, highs, strict=True)],
    ]


def _draw_bars(
    axes: Axes, rows: Sequence[Document], title: str, value_of: Callable[[Document], float | None]
) -> None:
    names = list(dict.fromkeys(_label(row) for row in rows))
    for level, colour in _COLOURS.items():
        values = [(r, value_of(r)) for r in rows if r["level"] == level]
        found = [(names.index(_label(row)), value) for row, value in values if value is not None]
        if not found:
            continue  # otherwise its legend would have the colour of another level
        axes.barh(
            [place + _shift(level) for place, _ in found],
            [value for _, value in found],
            _MARKER_GAP,
            color=colour,
            label=_NAMES[level],
        )
    _name_rows(axes, names, title)


def _draw_ablation(axes: Axes, rows: Sequence[Document]) -> None:
    """Draw median, smallest and largest of each variant, relative to its base, which is 1."""
    medians = [row["ratio"]["median"] for row in rows]
    ends = [(row["ratio"]["min"], row["ratio"]["max"]) for row in rows]
    whiskers = [
        [median - least for median, (least, _) in zip(medians, ends, strict=True)],
        [most - median for median, (_, most) in zip(medians, ends, strict=True)],
    ]
    places = range(len(rows))
    axes.barh(places, medians, 0.6, color=_COLOURS["heavy"])
    axes.errorbar(medians, places, xerr=whiskers, fmt="none", ecolor=_LINE, capsize=2)
    axes.axvline(1, color=_LINE, linewidth=0.8, linestyle="dashed")
    title = "speed with one optimisation off, to all on (heavy work; median, least, largest)"
    _name_rows(axes, [row["variant"] for row in rows], title)


def _name_rows(axes: Axes, names: Sequence[str], title: str) -> None:
    axes.set_title(title, loc="right")  # a long title has room on the left, above the names
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _shift(level: str) -> float:
    return (list(_COLOURS).index(level) - 1) * _MARKER_GAP


def _rate(row: Document) -> float | None:
    return float(row["steadyRowsPerSecond"]["median"]) / 1000


def _cold(row: Document) -> float | None:
    spread: Any = row["coldFirstBatchSeconds"]
    return None if spread is None else float(spread["median"])


def _memory(row: Document) -> float | None:
    peak: Any = row["peakMemoryBytes"]
    return None if peak is None else float(peak) / 2**30
