"""Draws the results: the cost per row of each policy, and one run over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.cells import Document

_SIZE_INCHES: Final = (9.0, 10.0)
# Okabe and Ito's colours, which people with colour blindness can distinguish.
_OURS: Final = "#D55E00"
_OTHERS: Final = "#0072B2"
_ORACLES: Final = "#666666"
_COURSE: Final = (_OURS, _ORACLES, _OTHERS)
_MARKERS: Final = {"5": "o", "20": "s", "50": "D"}  # by the price of a GPU
_MOST_COST: Final = 1.5


def draw(results: Document, path: Path) -> None:
    """Write the picture of a document of results as SVG; equal results give equal bytes."""
    policies = sorted(results["policies"], key=lambda p: (p["is_ablation"], p["cost"]["20"]))
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        costs, workers, waits = figure.subplots(3, 1, height_ratios=(6.2, 2.6, 1.2))
        _draw_costs(costs, policies)
        _draw_course(workers, waits, results["course"])
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_costs(axes: Axes, policies: Sequence[Document]) -> None:
    """Draw one line per policy; a cost out of range is at the edge, with its value."""
    for place, policy in enumerate(policies):
        is_ours = policy["policy"].startswith("lastmile")
        colour = _ORACLES if policy["is_oracle"] else _OURS if is_ours else _OTHERS
        inside = {price: cost for price, cost in policy["cost"].items() if cost <= _MOST_COST}
        for price, cost in inside.items():
            axes.plot(cost, place, _MARKERS[price], color=colour, ms=4.5, alpha=0.8)
        beyond = [cost for price, cost in policy["cost"].items() if price not in inside]
        if beyond:
            axes.plot(_MOST_COST, place, ">", color=colour, ms=6, clip_on=False)
            values = ", ".join(f"{cost:.2f}" for cost in beyond)
            axes.text(_MOST_COST - 0.01, place, values, ha="right", va="center", fontsize=8)
    for price, marker in _MARKERS.items():
        axes.plot([], [], marker, color="black", ms=4.5, label=f"GPU at {price} workers")
    axes.axvline(1.0, color="black", lw=0.8, ls=":")
    axes.set_yticks(range(len(policies)), [policy["policy"] for policy in policies])
    axes.set(
        xlim=(0.96, _MOST_COST),
        ylim=(len(policies) - 0.5, -0.5),
        xlabel="cost per row, × the latency oracle's",
    )
    axes.legend(loc="lower right", fontsize=8, framealpha=1.0)
    axes.grid(axis="x", alpha=0.3)


def _draw_course(workers: Axes, waits: Axes, course: Document) -> None:
    """Draw required and ready workers, and the trainers' waits, minute by minute."""
    first = course["policies"][0]
    for policy, colour in zip(course["policies"], _COURSE, strict=True):
        minutes = policy["minutes"]
        shares = [100.0 * share for share in policy["waitShare"]]
        workers.step(minutes, policy["ready"], where="post", color=colour, label=policy["policy"])
        waits.plot(minutes, shares, color=colour)
    workers.step(first["minutes"], first["required"], "k:", where="post", lw=0.9, label="required")
    workers.set(ylabel="workers", ylim=(0, None), xlim=(0, None))
    delay, noise = course["provisioning_delay_seconds"], course["noise_percent"]
    workers.set_title(f"«{course['scenario']}», pods start in {delay:g} s, noise {noise} %")
    workers.legend(loc="upper right", fontsize=8, ncols=2)
    waits.set(xlabel="minutes", ylabel="waits, %", ylim=(0, 100), xlim=(0, None))
    for axes in (workers, waits):
        axes.grid(alpha=0.3)
