"""From epochs to the document of results, its page and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.dataloading.reporting.comparisons import describe_ratio, rounded
from benchmarks.dataloading.reporting.ratios import pair_ratios
from benchmarks.iceberg.lakes import Lake
from benchmarks.iceberg.rounds import Found
from benchmarks.iceberg.targets import BUCKET_JOIN, ICEBERG, MAX_SIDE_BYTES, Target
from benchmarks.records import Document

_COLOUR = "#0072B2"  # Okabe and Ito's blue


def summarise(targets: Sequence[Target], found: Found, lake: Lake) -> list[Document]:
    """Return an entry for each target."""
    return [*(_compare(target, found) for target in targets), _side_bytes(found, lake)]


def _compare(target: Target, found: Found) -> Document:
    mine, others = (
        found.epochs.get((target.is_large, program), [])
        for program in (target.subject, target.peer)
    )
    entry: Document = {
        "subject": target.subject.name,
        "peer": target.peer.name,
        "measure": target.measure.name,
        "at_least": target.at_least,
    }
    missing = [p for p in (target.subject, target.peer) if p in found.not_run]
    if missing:
        return entry | {"not_run": "; ".join(f"{p.name}: {found.not_run[p]}" for p in missing)}
    ratio = pair_ratios(*([target.measure.of(epoch) for epoch in side] for side in (mine, others)))
    is_open = target.at_least is None or ratio.low is None
    rows = mine[0].sums["rows"]
    return entry | {
        "rounds": len(mine),
        "rows": rows,
        "is_equal": target.is_equal,
        "rows_per_second": rounded(statistics.median(rows / epoch.seconds for epoch in mine)),
        "peer_rows_per_second": rounded(statistics.median(rows / e.seconds for e in others)),
        "peak_bytes": statistics.median(epoch.peak_bytes for epoch in mine),
        "peer_peak_bytes": statistics.median(epoch.peak_bytes for epoch in others),
        **describe_ratio(ratio),
        "is_met": None if is_open else ratio.low >= target.at_least,  # type: ignore[operator]
    }


def _side_bytes(found: Found, lake: Lake) -> Document:
    """Return the entry of the bytes that the join reads beyond the stream without it."""
    entry: Document = {
        "subject": BUCKET_JOIN.name,
        "peer": "the side's columns in the files",
        "measure": "bytes read",
        "at_most": MAX_SIDE_BYTES,
    }
    joined, plain = (found.epochs.get((False, p), []) for p in (BUCKET_JOIN, ICEBERG))
    if not joined or not plain:
        return entry | {"not_run": "see the rows above"}
    read = statistics.median(epoch.read_bytes for epoch in joined)
    read -= statistics.median(epoch.read_bytes for epoch in plain)
    ratio = read / lake.side_bytes()
    return entry | {"ratio_median": rounded(ratio), "is_met": ratio <= MAX_SIDE_BYTES}


def build_markdown(results: Document) -> str:
    """Return the results as a page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    settings, machine = results["settings"], results["machine"]
    load = results["loadAverage"]
    yield "# Iceberg tables"
    yield ""
    yield (
        f"Do not edit; made by `{results['command']}` at commit {results['commit']}, "
        f"{results['finishedAt']}, {results['minutes']:g} minutes, {machine['processor']}, "
        f"{machine['cores']} cores; load average {load[0]} at the start, {load[1]} at the end."
    )
    yield ""
    yield (
        f"{settings['rows']:,} impressions in {settings['days']} days and 8 buckets, joined with "
        "the users' actions of each day in 12 buckets, which have two lists; memory on "
        f"{settings['largeRows']:,} impressions of one day. All programs take turns, in a process "
        "each. Programs of a row delivered equal values, by checksums of every column; the join "
        "and the stream without it, the same rows. Lastmile ends at shuffled tensors, peers at "
        "Arrow tables. Medians of the rounds' ratios [95 % bounds] of whole epochs."
    )
    yield ""
    yield "| subject | against | measure | ratio | target | rows/s | met |"
    yield f"|{'---|' * 7}"
    for row in results["comparisons"]:
        yield f"| {' | '.join(_cells(row))} |"


def _cells(row: Document) -> list[str]:
    names = [row["subject"], row["peer"], row["measure"]]
    target = "–"
    if row.get("at_least") is not None:
        target = f"≥ {row['at_least']:g}"
    elif "at_most" in row:
        target = f"≤ {row['at_most']:g}"
    if "not_run" in row:
        return [*names, "–", target, "–", f"not measured: {row['not_run']}"]
    low, high = row.get("ratio_low"), row.get("ratio_high")
    bounds = "" if low is None else f" [{low:g}–{high:g}]"
    speeds = [row.get("rows_per_second"), row.get("peer_rows_per_second")]
    speed = "–" if None in speeds else f"{speeds[0]:,.0f} / {speeds[1]:,.0f}"
    met = {None: "–", True: "met", False: "**missed**"}[row["is_met"]]
    return [*names, f"{row['ratio_median']:g}{bounds}", target, speed, met]


def draw(results: Document, path: Path) -> None:
    """Write a picture of each ratio and its target as SVG; equal results give equal bytes."""
    rows = [row for row in results["comparisons"][::-1] if "ratio_median" in row]
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=(8.0, 1.2 + 0.35 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for place, row in enumerate(rows):
            middle = row["ratio_median"]
            low, high = row.get("ratio_low") or middle, row.get("ratio_high") or middle
            axes.plot([low, high], [place, place], color=_COLOUR, linewidth=4, alpha=0.4)
            axes.plot(middle, place, "o", color=_COLOUR)
            if (target := row.get("at_least") or row.get("at_most")) is not None:
                axes.plot(target, place, "|", color="0.2", markersize=14)
        axes.set_xscale("log")
        labels = [f"{row['subject']}: {row['peer']}, {row['measure']}" for row in rows]
        axes.set_yticks(range(len(rows)), labels)
        axes.set_xlabel("subject over the other (logarithmic); bar: target")
        figure.savefig(path, format="svg", metadata={"Date": None})
