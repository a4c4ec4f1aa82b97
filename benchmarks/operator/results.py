"""Builds the document of results from the runs: ratios, slopes, and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import numpy as np

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.reporting.comparisons import rounded
from benchmarks.dataloading.reporting.results import spread

Document = dict[str, Any]
RESULTS_VERSION: Final = 1
# The targets.
MAX_RATIO: Final = 3.0
MAX_KIB_EACH: Final = 100.0
MAX_EDIT_SECONDS: Final = 5.0  # while another tenant's heads never answer
LOOK_SECONDS: Final = 15.0  # between passes over an experiment that trains
MIN_LOOKS: Final = 0.9  # share of due passes that ran; below it the operator does not keep up
MIN_ROUNDS: Final = 5
MIN_SIZE: Final = 1000
MAX_LOAD: Final = 1.0  # load average before the first run; the runs use all cores themselves
_KIB: Final = 2**10
_MINUTE: Final = 60.0


def build_results(runs: Sequence[Document], environment: Mapping[str, Any]) -> Document:
    """Build the document.

    Args:
        environment: the machine, versions and command.

    Raises:
        BenchmarkError: two arms of one size created different clusters.
    """
    _prove_equal(runs)
    rises = [_compare(size, runs) for size in _sizes(runs)]
    slopes = _fit(runs)
    asleep = [run for run in runs if run["arm"] == "asleep"]
    silent = [_silent(run) for run in runs if run["arm"] == "silent"]
    versions = {name: version(name) for name in ("kopf", "kubernetes", "aiohttp")}
    return {
        "version": RESULTS_VERSION,
        "benchmark": "operator",
        "indicative": _explain_indicative(runs, environment["loadAverage"][0]),
        **environment,
        "commit": ", ".join(_commits(runs)),
        "versions": environment["versions"] | versions,
        "bars": _judge(rises, slopes, asleep, silent),
        "rises": rises,
        "training": [_training(run) for run in _first(runs, "operator")],
        "slopes": slopes,
        "changing": [_changing(run) for run in runs if "changing" in run.get("windows", {})],
        "asleep": [{"size": run["size"], **_window(run, "asleep")} for run in asleep],
        "silent": silent,
        "forgetful": [_ablate(run, runs) for run in _first(runs, "forgetful")],
        "rows": list(runs),
    }


def _commits(runs: Sequence[Document]) -> list[str]:
    """Return the commits of the runs, since the report may be built at a later one."""
    return sorted({run["commit"] for run in runs})


def _sizes(runs: Sequence[Document]) -> list[int]:
    """Return the sizes for which both arms ran."""
    of = {arm: {run["size"] for run in runs if run["arm"] == arm} for arm in ("bare", "operator")}
    return sorted(of["bare"] & of["operator"])


def _first(runs: Sequence[Document], arm: str) -> list[Document]:
    """Return for each size the run of median duration, ordered by size."""
    found = []
    for size in sorted({run["size"] for run in runs if run["arm"] == arm}):
        of = [run for run in runs if run["arm"] == arm and run["size"] == size]
        found.append(sorted(of, key=lambda run: run["steadySeconds"])[(len(of) - 1) // 2])
    return found


def _prove_equal(runs: Sequence[Document]) -> None:
    for size in _sizes(runs):
        made = {run["digest"] for run in runs if run["size"] == size and "digest" in run}
        if len(made) > 1:
            raise BenchmarkError(f"of {size} experiments the arms made different clusters: {made}")


def _compare(size: int, runs: Sequence[Document]) -> Document:
    """Compare the times until all train; each ratio is between the arms of one round."""
    of: dict[str, dict[int, Document]] = {"bare": {}, "operator": {}}
    for run in runs:
        if run["size"] == size and run["arm"] in of:
            of[run["arm"]][run["round"]] = run
    rounds = sorted(of["bare"].keys() & of["operator"].keys())
    bare, operator = ([of[arm][number] for number in rounds] for arm in ("bare", "operator"))
    ratios = [b["steadySeconds"] / a["steadySeconds"] for a, b in zip(bare, operator, strict=True)]
    return {
        "size": size,
        "rounds": len(rounds),
        "digest": bare[0]["digest"],
        "bareSeconds": spread(run["steadySeconds"] for run in bare),
        "operatorSeconds": spread(run["steadySeconds"] for run in operator),
        "clustersReadySeconds": spread(run["readySeconds"] for run in operator),
        "ratio": spread(ratios),
        **_window(sorted(operator, key=lambda run: run["steadySeconds"])[len(rounds) // 2], "rise"),
    }


def _window(run: Document, name: str) -> Document:
    """Return the operator's measurements in one window of a run."""
    window = run["windows"][name]
    passes = window["passes"]
    kept = ("milliseconds", "withoutApiMilliseconds", "withoutWaitsMilliseconds", "requests")
    return {
        "seconds": window["seconds"],
        "rssMiB": rounded(window["rssBytes"] / _KIB**2),
        "cores": rounded(window["cpuSeconds"] / window["seconds"]),
        "requestsPerSecond": window["requestsPerSecond"],
        "requestsPerExperiment": window["requestsPerExperiment"],
        "writes": window["writes"],
        "passes": {"number": passes["number"], "results": passes["results"]}
        | {name: passes[name] for name in kept if name in passes},
    }


