"""Merges the results of several runs: the cells of a later run replace those of an earlier one.

Both sides of a comparison come from the same run, where they took turns on one machine. Runs may be
of different machines, since only ratios are compared; each run records its machine. The rows, and
the checksums of all columns at each level, must be equal in all runs.

    earlier results, new results -> the cells of both; the new one if both have a cell

The field `run` of an entry is its index in `runs`. Entries that are measured together (the ablation
of a layout, training) are replaced together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.reporting.bars import judge
from benchmarks.dataloading.settings import base_of

Document = dict[str, Any]
Key = Callable[[Document, Document], tuple[object, ...]]  # from an entry and the machine of its run
# The fields that identify a run.
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
    """Return the results of a single run with the field `run` in each entry."""
    run = {field: results[field] for field in RUN_FIELDS}
    entries = {name: [row | {"run": 0} for row in results[name]] for name in _ENTRIES}
    return {**results, **entries, "runs": [run]}


def merge_results(before: Document, now: Document, subject: str) -> Document:
    """Return the results with the cells of both.

    Args:
        before: results of `number_runs` or of this function.
        now: results of `number_runs`.
        subject: the loader whose entries on flat, expanded files have targets in seconds.

    Raises:
        BenchmarkError: the results are of different tables, or their rows differ.
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
    """Return the key of an ablation: variants are replaced together with their base."""
    return (base_of(row["variant"]),)


def _of_throughput(row: Document, machine: Document) -> tuple[object, ...]:
    """Return the key of a throughput: a cell on a machine; with training, all loaders together."""
    if row["consumer"] == "train":
        return "train", row["level"]
    return (*(row[field] for field in _TAKEN), *machine.items())


# By part of the results: new entries replace earlier ones with the same key.
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
    """Join entries: new ones take the place of the first with their key; new keys come last."""
    found: dict[object, list[Document]] = {}
    for row in before:
        found.setdefault(key(row, machines[row["run"]]), []).append(row)
    replaced: dict[object, list[Document]] = {}
    for row in now:
        replaced.setdefault(key(row, machines[row["run"]]), []).append(row)
    return [row for rows in (found | replaced).values() for row in rows]


def _forget_unused(entries: dict[str, list[Document]]) -> dict[str, list[Document]]:
    """Remove the calibrations of runs without remaining entries."""
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
