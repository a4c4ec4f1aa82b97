"""A benchmark measured in several runs: the cells of a later one take their place among the others.

All that a comparison rests on is of one run: its two sides took turns there, on one machine. Runs
may be of several machines, since only ratios are compared; each says its own. What must be equal
between runs is checked: the rows, and the checksums of all columns at each level.

    results of before, results of now -> the cells of both, those of now where both have one

Entries say in `run` which of `runs` they are from; what is measured as one (a layout's ablation,
training) is replaced as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.reporting.bars import judge
from benchmarks.dataloading.settings import base_of

Document = dict[str, Any]
Key = Callable[[Document, Document], tuple[object, ...]]  # of an entry, and its run's machine
# What a run is known by.
RUN_FIELDS: Final = (
    "command",
    "commit",
    "finishedAt",
    "minutes",
    "machine",
    "loadAverage",
    "rounds",
)
_EQUAL: Final = ("version", "rows")
_TAKEN: Final = ("level", "loader", "layout", "form")
_COMPARED: Final = ("work", "layout", "form", "peer")


def number_runs(results: Document) -> Document:
    """The results of a single run, whose entries say so."""
    run = {field: results[field] for field in RUN_FIELDS}
    entries = {name: [row | {"run": 0} for row in results[name]] for name in _ENTRIES}
    return {**results, **entries, "runs": [run]}


def merge_results(before: Document, now: Document, subject: str) -> Document:
    """The cells of both.

    Args:
        before: results that `number_runs` or this function made.
        now: what `number_runs` made.
        subject: whose entries on flat, expanded files bars of seconds are about.

    Raises:
        BenchmarkError: they are not of one table, or their rows differ.
    """
    for name in _EQUAL:
        if before.get(name) != now[name]:
            raise BenchmarkError(
                f"--add: results of before must be of this table, got {name} "
                f"{before.get(name)!r} before and {now[name]!r} now"
            )
    if bool(before["indicative"]) != bool(now["indicative"]):
        one = "before" if before["indicative"] else "now"
        raise BenchmarkError(
            f"--add: what is indicative is not mixed with what measures bars, got results of {one} "
            f"that are: {'; '.join(before['indicative'] or now['indicative'])}"
        )
    runs = [*before["runs"], *now["runs"]]
    late = {n: [r | {"run": len(before["runs"])} for r in now[n]] for n in _ENTRIES}
    machines = [run["machine"] for run in runs]
    entries = {n: _join(before[n], late[n], key, machines) for n, key in _ENTRIES.items()}
    entries = _forget_unused(entries)
    subjects = {
        row["level"]: row
        for row in entries["throughput"]
        if (row["consumer"], row["loader"], row["layout"], row["form"])
        == ("take", subject, "flat", "expanded")
        and machines[row["run"]] == before["machine"]
    }
    took_part = {row["loader"] for row in entries["throughput"]}
    levels = sorted({row["level"] for row in entries["throughput"]})
    absent = {**before["absent"], **now["absent"]}
    return {
        **now,
        **entries,
        "machine": before["machine"],
        "runs": runs,
        "indicative": list(dict.fromkeys([*before["indicative"], *now["indicative"]])),
        "rounds": min(run["rounds"] for run in runs),
        "bars": judge(entries["comparisons"], subjects),
        "settings": now["settings"] | {"levels": levels},
        "versions": before["versions"] | now["versions"],
        "absent": {name: why for name, why in absent.items() if name not in took_part},
        "proof": _join_proofs(before["proof"], now["proof"]),
    }


def _by(*fields: str) -> Key:
    return lambda row, _: tuple(row[field] for field in fields)


def _of_ablation(row: Document, _: Document) -> tuple[object, ...]:
    """Variants are replaced together with what they are compared with."""
    return (base_of(row["variant"]),)


def _of_throughput(row: Document, machine: Document) -> tuple[object, ...]:
    """A cell each on each machine; with training only all loaders together make a measurement."""
    if row["consumer"] == "train":
        return "train", row["level"]
    return (*(row[field] for field in _TAKEN), *machine.items())


# By part of the results: entries of now replace those of before of the same key.
_ENTRIES: Final[dict[str, Key]] = {
    "comparisons": _by(*_COMPARED),
    "throughput": _of_throughput,
    "calibration": _by("level", "run"),
    "tuning": _by(*_TAKEN),
    "ablation": _of_ablation,
}


def _join(
    before: Sequence[Document], now: Sequence[Document], key: Key, machines: Sequence[Document]
) -> list[Document]:
    """In the place of the first of a key; new keys last."""
    found: dict[object, list[Document]] = {}
    for row in before:
        found.setdefault(key(row, machines[row["run"]]), []).append(row)
    replaced: dict[object, list[Document]] = {}
    for row in now:
        replaced.setdefault(key(row, machines[row["run"]]), []).append(row)
    return [row for rows in (found | replaced).values() for row in rows]


def _forget_unused(entries: dict[str, list[Document]]) -> dict[str, list[Document]]:
    """Without the calibrations of runs of which nothing is left."""
    used = {row["run"] for row in entries["comparisons"]}
    kept = [row for row in entries["calibration"] if row["run"] in used]
    return entries | {"calibration": kept}


def _join_proofs(before: Document, now: Document) -> Document:
    joined = dict(before)
    for level, proof in now.items():
        known = before.get(level)
        if known is None:
            joined[level] = proof
            continue
        if (known["rows"], known["checksums"]) != (proof["rows"], proof["checksums"]):
            raise BenchmarkError(
                f"--add: {level} work delivered other rows than in the results of before; the "
                "loaders or the table changed: measure them in one run"
            )
        agreed = list(dict.fromkeys([*known["agreed"], *proof["agreed"]]))
        joined[level] = {**proof, "agreed": agreed}
    return joined
