"""The results as Markdown: targets, comparisons, measurements of all loaders, and the method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.dataloading.reporting.results import Document

_THOUSAND = 1000
_MEBIBYTE = 2**20


def build_markdown(results: Document) -> str:
    """Return the page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    yield "# Loading data: Lastmile and its peers"
    yield ""
    yield "Do not edit; made by:"
    yield ""
    for number, run in enumerate(results["runs"]):
        load = " and ".join(str(value) for value in run["loadAverage"])
        yield (
            f"- run {number}: `{run['command']}` at commit {run['commit']}, {run['finishedAt']}, "
            f"{run['minutes']:g} minutes, {run['rounds']} rounds, {run['machine']['processor']}; "
            f"load average {load} at the start and the end"
        )
    yield ""
    yield "How to read it: [docs/benchmarks.md](../../docs/benchmarks.md)."
    yield ""
    yield from _circumstances(results)
    yield from _bars(results["bars"])
    yield from _comparisons(results["comparisons"])
    yield from _throughput(results)
    yield from _training(results)
    yield from _ablation(results["ablation"])
    yield from _calibration(results["calibration"])
    yield from _agreement(results["proof"])
    yield from _absent(results["absent"])


def _circumstances(results: Document) -> Iterator[str]:
    machine = results["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    yield (
        f"{results['rows']:,} input rows, {results['rounds']} interleaved rounds. "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memoryGiB']} GiB, "
        f"{machine['system']}. {versions}."
    )
    yield ""
    if results["indicative"]:
        yield f"**Indicative, no measurement of bars: {'; '.join(results['indicative'])}.**"
        yield ""


def _bars(bars: Sequence[Document]) -> Iterator[str]:
    yield "## Bars"
    yield ""
    yield "| bar | work | asked | measured | lower bound | met |"
    yield "|---|---|---|---|---|---|"
    for row in bars:
        if "at_least" in row:
            asked = f"≥ {row['at_least']:g} ×"
            measured, low = _times(row["measured"]), _times(row["low"])
        else:
            asked, low = f"≤ {row['at_most']:g}", "–"
            measured = "–" if row["measured"] is None else f"{row['measured']:.2f}"
        met = {None: "not measured" if measured == "–" else "unknown", True: "yes", False: "**no**"}
        yield f"| {row['bar']} | {row['work']} | {asked} | {measured} | {low} | {met[row['met']]} |"
    yield ""


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ×"


