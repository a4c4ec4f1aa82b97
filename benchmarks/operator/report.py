"""Builds the results as Markdown: targets, time until all train, and the cost of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.operator.results import Document

_TIMES = ("milliseconds", "withoutApiMilliseconds", "withoutWaitsMilliseconds")


def build_markdown(results: Document) -> str:
    """Return the page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    machine, versions = results["machine"], results["versions"]
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    yield "# The operator under load\n"
    yield f"Made by `{results['command']}` at commit {results['commit']}; do not edit."
    yield "How to read it: [docs/operating/scaling.md](../../docs/operating/scaling.md).\n"
    yield (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memoryGiB']} GiB, "
        f"{machine['system']}, which the operator shares with etcd, the API server, KubeRay and "
        f"kwok. {named}.\n"
    )
    if results["indicative"]:
        yield f"**Indicative: {'; '.join(results['indicative'])}.**\n"
    yield from _table(
        ("bar", "at most", "found", "met"),
        [
            (bar["bar"], f"{bar['most']:g}", f"{bar['found']:g}", "yes" if bar["met"] else "**no**")
            for bar in results["bars"]
        ],
    )
    yield from _describe_rises(results["rises"])
    yield from _describe_windows("While all train", results["training"])
    yield from _describe_slopes(results["slopes"])
    yield from _describe_windows("While some change without pause", results["changing"])
    for row in results["changing"]:
        half, most = row["editSeconds"]
        yield (
            f"Of {row['size']} experiments: {row['edits']} edits, each in the status after "
            f"{half:g} s (p50) and {most:g} s (p99).\n"
        )
    yield from _describe_windows("While all are suspended", results["asleep"])
    yield from _describe_windows("While heads of another tenant never answer", results["silent"])
    for row in results["silent"]:
        yield (
            f"{row['size']} heads of one tenant accept connections and never answer. The status "
            f"of another tenant's experiment follows its edit after {_spread(row['editSeconds'])} "
            f"s (median [least–largest] of {row['edits']} edits). At most {row['mostOpen']} "
            "connections to the silent heads were open at the same time.\n"
        )
    yield from _describe_ablation(results["forgetful"])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _describe_rises(rises: Sequence[Document]) -> Iterator[str]:
    if not rises:
        return
    yield "## From nothing until all train\n"
    yield "Seconds, median [least–largest]; the ratio is of the two of one round.\n"
    head = ("experiments", "rounds", "bare client", "operator", "ratio", "requests each")
    yield from _table(
        head,
        [
            (
                str(rise["size"]),
                str(rise["rounds"]),
                _spread(rise["bareSeconds"]),
                _spread(rise["operatorSeconds"]),
                _spread(rise["ratio"]),
                f"{rise['requestsPerExperiment']:g}",
            )
            for rise in rises
        ],
    )
    yield from _passes(rises)


def _describe_windows(title: str, rows: Sequence[Document]) -> Iterator[str]:
    if not rows:
        return
    yield f"## {title}\n"
    head = ("experiments", "seconds", "cores", "MiB", "requests per second", "each", "writes")
    yield from _table(
        head,
        [
            (
                str(row["size"]),
                f"{row['seconds']:.0f}",
                f"{row['cores']:.3g}",
                f"{row['rssMiB']:.0f}",
                f"{row['requestsPerSecond']:g}",
                f"{row['requestsPerExperiment']:g}",
                str(row["writes"]),
            )
            for row in rows
        ],
    )
    yield from _passes(rows)


def _passes(rows: Sequence[Document]) -> Iterator[str]:
    """Yield a table of the passes of a window, with and without their waits."""
    if not any("milliseconds" in row["passes"] for row in rows):
        return
    head = ("experiments", "passes", "ms, p50 and p99", "without the API server", "nor Ray")
    yield from _table(
        head,
        [
            (
                str(row["size"]),
                str(row["passes"]["number"]),
                *(" and ".join(f"{value:g}" for value in row["passes"][name]) for name in _TIMES),
            )
            for row in rows
            if "milliseconds" in row["passes"]
        ],
    )


def _describe_slopes(slopes: Mapping[str, Any] | None) -> Iterator[str]:
    if slopes is None:
        return
    yield (
        f"By least squares over all runs: {slopes['fixedMiB']:g} MiB and {slopes['kibEach']:g} KiB "
        "an experiment.\n"
    )
    if "abreastUpTo" in slopes:
        yield (
            f"Over those in which it keeps up, so up to {slopes['abreastUpTo']} experiments: "
            f"{slopes['coresPerThousand']:g} cores and "
            f"{slopes['requestsPerSecondPerThousand']:g} requests per second for each thousand.\n"
        )


def _describe_ablation(rows: Sequence[Document]) -> Iterator[str]:
    if not rows:
        return
    yield "## What it spares to remember\n"
    head = ("experiments", "memory of looks", "requests an experiment and minute", "cores")
    yield from _table(
        head,
        [
            (
                str(row["size"]),
                name,
                f"{row[key]['requestsPerExperimentMinute']:g}",
                f"{row[key]['cores']:.3g}",
            )
            for row in rows
            for name, key in (("off", "without"), ("on", "with"))
        ],
    )


def _spread(figure: Mapping[str, float]) -> str:
    median, low, high = (figure[key] for key in ("median", "min", "max"))
    return f"{median:g} [{low:g}–{high:g}]"
