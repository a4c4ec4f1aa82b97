"""The results as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.records import Document

_PRICES: Final = ("5", "20", "50")
# How the figures of a bar are told, by their unit.
_SHOW: Final[dict[str, Callable[[float], str]]] = {
    "share": lambda value: f"{value:.1%}",
    "hours": lambda value: f"{value:+.2f} h",
    "count": lambda value: f"{value:.0f}",
    "ratio": lambda value: f"{value:.3f}",
}


def build_markdown(results: Document) -> str:
    """The page: bars and where they are missed, costs, laws over all cells, ours by scenario."""
    parts = (_head, _bars, _misses, _costs, _laws, _scenarios)
    return "\n".join(line for part in parts for line in part(results)) + "\n"


def _head(results: Document) -> Iterator[str]:
    yield "# Laws of scaling\n"
    yield f"Do not edit; made by `{results['command']}` at commit {results['commit']},"
    yield f"{results['finishedAt']}. {results['numRuns']:,} simulated runs,"
    yield f"{results['seeds']} seeds a cell ({results['ablationSeeds']} of laws without a rule); a"
    yield "cell is a scenario with a delay L, from a pod's request to its first batch, and a noise."
    yield "Bounds are of 95 % intervals over seeds, which all laws share.\n"
    if not results["isWhole"]:
        yield "**Indicative**: not all scenarios and laws, or fewer seeds than bars ask for.\n"
    for law in results["laws"]:
        if law["cut_off"]:
            yield f"**{law['policy']}: {law['cut_off']} runs were cut off before all rows were"
            yield "trained; their cells are left out wherever it is compared.**\n"


def _bars(results: Document) -> Iterator[str]:
    yield "| bar | asked | worst cell | where | cells met |"
    yield "|---|---|---|---|---|"
    for bar in results["bars"]:
        worst, show = bar["worst"], _SHOW[bar["unit"]]
        met = f"{bar['num_met']} of {bar['num_cells']}"
        where = f"{worst['scenario']}, {_column(worst)}"
        yield f"| {bar['bar']} | {bar['asked']} | {show(worst['measured'])} | {where} | {met} |"
    rivals = [c for c in results["comparisons"] if c["is_rival"]]
    for price in _PRICES:
        mine = [c for c in rivals if str(c["price"]) == price]
        if mine:
            worst = max(mine, key=lambda c: c["high"])
            met = f"{sum(c['high'] < 1.0 for c in mine)} of {len(mine)} laws"
            bar = f"cost a row over all cells below every other law's, GPU at {price} workers"
            yield f"| {bar} | upper bound < 1 | {worst['high']:.3f} | {worst['policy']} | {met} |"


def _misses(results: Document) -> Iterator[str]:
    """Yield the missed targets, cell by cell."""
    missed = [bar for bar in results["bars"] if bar["misses"]]
    if not missed:
        return
    columns = sorted(
        {(v["provisioning_delay_seconds"], v["noise_percent"]) for b in missed for v in b["misses"]}
    )
    yield "\n## Bars that are missed\n"
    yield "What was measured in each cell that misses a bar; · is met.\n"
    for bar in missed:
        show = _SHOW[bar["unit"]]
        yield f"\n{bar['bar'][0].upper()}{bar['bar'][1:]} (asked: {bar['asked']})\n"
        yield "| scenario | " + " | ".join(f"L {start:g} s, {n} %" for start, n in columns) + " |"
        yield "|---" * (len(columns) + 1) + "|"
        for scenario in dict.fromkeys(verdict["scenario"] for verdict in bar["misses"]):
            figures = {
                (v["provisioning_delay_seconds"], v["noise_percent"]): show(v["measured"])
                for v in bar["misses"]
                if v["scenario"] == scenario
            }
            yield f"| {scenario} | " + " | ".join(figures.get(c, "·") for c in columns) + " |"


def _costs(results: Document) -> Iterator[str]:
    yield "\n## Lastmile's cost a row over each other law's\n"
    yield "Geometric mean over cells with its 95 % interval, and in how many of the cells it costs"
    yield "less; below 1 is better. J = (GPU seconds · price + worker seconds) ÷ rows.\n"
    yield "| law | GPU at 5 workers | | at 20 | | at 50 | |"
    yield "|---|---|---|---|---|---|---|"
    by = {(c["policy"], str(c["price"])): c for c in results["comparisons"]}
    for policy in dict.fromkeys(c["policy"] for c in results["comparisons"]):
        found = [by.get((policy, price)) for price in _PRICES]
        yield f"| {policy} | " + " | ".join(_ratio(c) for c in found) + " |"


def _ratio(found: Document | None) -> str:
    if found is None:
        return "– | –"
    bounds = f"{found['ratio']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
    return f"{bounds} | {found['cheaper']} of {found['cells']}"


def _laws(results: Document) -> Iterator[str]:
    yield "\n## Laws over all cells\n"
    yield "Means, of cost a row geometric; worker hours and cost a row over the latency oracle's."
    yield "Settings are those that were best in tuning.\n"
    yield (
        "| law | idle share | worker hours | cost, GPU at 5 | 20 | 50 | reversals an hour | moves "
        "| seeds | settings |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for law in results["laws"]:
        costs = " | ".join(f"{law['cost'][price]:.3f}" for price in _PRICES)
        settings = ", ".join(f"{name} {value:g}" for name, value in law["settings"].items())
        yield (
            f"| {law['policy']} | {law['idle_share']:.1%} | {law['worker_hours_ratio']:.2f} "
            f"| {costs} | {law['reversals_per_hour']:.2f} | {law['moves']:.1f} | {law['seeds']} "
            f"| {settings} |"
        )


def _scenarios(results: Document) -> Iterator[str]:
    yield "\n## Lastmile by scenario\n"
    yield "The worst of all delays and noises. Settling: the longest after any change until the"
    yield "number stays within one of ⌈D (1 + h) ÷ μ⌉ with true values, median of the seeds;"
    yield "unsettled: seeds in which it was not before the next change. Overshoot: workers that an"
    yield "upward move led above that number.\n"
    yield (
        "| scenario | idle above the oracle's | worker hours | settling | unsettled | overshoot "
        "| reversals an hour | moves |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for row in results["scenarios"]:
        settling = row["settling_seconds"]
        settled = "–" if settling is None else f"{settling:.0f} s"
        yield (
            f"| {row['scenario']} | {row['idle_excess_share']:+.1%} | "
            f"{row['worker_hours_ratio']:.2f} | {settled} | {row['unsettled_share']:.0%} | "
            f"{row['overshoot_workers']:.1f} | {row['reversals_per_hour']:.2f} | "
            f"{row['moves']:.1f} |"
        )


def _column(verdict: Document) -> str:
    return f"L {verdict['provisioning_delay_seconds']:g} s, {verdict['noise_percent']} %"
