"""The results as Markdown: real runs, simulated runs, and the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.simulator.results import (
    MAX_IDLE_ERROR,
    MAX_RATE_ERROR,
    MAX_WORKERS_ERROR,
    Document,
)

_HEAD = ("profile", "", "real", "simulated, median [least–largest]", "error", "target", "met")


def build_markdown(results: Document) -> str:
    """Return the page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Document) -> Iterator[str]:
    machine, costs = results["machine"], results["costs"]
    load = " and ".join(map(str, results["loadAverage"]))
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    where = " on pods, with the operator" if results["benchmark"] == "simulator-pods" else ""
    yield "# The simulator beside real runs\n"
    yield f"Made by `{results['command']}` at commit {results['commit']}; do not edit."
    yield "How to read it: [docs/benchmarks.md](../../docs/benchmarks.md).\n"
    yield (
        f"One real run of each profile{where}, {results['seeds']} seeds simulated. "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memoryGiB']} GiB, "
        f"{machine['system']}; load average {load} at the start and the end. {versions}.\n"
    )
    if results["indicative"]:
        yield f"**Indicative: {'; '.join(results['indicative'])}.**\n"
    yield (
        f"Fitted to the runs that are not predicted: beside the sleeps, a step costs "
        f"{costs['step_seconds'] * 1e3:.2g} ms, a row {costs['row_seconds'] * 1e6:.2g} µs, reading "
        f"is {costs['read_share']:.1%} of a busy worker's time, and a worker delivers "
        f"{costs['start_seconds']:.3g} s after its request.\n"
    )
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" * len(_HEAD) + "|"
    for row in results["profiles"]:
        yield from _rows(row)
    yield ""
    for row in results["profiles"]:
        yield _describe(row)


def _rows(row: Document) -> Iterator[str]:
    name = f"{row['profile']}{', predicted' if row['predicted'] else ''}"
    yield _figure(name, "rows per second", row["rowsPerSecond"], MAX_RATE_ERROR)
    yield _figure("", "seconds idle", row["idleSeconds"], MAX_IDLE_ERROR)
    workers = row["workers"]
    real, simulated = (" → ".join(map(str, workers[key])) for key in ("real", "simulated"))
    yield (
        f"| | workers at the end of each phase | {real} | {simulated} | {workers['error']} | "
        f"± {MAX_WORKERS_ERROR} | {_met(workers)} |"
    )
    yield _figure("", "workers ready, mean", row["meanReady"], None)


def _figure(name: str, what: str, figure: Mapping[str, Document], target: float | None) -> str:
    median, low, high = (figure["simulated"][key] for key in ("median", "min", "max"))
    limits = "| – | –" if target is None else f"| ± {target:.0%} | {_met(figure)}"
    return (
        f"| {name} | {what} | {figure['real']:,g} | {median:,g} [{low:,g}–{high:,g}] | "
        f"{figure['error']:+.1%} {limits} |"
    )


def _met(figure: Mapping[str, object]) -> str:
    return "yes" if figure["met"] else "**no**"


def _describe(row: Document) -> str:
    starts = ", ".join(f"{seconds:.3g}" for seconds in row["startSeconds"]) or "none"
    required = " → ".join(f"{workers:.2f}" for workers in row["required"])
    return (
        f"- {row['profile']}: {row['rows']:,} rows in {row['seconds']:,.0f} s. The sleeps alone "
        f"require {required} busy workers. Started workers delivered after {starts} s."
    )
