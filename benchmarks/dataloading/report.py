"""The results as Markdown: the headline, one table a consumer, the ablation, how it was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.dataloading.results import Document
from benchmarks.dataloading.workloads import LEVELS

_THOUSAND = 1000
TITLES: Mapping[str, str] = {
    "touch": "Loader alone: the consumer reads every byte of the batch",
    "train": "End to end: one training step of the built-in ranking model a batch",
}


def build_markdown(results: Document) -> str:
    """The page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    settings = results["settings"]
    yield "# Loading data: torch DataLoader, stock Ray Data, Lastmile"
    yield ""
    yield f"Made by `{results['command']}` at commit {results['commit']}; do not edit."
    yield "How to read it: [README](../README.md)."
    yield ""
    machine = results["machine"]
    load = " and ".join(str(value) for value in results["loadAverage"])
    yield (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memoryGiB']} GiB, "
        f"{machine['system']}; load average {load} at the start and the end (other work ran beside "
        f"it if the first is not near 0). {_versions(results['versions'])}."
    )
    yield ""
    if results["quick"]:
        yield "**A quick run: it proves that the loaders agree; its speeds mean nothing.**"
        yield ""
    yield from _headline(results)
    for consumer, title in TITLES.items():
        rows = [row for row in results["throughput"] if row["consumer"] == consumer]
        count = settings["rows"] if consumer == "touch" else settings["smallRows"]
        yield f"## {title}"
        yield ""
        yield f"{count:,} input rows, {settings['repeats']} interleaved repeats."
        yield ""
        yield from _throughput_table(rows)
        yield ""
    yield from _ablation(results["ablation"])
    yield from _agreement(results["proof"])


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _headline(results: Document) -> Iterator[str]:
    """Lastmile against the best DataLoader, level by level."""
    yield "## Lastmile against the best DataLoader"
    yield ""
    yield "| work | loader alone | steady state | with training | steady state |"
    yield "|---|---|---|---|---|"
    for level in LEVELS:
        cells = []
        for consumer in TITLES:
            row = find_row(results, consumer, level, "lastmile")
            cells += [_times(row[name]) for name in ("ratio", "steadyRatio")] if row else ["–"] * 2
        yield f"| {level} | {' | '.join(cells)} |"
    yield ""


def find_row(results: Document, consumer: str, level: str, loader: str) -> Document | None:
    """The throughput of one loader; None if it was not measured."""
    wanted = (consumer, level, loader)
    rows: Sequence[Document] = results["throughput"]
    found = (r for r in rows if (r["consumer"], r["level"], r["loader"]) == wanted)
    return next(found, None)


def _times(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} × [{ratio['min']:.2f}–{ratio['max']:.2f}]"


def _throughput_table(rows: Sequence[Document]) -> Iterator[str]:
    yield (
        "| work | loader | thousand rows/s | first batch, s | steady, thousand rows/s | "
        "core seconds a million rows | against the best DataLoader |"
    )
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        cells = (row["level"], _name(row), *_cells(row))
        yield f"| {' | '.join(cells)} |"


def _cells(row: Document) -> tuple[str, ...]:
    cpu = row["cpuSecondsPerMillionRows"]
    return (
        _spread(row["rowsPerSecond"], _THOUSAND),
        _spread(row["firstBatchSeconds"], 1, digits=2),
        _spread(row["steadyRowsPerSecond"], _THOUSAND),
        _spread(cpu, 1, digits=1) if cpu else "–",
        _times(row["ratio"]),
    )


def _name(row: Document) -> str:
    if "workers" not in row:
        return str(row["loader"])
    name = f"{row['loader']}, {row['workers']} workers"
    return f"**{name}**" if row["isBestDataloader"] else name


def _spread(values: Mapping[str, float], unit: float, digits: int = 0) -> str:
    median, low, high = (values[name] / unit for name in ("median", "min", "max"))
    return f"{median:,.{digits}f} [{low:,.{digits}f}–{high:,.{digits}f}]"


def _ablation(rows: Sequence[Document]) -> Iterator[str]:
    yield "## Lastmile with each optimisation switched off"
    yield ""
    where = f"`where: {rows[0]['where']}`" if rows[0]["where"] else "no `where`"
    yield f"Heavy work, {where}; rates count all {rows[0]['rowsIn']:,} rows of the table."
    yield ""
    yield (
        "| variant | thousand rows/s | first batch, s | steady, thousand rows/s | "
        "core seconds a million rows | against all on |"
    )
    yield "|---|---|---|---|---|---|"
    for row in rows:
        yield f"| {row['variant']} | {' | '.join(_cells(row))} |"
    yield ""


def _agreement(proof: Mapping[str, Any]) -> Iterator[str]:
    yield "## Equal outputs"
    yield ""
    for level, found in proof.items():
        yield (
            f"- {level}: {', '.join(found['agreed'])} delivered the same {found['rows']:,} rows "
            f"of the small table, by {len(found['checksums'])} checksums over identities and "
            f"contents; identities {found['checksums']['identities']}."
        )
    yield "- Every timed epoch had the column sums of the first of its kind."
