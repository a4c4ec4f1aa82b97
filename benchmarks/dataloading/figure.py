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
_BAR_WIDTH = 0.2  # four bars and a gap at each level
_SIZE_INCHES = (12.5, 4.4)
_WHISKERS = {"ecolor": "#222222", "elinewidth": 1, "capsize": 2}
_THOUSAND = 1000


def draw(results: Document, path: Path) -> None:
    """Write the picture as SVG; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        touch, train, first = figure.subplots(1, 3)
        _draw_panel(touch, results, "touch", "rowsPerSecond", _THOUSAND)
        touch.set_title("Loader alone")
        _draw_panel(train, results, "train", "rowsPerSecond", _THOUSAND)
        _draw_roofline(train, results, "train")
        train.set_title("With the training step")
        _draw_panel(first, results, "touch", "firstBatchSeconds", 1)
        first.set_title("Time to the first batch")
        for axes in (touch, train):
            axes.set_ylabel("thousand input rows a second")
        first.set_ylabel("seconds")
        handles, labels = train.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        figure.suptitle(_title(results))
        figure.savefig(path, format="svg", metadata={"Date": None})


def _title(results: Document) -> str:
    settings, machine = results["settings"], results["machine"]
    return (
        f"{settings['rows']:,} rows ({settings['smallRows']:,} with training), "
        f"{machine['cores']} cores; medians of {settings['repeats']} interleaved repeats, "
        "whiskers from least to largest"
    )


def _draw_panel(axes: Axes, results: Document, consumer: str, quantity: str, unit: float) -> None:
    for place, (loader, (label, colour)) in enumerate(_LOADERS.items()):
        found = [find_row(results, consumer, level, loader)[quantity] for level in LEVELS]
        medians = [values["median"] / unit for values in found]
        whiskers = _whiskers(found, unit)
        left = [index + (place - 1.5) * _BAR_WIDTH for index in range(len(LEVELS))]
        bars = axes.bar(
            left, medians, _BAR_WIDTH, label=label, color=colour, yerr=whiskers, error_kw=_WHISKERS
        )
        texts = [_short(value) for value in medians]
        tops = [values["max"] / unit for values in found]
        for bar, text, top in zip(bars, texts, tops, strict=True):
            axes.annotate(
                text,
                (bar.get_x() + bar.get_width() / 2, top),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
    axes.set_xticks(range(len(LEVELS)), [f"{level} work" for level in LEVELS])
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.08)


def _whiskers(found: Sequence[Any], unit: float) -> list[list[float]]:
    return [
        [(values["median"] - values["min"]) / unit for values in found],
        [(values["max"] - values["median"]) / unit for values in found],
    ]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _draw_roofline(axes: Axes, results: Document, consumer: str) -> None:
    """The consumer's own limit: what it does with batches that cost nothing to bring."""
    label, colour = _ROOFLINE
    for index, level in enumerate(LEVELS):
        rate = find_row(results, consumer, level, "roofline")["rowsPerSecond"]["median"] / _THOUSAND
        axes.hlines(
            rate,
            index - 0.42,
            index + 0.42,
            colors=colour,
            linestyles="dashed",
            label=label if index == 0 else "",
        )