def _training(run: Document) -> Document:
    found = _window(run, "training")
    minutes = found["seconds"] / _MINUTE
    return {
        "size": run["size"],
        **found,
        "requestsPerExperimentMinute": rounded(found["requestsPerExperiment"] / minutes),
        "writesPerExperimentMinute": rounded(found["writes"] / run["size"] / minutes),
    }


def _changing(run: Document) -> Document:
    return {
        "size": run["size"],
        "edits": run["edits"],
        "editSeconds": run["editSeconds"],
        **_window(run, "changing"),
    }


def _silent(run: Document) -> Document:
    """Return the edits of one tenant while the heads of another never answer."""
    return {
        "size": run["size"],
        "edits": len(run["editSeconds"]),
        "editSeconds": spread(run["editSeconds"]),
        "mostOpen": run["mostOpen"],
        **_window(run, "silent"),
    }


def _ablate(run: Document, runs: Sequence[Document]) -> Document:
    """Compare an operator that keeps nothing between passes with one that does."""
    [other] = [each for each in _first(runs, "operator") if each["size"] == run["size"]]
    return {
        "size": run["size"],
        "steadySeconds": run["steadySeconds"],
        "without": _training(run),
        "with": _training(other),
    }


def _fit(runs: Sequence[Document]) -> Document | None:
    """Fit memory and processor time while all train to the size; None if there is only one size.

    Processor time and requests count only where the operator keeps up. On a busy machine it does
    less than it should, and the line would be too flat.
    """
    operators = [run for run in runs if run["arm"] == "operator"]
    if len({run["size"] for run in operators}) < 2:
        return None
    memory = _line(operators, lambda window: window["rssMiB"] * _KIB)
    slopes = {"fixedMiB": rounded(memory[0] / _KIB), "kibEach": rounded(memory[1])}
    abreast = [run for run in operators if _keeps_up(run)]
    if len({run["size"] for run in abreast}) < 2:
        return slopes
    cores = _line(abreast, lambda window: window["cores"])
    requests = _line(abreast, lambda window: window["requestsPerSecond"])
    return slopes | {
        "abreastUpTo": max(run["size"] for run in abreast),
        "fixedCores": rounded(cores[0]),
        "coresPerThousand": rounded(1000 * cores[1]),
        "requestsPerSecondPerThousand": rounded(1000 * requests[1]),
    }


def _keeps_up(run: Document) -> bool:
    """Return whether the operator runs about as many passes as are due."""
    window = run["windows"]["training"]
    due = run["size"] * window["seconds"] / LOOK_SECONDS
    return bool(window["passes"]["number"] >= MIN_LOOKS * due)


def _line(runs: Sequence[Document], read: Callable[[Document], float]) -> tuple[float, float]:
    """Return intercept and slope of the least-squares line over the sizes."""
    found = [read(_window(run, "training")) for run in runs]
    slope, begin = np.polyfit([run["size"] for run in runs], found, 1)
    return float(begin), float(slope)


def _judge(
    rises: Sequence[Document],
    slopes: Document | None,
    asleep: Sequence[Document],
    silent: Sequence[Document],
) -> list[Document]:
    found = [
        _bar(
            f"time to steady state of {rise['size']} over a bare client's",
            MAX_RATIO,
            rise["ratio"]["median"],
        )
        for rise in rises
    ]
    if slopes is not None:
        found.append(
            _bar("KiB of memory an experiment that trains", MAX_KIB_EACH, slopes["kibEach"])
        )
    found += [
        _bar(
            f"writes for {run['size']} that do not run",
            0,
            run["windows"]["asleep"]["writes"],
        )
        for run in asleep
    ]
    found += [
        _bar(
            f"median seconds of an edit while {row['size']} heads of another tenant never answer",
            MAX_EDIT_SECONDS,
            row["editSeconds"]["median"],
        )
        for row in silent
    ]
    return found


def _bar(what: str, most: float, found: float) -> Document:
    return {"bar": what, "most": most, "found": found, "met": found <= most}


def _explain_indicative(runs: Sequence[Document], load: float) -> list[str]:
    """Return the reasons why the results are only indicative; none if they are not."""
    rounds, largest = max(run["round"] for run in runs), max(run["size"] for run in runs)
    commits = _commits(runs)
    reasons = {
        f"{rounds} rounds, not {MIN_ROUNDS}": rounds < MIN_ROUNDS,
        f"at most {largest} experiments, not {MIN_SIZE}": largest < MIN_SIZE,
        f"other work ran before it, load average {load}": load > MAX_LOAD,
        f"runs of several commits: {', '.join(commits)}": len(commits) > 1,
    }
    return [reason for reason, holds in reasons.items() if holds]