def _comparisons(comparisons: Sequence[Document]) -> Iterator[str]:
    yield "## Lastmile against each peer"
    yield ""
    yield "Steady state: the middle 80 % of the rows; in brackets the bounds, each at 95 %."
    yield ""
    yield (
        "| run | work | layout | form | peer | ratio | whole epoch | memory, MiB | "
        "its memory, MiB |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in comparisons:
        place = [str(row[name]) for name in ("run", "work", "layout", "form", "peer")]
        ratios = [_bounded(row, "ratio"), _bounded(row, "epoch_ratio")]
        memory = [_mebibytes(row[n]) for n in ("peak_memory_bytes", "peer_peak_memory_bytes")]
        yield f"| {' | '.join([*place, *ratios, *memory])} |"
    yield ""


def _bounded(row: Document, name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    bounds = "" if low is None else f" [{low:.2f}–{high:.2f}]"
    return f"{row[f'{name}_median']:.2f} ×{bounds}"


def _mebibytes(value: int | None) -> str:
    return "–" if value is None else f"{value / _MEBIBYTE:,.0f}"


def _throughput(results: Document) -> Iterator[str]:
    yield "## What each of them did"
    yield ""
    yield (
        "Medians, least and largest of the rounds; first batches in seconds. Only figures of one "
        "run are to be compared."
    )
    yield ""
    yield (
        "| run | work | loader | layout, form | setting | steady, thousand rows/s | whole epoch | "
        "first batch, fresh process | of the next epoch | core seconds per million rows | MiB |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for row in results["throughput"]:
        if row["consumer"] != "take":
            continue
        cells = [
            str(row["run"]),
            row["level"],
            row["loader"],
            f"{row['layout']}, {row['form']}",
            row["tuning"],
        ]
        cells += [
            _spread(row["steadyRowsPerSecond"], _THOUSAND),
            _spread(row["rowsPerSecond"], _THOUSAND),
            _spread(row["coldFirstBatchSeconds"], 1, digits=2),
            _spread(row["nextFirstBatchSeconds"], 1, digits=2),
            _spread(row["cpuSecondsPerMillionRows"], 1, digits=1),
            _mebibytes(row["peakMemoryBytes"]),
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _spread(values: Mapping[str, float] | None, unit: float, digits: int = 0) -> str:
    if values is None:
        return "–"
    median, low, high = (values[name] / unit for name in ("median", "min", "max"))
    return f"{median:,.{digits}f} [{low:,.{digits}f}–{high:,.{digits}f}]"


def _training(results: Document) -> Iterator[str]:
    rows = [row for row in results["throughput"] if row["consumer"] == "train"]
    if not rows:
        return
    yield "## With one training step of the built-in ranking model a batch"
    yield ""
    yield f"{rows[0]['rowsIn']:,} input rows; `roofline`: batches frozen in memory."
    yield ""
    yield "| work | loader | thousand rows/s | first batch, s | core seconds per million rows |"
    yield "|---|---|---|---|---|"
    for row in rows:
        cells = [row["level"], row["loader"], _spread(row["rowsPerSecond"], _THOUSAND)]
        cells += [_spread(row["firstBatchSeconds"], 1, digits=2)]
        cells += [_spread(row["cpuSecondsPerMillionRows"], 1, digits=1)]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _ablation(rows: Sequence[Document]) -> Iterator[str]:
    if not rows:
        return
    yield "## Lastmile with each optimisation switched off"
    yield ""
    where = f"`where: {rows[0]['where']}`" if rows[0]["where"] else "no `where`"
    yield (
        f"Heavy work, {where}; rates count all {rows[0]['rowsIn']:,} rows of the table. Flat "
        "files, expanded; nested ones deduplicated, against all on of their own."
    )
    yield ""
    yield "| variant | thousand rows/s | steady | core seconds per million rows | to all on |"
    yield "|---|---|---|---|---|"
    for row in rows:
        cells = [row["variant"], _spread(row["rowsPerSecond"], _THOUSAND)]
        cells += [_spread(row["steadyRowsPerSecond"], _THOUSAND)]
        cells += [_spread(row["cpuSecondsPerMillionRows"], 1, digits=1)]
        yield f"| {' | '.join([*cells, _spread(row['ratio'], 1, digits=2)])} |"
    yield ""


def _calibration(rows: Sequence[Document]) -> Iterator[str]:
    yield "## How calm the machine was"
    yield ""
    yield "Decoding alone, before each round, seconds; a round far off the median is set aside."
    yield ""
    for row in rows:
        seconds = "; ".join(f"{name}: {values}" for name, values in row["seconds"].items())
        yield f"- {row['level']}: {row['rounds']} rounds, {row['repeated']} set aside. {seconds}."
    yield ""


def _agreement(proof: Mapping[str, Any]) -> Iterator[str]:
    yield "## Equal outputs"
    yield ""
    for level, found in proof.items():
        yield (
            f"- {level}: {'; '.join(found['agreed'])} delivered the same {found['rows']:,} rows, "
            f"by {len(found['checksums'])} checksums over identities and contents of a whole "
            f"epoch; identities {found['checksums']['identities']}."
        )
    yield "- Every timed epoch delivered the rows of the first of its kind."
    yield ""


def _absent(absent: Mapping[str, str]) -> Iterator[str]:
    yield "## Who did not take part"
    yield ""
    for name, reason in absent.items():
        yield f"- {name}: {reason}."
