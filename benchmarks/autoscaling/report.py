"""The results as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.harness.cells import Document

_PRICES: Final = ("5", "20", "50")
# Formats of the figures of a target, by their unit.
_SHOW: Final[dict[str, Callable[[float], str]]] = {
    "share": lambda value: f"{value:.1%}",
    "hours": lambda value: f"{value:+.2f} h",
    "count": lambda value: f"{value:.0f}",
    "ratio": lambda value: f"{value:.3f}",
}


def build_markdown(results: Document) -> str:
    """Return the page: targets, missed cells, costs, all policies, and ours by scenario."""
    parts = (_head, _targets, _misses, _costs, _policies, _scenarios)
    return "\n".join(line for part in parts for line in part(results)) + "\n"


def _head(results: Document) -> Iterator[str]:
    yield "# Autoscaling policies\n"
    yield f"Do not edit; made by `{results['command']}` at commit {results['commit']},"
    yield f"{results['finishedAt']}. {results['numRuns']:,} simulated runs,"
    yield f"{results['seeds']} seeds a cell ({results['ablationSeeds']} without a rule). A"
    yield "cell is a scenario with a delay L, from a pod's request to its first batch, and a noise."
    yield "Bounds are those of 95 % intervals over seeds, which all policies share. What each rule"
    yield "brings, and what was tried in vain: [autoscaling-rules.md](autoscaling-rules.md).\n"
    if "note" in results:
        yield f"**{results['note']}**\n"
    if not results["isWhole"]:
        yield "**Indicative**: not all scenarios and policies, or too few seeds.\n"
    for policy in results["policies"]:
        if policy["cut_off"]:
            yield f"**{policy['policy']}: {policy['cut_off']} runs were stopped before all rows"
            yield "were trained. Their cells are left out of its comparisons.**\n"


def _targets(results: Document) -> Iterator[str]:
    yield "| target | limit | worst cell | where | cells met |"
    yield "|---|---|---|---|---|"
    for target in results["targets"]:
        scenario, delay, noise, measured = target["worst"]
        met = f"{target['numMet']} of {target['numCells']}"
        figure = _SHOW[target["unit"]](measured)
        where = f"{scenario}, {_column((delay, noise))}"
        yield f"| {target['name']} | {target['limit']} | {figure} | {where} | {met} |"
    rivals = [c for c in results["comparisons"] if c["is_rival"]]
    for price in _PRICES:
        mine = [c for c in rivals if str(c["price"]) == price]
        if mine:
            worst = max(mine, key=lambda c: c["high"])
            met = f"{sum(c['high'] < 1.0 for c in mine)} of {len(mine)} policies"
            name = f"cost per row over all cells below every other policy's, GPU at {price} workers"
            yield f"| {name} | upper bound < 1 | {worst['high']:.3f} | {worst['policy']} | {met} |"


def _misses(results: Document) -> Iterator[str]:
    """Yield the missed targets, cell by cell."""
    missed = [target for target in results["targets"] if target["misses"]]
    if not missed:
        return
    columns = sorted(
        {(delay, noise) for target in missed for _, delay, noise, _ in target["misses"]}
    )
    yield "\n## Missed targets\n"
    yield "The figure of each cell that misses a target; · is met.\n"
    for target in missed:
        show = _SHOW[target["unit"]]
        yield f"\n{target['name'][0].upper()}{target['name'][1:]} (limit: {target['limit']})\n"
        yield "| scenario | " + " | ".join(map(_column, columns)) + " |"
        yield "|---" * (len(columns) + 1) + "|"
        for scenario in dict.fromkeys(miss[0] for miss in target["misses"]):
            figures = {
                (delay, noise): show(measured)
                for name, delay, noise, measured in target["misses"]
                if name == scenario
            }
            yield f"| {scenario} | " + " | ".join(figures.get(c, "·") for c in columns) + " |"


def _costs(results: Document) -> Iterator[str]:
    yield "\n## Lastmile's cost per row relative to each other policy's\n"
    yield "Geometric mean over cells with its 95 % interval, and in how many of the cells it costs"
    yield "less; below 1 is better. J = (GPU seconds · price + worker seconds) ÷ rows.\n"
    yield "| policy | GPU at 5 workers | | at 20 | | at 50 | |"
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


def _policies(results: Document) -> Iterator[str]:
    yield "\n## All policies over all cells\n"
    yield "Means (geometric for costs); worker hours and cost per row are relative to the latency"
    yield "oracle's. Settings are those that were best in tuning.\n"
    yield (
        "| policy | idle share | worker hours | cost, GPU at 5 | 20 | 50 | reversals per hour "
        "| moves | seeds | settings |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for policy in results["policies"]:
        costs = " | ".join(f"{policy['cost'][price]:.3f}" for price in _PRICES)
        settings = ", ".join(f"{name} {value:g}" for name, value in policy["settings"].items())
        yield (
            f"| {policy['policy']} | {policy['idle_share']:.1%} "
            f"| {policy['worker_hours_ratio']:.2f} | {costs} "
            f"| {policy['reversals_per_hour']:.2f} | {policy['moves']:.1f} "
            f"| {policy['seeds']} | {settings} |"
        )


def _scenarios(results: Document) -> Iterator[str]:
    yield "\n## Lastmile by scenario\n"
    yield "The worst cell of each scenario. Settling: the longest time after a change until the"
    yield "number stays within one of ⌈D (1 + h) ÷ μ⌉ with true values, median of the seeds."
    yield "Unsettled: share of seeds that did not settle before the next change. Overshoot: workers"
    yield "above that number after an upward move.\n"
    yield (
        "| scenario | idle above the oracle's | worker hours | settling | unsettled | overshoot "
        "| reversals per hour | moves |"
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


def _column(cell: tuple[float, int]) -> str:
    return f"L {cell[0]:g} s, {cell[1]} %"
