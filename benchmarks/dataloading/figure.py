"""The results as a picture: rows a second by loader and level, and the time to the first batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.dataloading.report import find_row
from benchmarks.dataloading.results import Document
from benchmarks.dataloading.workloads import LEVELS

# Okabe and Ito's colours, which people who see colours differently can tell apart.
_LOADERS = {
    "dataloader": ("DataLoader, batches from workers", "#56B4E9"),
    "dataloader-ship": ("DataLoader, row groups from workers", "#0072B2"),
    "ray-stock": ("stock Ray Data", "#999999"),
    "lastmile": ("Lastmile", "#D55E00"),
}
_ROOFLINE = ("batches frozen in memory", "#222222")
_LEVEL_NAMES = {"none": "no work", "light": "light work", "heavy": "heavy work"}
# title, consumer, quantity, unit, the axis' name
_PANELS = (
    ("Loader alone, whole epoch", "touch", "rowsPerSecond", 1000, "thousand input rows/s"),
    ("Loader alone, after the first batch", "touch", "steadyRowsPerSecond", 1000, ""),
    ("With the training step, whole epoch", "train", "rowsPerSecond", 1000, ""),
    ("Time to the first batch", "touch", "firstBatchSeconds", 1, "seconds"),
)
_BAR_WIDTH = 0.2  # four bars and a gap at each level
_SIZE_INCHES = (11.0, 7.4)
_WHISKERS = {"ecolor": "#222222", "elinewidth": 1, "capsize": 2}


def draw(results: Document, path: Path) -> None:
    """Write the picture as SVG; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        for axes, panel in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
            _draw_panel(axes, results, panel)
        handles, labels = axes.get_legend_handles_labels()
        roofline = _draw_roofline(figure.axes[2], results)
        figure.legend(
            [*handles, roofline],
            [*labels, _ROOFLINE[0]],
            loc="outside lower center",
            ncols=5,
            frameon=False,
        )
        figure.suptitle(_title(results))
        figure.savefig(path, format="svg", metadata={"Date": None})


def _title(results: Document) -> str:
    settings, machine = results["settings"], results["machine"]
    return (
        f"{settings['rows']:,} rows ({settings['smallRows']:,} with training), "
        f"{machine['cores']} cores; medians of {settings['repeats']} interleaved repeats, "
        "whiskers from least to largest"
    )


def _draw_panel(axes: Axes, results: Document, panel: tuple[str, str, str, float, str]) -> None:
    title, consumer, quantity, unit, name = panel
    axes.set_title(title)
    axes.set_ylabel(name or _PANELS[0][4])
    for place, (loader, (label, colour)) in enumerate(_LOADERS.items()):
        rows = [(i, find_row(results, consumer, level, loader)) for i, level in enumerate(LEVELS)]
        found = [(index, row[quantity]) for index, row in rows if row]
        medians = [values["median"] / unit for _, values in found]
        bars = axes.bar(
            [index + (place - 1.5) * _BAR_WIDTH for index, _ in found],
            medians,
            _BAR_WIDTH,
            label=label,
            color=colour,
            yerr=_whiskers([values for _, values in found], unit),
            error_kw=_WHISKERS,
        )
        for bar, median, (_, values) in zip(bars, medians, found, strict=True):
            at = (bar.get_x() + bar.get_width() / 2, values["max"] / unit)
            axes.annotate(
                _short(median), at, (0, 2), textcoords="offset points", ha="center", fontsize=7
            )
    axes.set_xticks(range(len(LEVELS)), [_LEVEL_NAMES[level] for level in LEVELS])
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.08)


def _whiskers(found: Sequence[Any], unit: float) -> list[list[float]]:
    return [
        [(values["median"] - values["min"]) / unit for values in found],
        [(values["max"] - values["median"]) / unit for values in found],
    ]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _draw_roofline(axes: Axes, results: Document) -> Any:
    """The consumer's own limit: what it does with batches that cost nothing to bring."""
    line: Any = None
    for index, level in enumerate(LEVELS):
        row = find_row(results, "train", level, "roofline")
        if row:
            rate = row["rowsPerSecond"]["median"] / _PANELS[2][3]
            line = axes.hlines(
                rate, index - 0.42, index + 0.42, colors=_ROOFLINE[1], linestyles="dashed"
            )
    return line
