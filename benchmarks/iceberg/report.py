"""The page and the picture of the results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.ratios import (
    Interval,
    describe_circumstances,
    draw_intervals,
    format_met,
    format_ratio,
)
from benchmarks.records import Document


def build_markdown(results: Document) -> str:
    """Return the results as a page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    yield "# Iceberg tables"
    yield ""
    yield describe_circumstances(results)
    yield ""
    yield (
        "Impressions in 4 days and 8 buckets, joined with rows of users' actions, with two lists, "
        "in 12 buckets of a day; `memory` on large files, `growth` on 1, 4 and 16 times its rows. "
        "All programs of a cell take turns, in a process each (`memory` and `growth`: in a new one "
        "each time). They delivered equal values, by checksums of every column; a stream without "
        "the join, the same rows. Lastmile ends at shuffled tensors, peers at Arrow tables, Spark "
        "in its own memory. Median of the rounds' ratios of the subject to the other [95 % "
        "bounds]; a target is met if the bound is."
    )
    yield ""
    yield "| cell | subject | against | measure | rounds | result | target | met | |"
    yield f"|{'---|' * 9}"
    for row in results["rows"]:
        yield f"| {' | '.join(_columns(row))} |"
    yield ""
    yield (
        "| cell | impressions | actions | impressions in large files | of growth | commit | "
        "finished | minutes | load average |"
    )
    yield f"|{'---|' * 9}"
    for cell in results["cells"]:
        sizes = (f"{cell[k]:,}" for k in ("rows", "sideRows", "largeRows", "growthRows"))
        facts = (str(cell[key]) for key in ("commit", "finishedAt", "minutes"))
        load = " to ".join(map(str, cell["loadAverage"]))
        yield f"| {' | '.join([cell['name'], *sizes, *facts, load])} |"


def _columns(row: Document) -> list[str]:
    names = [row["cell"], row["subject"], row["peer"], row["measure"], str(row.get("rounds", "–"))]
    bars = [f"≥ {row['at_least']:g}"] if "at_least" in row else []
    bars += [f"≤ {row['at_most']:g}"] if "at_most" in row else []
    target = ", ".join(bars) or "–"
    if "not_run" in row:
        return [*names, "–", target, "–", f"not measured: {row['not_run']}"]
    facts = [row["note"]] if "note" in row else []
    if "subject_seconds" in row:
        facts += [_describe(row, "subject"), _describe(row, "peer")]
    return [*names, format_ratio(row), target, format_met(row["is_met"]), " / ".join(facts)]


def _describe(row: Document, arm: str) -> str:
    seconds = sorted(row[f"{arm}_seconds"])[len(row[f"{arm}_seconds"]) // 2]
    speed = row[f"{arm}_rows"] / seconds
    if "memory" in row["measure"]:
        return f"{row[f'{arm}_peak_mebibytes']:,} MiB"
    return f"{speed:,.0f} rows/s"


def draw(results: Document, path: Path) -> None:
    """Write a picture of each ratio with bounds, and its target."""
    intervals = [
        Interval(
            label=f"{row['subject']}: {row['peer']}, {row['measure']}",
            ratio=row,
            target=row.get("at_least", row.get("at_most")),
        )
        for row in results["rows"]
        if row.get("ratio_low") is not None
    ]
    label = "subject over the other (logarithmic); bar: target"
    draw_intervals(intervals, label, path, is_logarithmic=True)
