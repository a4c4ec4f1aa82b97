"""The results as a page and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.figure import Figure

from benchmarks.records import Document

_SIZE_INCHES: Final = (12.0, 5.0)
_OURS: Final = "#D55E00"
_OTHERS: Final = "#56B4E9"
_ORACLES: Final = "#999999"


def build_markdown(results: Document) -> str:
    """The page: bars, laws over all cells, and ours by scenario."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    yield "# Laws of scaling\n"
    yield f"Do not edit; made by `{results['command']}` at commit {results['commit']},"
    yield f"{results['finishedAt']}. {results['numRuns']:,} simulated runs,"
    yield f"{results['seeds']} seeds a cell; L is the time from a pod's request to its first"
    yield "batch.\n"
    yield "| bar | asked | worst cell | where | cells met |"
    yield "|---|---|---|---|---|"
    for bar in results["bars"]:
        met = f"{bar['num_met']} of {bar['num_cells']}"
        yield f"| {bar['bar']} | {bar['asked']} | {bar['measured']} | {bar['worst']} | {met} |"
    yield "\n## Laws over all cells\n"
    yield "Means; worker hours and cost a row as ratios to the latency oracle's.\n"
    yield "| law | idle share | worker hours | cost, GPU 5 | 20 | 50 | reversals an hour | moves |"
    yield "|---|---|---|---|---|---|---|---|"
    for law in results["laws"]:
        costs = " | ".join(f"{law['cost'][price]:.3f}" for price in ("5", "20", "50"))
        yield (
            f"| {law['policy']} | {law['idle_share']:.1%} | {law['worker_hours_ratio']:.2f} "
            f"| {costs} | {law['reversals_per_hour']:.2f} | {law['moves']:.1f} |"
        )
    yield "\n## Lastmile by scenario\n"
    yield "The worst of all delays and noises.\n"
    yield "| scenario | idle above the oracle's | worker hours | settling | overshoot | reversals |"
    yield "|---|---|---|---|---|---|"
    for row in results["scenarios"]:
        settling = row["settling_seconds"]
        settled = "–" if settling is None else f"{settling:.0f} s"
        yield (
            f"| {row['scenario']} | {row['idle_excess_share']:+.1%} | "
            f"{row['worker_hours_ratio']:.2f} | {settled} | {row['overshoot_workers']:.1f} | "
            f"{row['reversals_per_hour']:.2f} |"
        )


def draw(results: Document, path: Path) -> None:
    """Idle GPUs against worker hours, a point a law: down and left is better."""
    laws: Sequence[Document] = results["laws"]
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        trade, cost = figure.subplots(1, 2)
        for law in laws:
            colour = _colour(law)
            trade.plot(law["worker_hours_ratio"], 100 * law["idle_share"], "o", color=colour)
            trade.annotate(
                law["policy"],
                (law["worker_hours_ratio"], 100 * law["idle_share"]),
                fontsize=6,
                xytext=(3, 3),
                textcoords="offset points",
            )
        trade.set(xlabel="worker hours, × the latency oracle's", ylabel="GPU time idle, %")
        trade.set_xscale("log")
        trade.grid(alpha=0.3)
        ranked = sorted(laws, key=lambda law: law["cost"]["20"])
        names = [law["policy"] for law in ranked]
        values = [law["cost"]["20"] for law in ranked]
        cost.barh(names, values, color=[_colour(law) for law in ranked])
        cost.set_xlim(left=0.9)
        cost.set(xlabel="cost a row, × the latency oracle's; a GPU costs 20 workers")
        cost.invert_yaxis()
        figure.suptitle("Laws of scaling over all scenarios, delays and noises")
        figure.savefig(path, format="svg", metadata={"Date": None})


def _colour(law: Document) -> str:
    if law["is_oracle"]:
        return _ORACLES
    return _OURS if law["policy"].startswith("lastmile") else _OTHERS
