"""Counts of verdicts, the page of the results, and the power curve as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.harness.cells import Document

_MAX_FALSE_POSITIVES = 0.05
_SIZE_INCHES = (9.0, 3.4)
# Okabe and Ito's colours, which people who see colours differently can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_INCONCLUSIVE = "Inconclusive"

Rows = Sequence[dict[str, Any]]


def count_false_positives(rows: Rows) -> list[Document]:
    """Return an entry for each metric of the A/A comparisons."""
    equal = [row for row in rows if row["kept_share"] == 1]
    return [
        _count_metric(metric, [row for row in equal if row["metric"] == metric])
        for metric in sorted({row["metric"] for row in equal})
    ]


def list_differences(rows: Rows) -> list[Document]:
    """Return the differences of all A/A comparisons, in one row per metric."""
    equal = [row for row in rows if row["kept_share"] == 1]
    return [
        {"metric": metric, "differences": [r["difference"] for r in equal if r["metric"] == metric]}
        for metric in sorted({row["metric"] for row in equal})
    ]


def _count_metric(metric: str, rows: Rows) -> Document:
    count = len(rows)
    found = sum(row["verdict"] != _INCONCLUSIVE for row in rows)
    narrower = statistics.median(r["unpaired_half_width"] / r["half_width"] for r in rows)
    return {
        "metric": metric,
        "comparisons": count,
        "falsePositives": found,
        "isMet": found <= _MAX_FALSE_POSITIVES * count,
        "unpairedFalsePositives": sum(row["unpaired"] for row in rows),
        "rowsAloneFalsePositives": sum(row["rows_alone"] for row in rows),
        "halfWidth": _round(statistics.median(row["half_width"] for row in rows)),
        "narrowerThanUnpaired": round(narrower, 1),
    }


def count_power(rows: Rows) -> list[Document]:
    """Return an entry for each metric, share of rows and number of seeds."""
    keys = sorted(
        {(r["metric"], r["seeds"], -r["kept_share"]) for r in rows if r["kept_share"] != 1}
    )
    found = []
    for metric, seeds, share in keys:
        cell = [
            row
            for row in rows
            if (row["metric"], row["seeds"], row["kept_share"]) == (metric, seeds, -share)
        ]
        found.append(
            {
                "metric": metric,
                "seeds": seeds,
                "keptShare": -share,
                "comparisons": len(cell),
                "meanDifference": _round(statistics.mean(row["difference"] for row in cell)),
                "detected": sum(row["verdict"] == "Worse" for row in cell),
                "wrongDirection": sum(row["verdict"] == "Better" for row in cell),
                "unpairedDetected": sum(row["unpaired"] for row in cell),
                "detectable": _round(statistics.median(row["detectable"] for row in cell)),
            }
        )
    return found


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def build_markdown(results: Document) -> str:
    """Build the page of the results."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    yield "# Calibration of lastmile compare\n"
    yield f"Do not edit; made by `{results['command']}` at commit {results['commit']},"
    yield f"{results['finishedAt']}, in {results['minutes']} minutes.\n"
    yield f"Each comparison has a click log of its own, with {results['numRows']:,} rows to train"
    yield f"on and {results['numRows']:,} to evaluate on; {results['trainings']:,} trainings of the"
    yield "built-in model in all.\n"
    yield "## A/A: both variants are equal\n"
    yield "Three seeds each. Every verdict is false; at most 5 % may be.\n"
    heads = (
        *("metric", "comparisons", "false verdicts", "false, unpaired means"),
        *("false, rows alone", "half width", "unpaired, × as wide"),
    )
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for entry in results["falsePositives"]:
        yield (
            f"| {entry['metric']} | {entry['comparisons']} | {entry['falsePositives']} "
            f"| {entry['unpairedFalsePositives']} | {entry['rowsAloneFalsePositives']} "
            f"| {entry['halfWidth']:.5f} | {entry['narrowerThanUnpaired']} |"
        )
    yield "\n*Unpaired means* add the noise of seeds and rows of both variants. *Rows alone* is a"
    yield "bootstrap of the difference between one training of each, which leaves out the noise of"
    yield "training.\n"
    yield "## Power: the other variant trains on a part of the rows\n"
    yield "| metric | seeds | rows kept | mean difference | found | unpaired means | detectable |"
    yield "|---" * 7 + "|"
    for entry in results["power"]:
        yield (
            f"| {entry['metric']} | {entry['seeds']} | {entry['keptShare']:.0%} "
            f"| {entry['meanDifference']:.5f} | {entry['detected']} of {entry['comparisons']} "
            f"| {entry['unpairedDetected']} | {entry['detectable']:.5f} |"
        )
    yield "\n*Detectable* is the median of what `compare` says it finds in four of five cases."


def draw(results: Document, path: Path) -> None:
    """Draw the share of differences that were found, by their size, for each metric."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        metrics = sorted({entry["metric"] for entry in results["power"]})
        panels = figure.subplots(1, max(1, len(metrics)), squeeze=False)[0]
        for axes, metric in zip(panels, metrics, strict=False):
            entries = [entry for entry in results["power"] if entry["metric"] == metric]
            _draw_lines(axes, entries)
            axes.set_xlabel(f"true difference in {metric}")
            axes.set_ylim(-3, 103)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("found, % of comparisons")
        panels[0].legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_lines(axes: Any, entries: Rows) -> None:
    numbers = sorted({entry["seeds"] for entry in entries})
    for colour, seeds in zip(_COLOURS, numbers, strict=False):
        mine = [entry for entry in entries if entry["seeds"] == seeds]
        sizes = [abs(entry["meanDifference"]) for entry in mine]
        for key, style, name in (
            ("detected", "o-", "compare"),
            ("unpairedDetected", "x--", "unpaired"),
        ):
            shares = [100 * entry[key] / entry["comparisons"] for entry in mine]
            axes.plot(
                sizes, shares, style, color=colour, label=f"{name}, {seeds} seeds", markersize=4
            )
