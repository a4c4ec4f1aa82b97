"""From epochs to the document of results, its page and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.dataloading.reporting.comparisons import describe_ratio, rounded
from benchmarks.dataloading.reporting.ratios import pair_ratios
from benchmarks.pairs.arms import Arm, Measured
from benchmarks.pairs.cells import Cell
from benchmarks.pairs.rounds import CellEpochs
from benchmarks.ratios import (
    Interval,
    describe_circumstances,
    draw_intervals,
    format_met,
    format_ratio,
)
from benchmarks.records import Document

# Speed of the subject over the base's, by the lower bound; and of its peak memory, by the median.
MIN_SPEED, MAX_MEMORY = 0.97, 1.03
_MEBIBYTE = 2**20


def summarise(found: Mapping[Cell, CellEpochs], arms: Sequence[Arm], rows: int) -> list[Document]:
    """Return an entry for each cell and base."""
    subject, *bases = arms
    return [
        _compare(cell, epochs, subject, base, rows)
        for cell, epochs in found.items()
        for base in bases
    ]


def _compare(cell: Cell, epochs: CellEpochs, subject: Arm, base: Arm, rows: int) -> Document:
    mine, others = epochs.taken[subject], epochs.taken[base]
    speed = epochs.speed(subject, base)
    whole = pair_ratios([1 / e.seconds for e in mine], [1 / e.seconds for e in others])
    cpu = pair_ratios(*([max(e.cpu_seconds, 1e-3) for e in side] for side in (mine, others)))
    entry: Document = {
        "cell": cell.name,
        "subject": subject.name,
        "base": base.name,
        "rounds": len(mine),
        "rows_out": mine[0].sums.get("rows", 0),
        "equal_rows": True,  # else nothing is reported
        "rows_per_second": rounded(statistics.median(rows / e.seconds for e in mine)),
        "speed": describe_ratio(speed),
        "epoch_speed": describe_ratio(whole),
        "cpu": describe_ratio(cpu),
        "is_speed_met": None if speed.low is None else speed.low >= MIN_SPEED,
    }
    return entry | _memory(epochs.fresh[subject], epochs.fresh[base])


def _memory(mine: Sequence[Measured], others: Sequence[Measured]) -> Document:
    if not mine:
        return {"memory": None, "peak_bytes": None, "base_peak_bytes": None, "is_memory_met": None}
    peaks, base_peaks = [e.peak_bytes for e in mine], [e.peak_bytes for e in others]
    ratio = pair_ratios(peaks, base_peaks)
    return {
        "memory": describe_ratio(ratio),
        "peak_bytes": int(statistics.median(peaks)),
        "base_peak_bytes": int(statistics.median(base_peaks)),
        "is_memory_met": ratio.median <= MAX_MEMORY,
    }


def build_markdown(results: Document) -> str:
    """Return the results as a page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    settings = results["settings"]
    yield "# Lastmile against itself"
    yield ""
    yield describe_circumstances(results)
    yield ""
    yield (
        f"{settings['rows']:,} rows. All arms take turns and delivered the same rows, by checksums "
        "of every column. Medians of the rounds' ratios [95 % bounds]. Rounds were added until the "
        f"bounds of the speed were within {settings['width']:.0%}, or there were "
        f"{settings['maxRounds']}. The speed is that of the middle 80 % of the rows; the memory, "
        "the peak of fresh processes."
    )
    yield ""
    yield (
        "| cell | subject | base | rounds | speed | whole epoch | core seconds | peak memory | "
        f"MiB | speed ≥ {MIN_SPEED} | memory ≤ {MAX_MEMORY} |"
    )
    yield f"|{'---|' * 11}"
    for row in results["pairs"]:
        ratios = [format_ratio(row[name]) for name in ("speed", "epoch_speed", "cpu", "memory")]
        peaks = [row["peak_bytes"], row["base_peak_bytes"]]
        sizes = "–" if None in peaks else " / ".join(f"{p / _MEBIBYTE:,.0f}" for p in peaks)
        met = [format_met(row["is_speed_met"]), format_met(row["is_memory_met"])]
        names = [row[name] for name in ("cell", "subject", "base")]
        yield f"| {' | '.join([*names, str(row['rounds']), *ratios, sizes, *met])} |"


def draw(results: Document, path: Path) -> None:
    """Write a picture of the bounds of every ratio of speeds."""
    pairs = results["pairs"]
    intervals = [
        Interval(label=f"{row['cell']}: {row['base']}", ratio=row["speed"], target=MIN_SPEED)
        for row in pairs
    ]
    draw_intervals(intervals, f"speed of {pairs[0]['subject']} over the base's; bar: target", path)
