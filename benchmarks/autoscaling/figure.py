"""Draws the results: cost of each policy, idle GPUs against worker hours, and one run over time.

Policies have numbers, which label the second panel. Points out of range are at the edge, with their
values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.records import Document

_SIZE_INCHES: Final = (11.0, 11.0)
# Okabe and Ito's colours, which people with colour blindness can distinguish.
_OURS: Final = "#D55E00"
_OTHERS: Final = "#0072B2"
_ORACLES: Final = "#666666"
_COURSE: Final = ("#D55E00", "#666666", "#0072B2")
_PRICES: Final = {"5": "o", "20": "s", "50": "D"}
_MOST_COST: Final = 1.5
_MOST_IDLE_PERCENT: Final = 30.0
_HOURS: Final = (0.25, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)


def draw(results: Document, path: Path) -> None:
    """Write the picture of a document of results as SVG."""
    policies = sorted(results["policies"], key=lambda p: (p["is_ablation"], p["cost"]["20"]))
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 10}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        rows = figure.add_gridspec(3, 2, height_ratios=(6.2, 2.6, 1.2), width_ratios=(1.15, 1))
        _draw_costs(figure.add_subplot(rows[0, 0]), policies)
        _draw_trade(figure.add_subplot(rows[0, 1]), policies)
        workers = figure.add_subplot(rows[1, :])
        _draw_course(workers, figure.add_subplot(rows[2, :], sharex=workers), results["course"])
        figure.savefig(path, format="svg", metadata={"Date": None})


def _colour(policy: Document) -> str:
    if policy["is_oracle"]:
        return _ORACLES
    return _OURS if policy["policy"].startswith("lastmile") else _OTHERS


def _draw_costs(axes: Axes, policies: Sequence[Document]) -> None:
    """Draw the cost per row at three prices, one line per policy."""
    for place, policy in enumerate(policies):
        inside = {price: policy["cost"][price] for price in _PRICES}
        beyond = {price: cost for price, cost in inside.items() if cost > _MOST_COST}
        for price, marker in _PRICES.items():
            if price not in beyond:
                axes.plot(inside[price], place, marker, color=_colour(policy), ms=4.5, alpha=0.8)
        if beyond:
            axes.plot(_MOST_COST, place, ">", color=_colour(policy), ms=6, clip_on=False)
            values = ", ".join(f"{cost:.2f}" for cost in beyond.values())
            axes.annotate(
                values,
                (_MOST_COST, place),
                xytext=(-7, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8,
            )
    names = [f"{policy['policy']}  {number}" for number, policy in enumerate(policies, 1)]
    axes.set_yticks(range(len(policies)), names)
    for label, policy in zip(axes.get_yticklabels(), policies, strict=True):
        label.set_color(_colour(policy))
    for price, marker in _PRICES.items():
        axes.plot([], [], marker, color="black", ms=4.5, label=f"GPU at {price} workers")
    axes.axvline(1.0, color=_ORACLES, lw=0.8)
    axes.set(
        xlim=(0.96, _MOST_COST),
        ylim=(len(policies) - 0.5, -0.5),
        xlabel="cost per row, × the latency oracle's",
    )
    axes.legend(loc="lower right", fontsize=8, framealpha=1.0)
    axes.grid(axis="x", alpha=0.3)


def _draw_trade(axes: Axes, policies: Sequence[Document]) -> None:
    """Draw idle GPUs against worker hours; down and left is better."""
    points = []
    for number, policy in enumerate(policies, 1):
        if policy["is_ablation"]:
            continue
        hours, idle = policy["worker_hours_ratio"], 100.0 * policy["idle_share"]
        is_far = idle > _MOST_IDLE_PERCENT
        label = f"{number}: {idle:.0f} %" if is_far else str(number)
        points.append((hours, min(idle, _MOST_IDLE_PERCENT), label, policy))
        marker = "^" if is_far else "o"
        axes.plot(*points[-1][:2], marker, color=_colour(policy), ms=6, clip_on=False, zorder=3)
    hours_of_all = [point[0] for point in points]
    axes.set_xscale("log")
    axes.set(
        xlim=(min(0.6, 0.9 * min(hours_of_all)), max(2.0, 1.15 * max(hours_of_all))),
        ylim=(0.0, _MOST_IDLE_PERCENT),
        xlabel="worker hours, × the latency oracle's",
        ylabel="GPU time idle, %",
    )
    axes.xaxis.set_major_locator(FixedLocator(_HOURS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(alpha=0.3)
    axes.figure.draw_without_rendering()  # places of points in pixels are known after it
    _label(axes, points)


def _label(axes: Axes, points: Sequence[tuple[float, float, str, Document]]) -> None:
    """Put each label at the nearest place where it covers no point and no other label."""
    dots = [axes.transData.transform(point[:2]) for point in points]
    taken = [(x - 4.0, y - 4.0, x + 4.0, y + 4.0) for x, y in dots]
    bounds = axes.get_window_extent()
    for (x, y), (hours, idle, label, policy) in zip(dots, points, strict=True):
        width, height = 7.0 * len(label), 12.0
        for right, up in _offsets():
            left, bottom = x + right - width / 2, y + up - height / 2
            box = (left, bottom, left + width, bottom + height)
            is_inside = bounds.x0 < box[0] and box[2] < bounds.x1 and bounds.y0 < box[1]
            if is_inside and box[3] < bounds.y1 and not any(_overlap(box, b) for b in taken):
                break
        taken.append(box)
        points_per_pixel = 72.0 / axes.figure.dpi
        axes.annotate(
            label,
            (hours, idle),
            xytext=(right * points_per_pixel, up * points_per_pixel),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=9,
            color=_colour(policy),
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": _colour(policy), "shrinkB": 3},
        )


def _offsets() -> Iterator[tuple[float, float]]:
    """Pixels to the right and up, the nearest first."""
    for radius, step in product(range(14, 120, 8), range(16)):
        angle = 2.0 * math.pi * step / 16
        yield radius * math.cos(angle), radius * math.sin(angle)


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _draw_course(workers: Axes, waits: Axes, course: Document) -> None:
    """Draw required and ready workers, and the trainers' waits, minute by minute."""
    for policy, colour in zip(course["policies"], _COURSE, strict=True):
        minutes = policy["minutes"]
        style = {"color": colour, "lw": 1.3, "label": policy["policy"]}
        workers.step(minutes, policy["ready"], where="post", **style)
        waits.plot(minutes, [100.0 * share for share in policy["waitShare"]], **style)
    first = course["policies"][0]
    workers.step(
        first["minutes"],
        first["required"],
        where="post",
        color="black",
        lw=0.9,
        ls=":",
        label="required",
    )
    workers.set(ylabel="workers", ylim=(0, None))
    workers.set_title(
        f"«{course['scenario']}», pods start in {course['provisioning_delay_seconds']:g} s, "
        f"noise {course['noise_percent']} %, one run",
        fontsize=10,
    )
    workers.legend(loc="upper right", fontsize=8, ncols=2)
    workers.tick_params(labelbottom=False)
    waits.set(xlabel="minutes", ylabel="waits, %", ylim=(0, 100), xlim=(0, None))
    for axes in (workers, waits):
        axes.grid(alpha=0.3)
