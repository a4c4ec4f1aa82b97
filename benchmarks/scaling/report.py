"""The results as Markdown: the bars, every number of nodes, and the nodes that came and went."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.scaling.cpu_time import KINDS
from benchmarks.scaling.results import Document

_BARS = ("bar", "units", "nodes", "asked", "measured", "bound", "met")
_CELLS = (
    *("units", "rows a unit", "nodes", "rows/s", "to n times a reader's"),
    *("CPU seconds per million rows", "to the fewest nodes"),
)
_ABLATION = (
    *("pipelineOptions", "units", "nodes", "rows/s", "to all on"),
    "seconds of the processor per million rows",
)
_TIMES = ("units", "nodes", *KINDS, "sum", "all cores")


def build_markdown(results: Document) -> str:
    """The page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    machine, intake = results["machine"], results["intake"]
    load = " and ".join(map(str, results["loadAverage"]))
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    yield "# Scaling: data-worker nodes beside one trainer\n"
    yield f"Made by `{results['command']}` at commit {results['commit']}; do not edit."
    yield "How to read it: [docs/benchmarks.md](../../docs/benchmarks.md).\n"
    yield (
        f"{results['rounds']} rounds of passes with {results['seconds']:g} s in their steady part. "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memoryGiB']} GiB, "
        f"{machine['system']}; load average {load} at the start and the end. {versions}.\n"
    )
    yield (
        f"The trainer took {_spread(intake['rowsPerSecond'])} rows/s of readers that were not "
        f"slowed, its process being busy for {_spread(intake['trainerCpuShare'], 2)} of the time. "
        f"A slowed reader makes {intake['readerRowsPerSecond']:,.0f} rows/s, 1/{intake['slower']} "
        "of that.\n"
    )
    if results["indicative"]:
        yield f"**Indicative, no measurement of bars: {'; '.join(results['indicative'])}.**\n"
    yield "## Bars\n"
    yield from _table(_BARS, map(_bar, results["bars"]))
    yield "\n## By number of nodes\n"
    yield "Median, least and largest of the rounds; of ratios their bounds, each at 95 %.\n"
    yield from _table(_CELLS, map(_cell, results["cells"]))
    yield "\n## Where the processor's time goes\n"
    yield (
        "Seconds of the processor for a million rows, medians. The last column is what all cores "
        "have meanwhile if rows come at n times a reader's rate: where the sum comes near it, the "
        "machine is what the rate is short of.\n"
    )
    yield from _table(_TIMES, map(_times, results["cells"]))
    yield "\n## Ablation\n"
    yield "With an option switched off, to the same round with all of them on.\n"
    yield from _table(_ABLATION, map(_ablation, results["ablation"]))
    yield "\n## Nodes that join and leave during a pass\n"
    yield from map(_elastic, results["elastic"])


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def _bar(row: Document) -> Sequence[Any]:
    asked = f"≥ {row['at_least']:g}" if "at_least" in row else f"≤ {row['at_most']:g}"
    bound = "–" if row["bound"] is None else f"{row['bound']:.3g}"
    met = {None: "unknown", True: "yes", False: "**no**"}[row["met"]]
    return row["bar"], row["units"], row["nodes"], asked, f"{row['measured']:.3g}", bound, met


def _cell(row: Document) -> Sequence[Any]:
    return (
        f"{row['units']}, {row['unitSeconds']:.2g} s",
        *(row["unitRows"], row["nodes"], _spread(row["rowsPerSecond"])),
        *(_bounded(row, "rate_ratio"), _spread(row["cpuSecondsPerMillionRows"], 2)),
        _bounded(row, "cpu_ratio"),
    )


def _times(row: Document) -> Sequence[Any]:
    found = row["cpuSecondsPerMillionRowsByProcesses"]
    medians = [found[kind]["median"] for kind in KINDS]
    figures = [*medians, sum(medians), row["coresSecondsPerMillionRows"]]
    return row["units"], row["nodes"], *(f"{figure:.2f}" for figure in figures)


def _ablation(row: Document) -> Sequence[Any]:
    used = sum(each["median"] for each in row["cpuSecondsPerMillionRowsByProcesses"].values())
    return (
        *(row["variant"], row["units"], row["nodes"], _spread(row["rowsPerSecond"])),
        *(_bounded(row, "to_all_on"), f"{used:.2f}"),
    )


def _elastic(row: Document) -> str:
    checksum = ", ".join(f"{name} {value}" for name, value in row["checksum"].items())
    return (
        f"- {row['units']} units, {' → '.join(map(str, row['nodes']))} nodes, {row['drained']} "
        f"drained and {row['killed']} killed: first chunks {_spread(row['waitedSeconds'], 1)} s "
        f"after a node joined; {row['piecesAfterLeaving']:,} chunks came after nodes had left. The "
        f"rows of an undisturbed pass: {'yes' if row['equalRows'] else '**no**'} ({checksum})."
    )


def _spread(values: Mapping[str, float], digits: int = 0) -> str:
    median, low, high = (values[name] for name in ("median", "min", "max"))
    return f"{median:,.{digits}f} [{low:,.{digits}f}–{high:,.{digits}f}]"


def _bounded(row: Document, name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    bounds = "" if low is None else f" [{low:.3f}–{high:.3f}]"
    return f"{row[f'{name}_median']:.3f}{bounds}"
