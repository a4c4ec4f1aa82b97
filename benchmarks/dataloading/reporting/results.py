"""Builds the document of results from measured epochs; docs/benchmarks.md has its schema.

`schedule` runs before it; `report` and `figure` print the document.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.dataloading.measuring.epochs import Epoch
from benchmarks.dataloading.measuring.rounds import Rounds
from benchmarks.dataloading.peers import (
    FLOORS,
    SUBJECT,
    Contender,
    describe_absent,
)
from benchmarks.dataloading.reporting.bars import MAX_LOAD, MIN_ROUNDS, MIN_ROWS, judge
from benchmarks.dataloading.reporting.comparisons import (
    build_comparisons,
    epochs_of,
    next_starts_of,
    rounded,
    starts_of,
)
from benchmarks.dataloading.reporting.merging import number_runs
from benchmarks.dataloading.settings import Measured, base_of
from benchmarks.dataloading.workloads import BATCH_SIZE

RESULTS_VERSION = 4
Document = dict[str, Any]
_MILLION = 1_000_000


def build_results(measured: Measured, environment: Mapping[str, Any]) -> Document:
    """Build the document of all measurements. `environment` describes the machine and versions."""
    settings = measured.settings
    comparisons = build_comparisons(measured)
    throughput = [row for level in measured.rounds for row in _level_rows(measured, level)]
    results = {
        "version": RESULTS_VERSION,
        "benchmark": "dataloading",
        "quick": settings.quick,
        "indicative": _explain_indicative(measured, environment["loadAverage"]),
        **environment,
        "rows": settings.table.rows,
        "rounds": settings.rounds,
        "comparisons": comparisons,
        "bars": judge(comparisons, _subjects(throughput)),
        "settings": {
            "tuningRows": settings.tuning_table.rows,
            "smallRows": settings.small.rows,
            "levels": list(settings.levels),
            "batchSize": BATCH_SIZE,
        },
        "calibration": [_calibration(level, found) for level, found in measured.rounds.items()],
        "throughput": throughput + _train_rows(measured),
        "absent": describe_absent(settings.loaders),
        "tuning": _tuning_rows(measured),
        "ablation": _ablation_rows(measured),
        "proof": {level: _proof(found) for level, found in measured.proofs.items()},
    }
    return number_runs(results)


def _explain_indicative(measured: Measured, loads: Sequence[float]) -> list[str]:
    """Return why this run cannot meet or miss a target; empty if it can."""
    settings = measured.settings
    reasons = ["a quick run: its speeds mean nothing"] if settings.quick else []
    if settings.table.rows < MIN_ROWS:
        reasons.append(f"{settings.table.rows:,} rows of {MIN_ROWS:,}")
    reasons += [
        f"{level}: {len(found.kept)} rounds of {MIN_ROUNDS}"
        for level, found in measured.rounds.items()
        if len(found.kept) < MIN_ROUNDS
    ]
    if settings.keeps_all_rounds and not settings.quick:
        reasons.append("rounds counted whatever their calibration")
    if loads[0] > MAX_LOAD:
        reasons.append(f"other work ran beside it: load average {loads[0]} at the start")
    return reasons


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, smallest and largest."""
    values = list(values)
    return {
        "median": rounded(statistics.median(values)),
        "min": rounded(min(values)),
        "max": rounded(max(values)),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    return spread(values) if values else None


def _subjects(throughput: Sequence[Document]) -> dict[str, Document]:
    """Return the subject's entries on flat, expanded files, by level."""
    cell = (SUBJECT, "flat", "expanded")
    return {r["level"]: r for r in throughput if (r["loader"], r["layout"], r["form"]) == cell}


def _calibration(level: str, rounds: Rounds) -> Document:
    """Return the machine's state: seconds of decoding before each round, dropped rounds."""
    return {
        "level": level,
        "rounds": len(rounds.kept),
        "repeated": len(rounds.set_aside),
        "seconds": {
            f"{floor.loader}, {floor.layout}": [rounded(r.calibration[floor].seconds) for r in kept]
            for kept in [rounds.kept]
            for floor in kept[0].calibration
        },
    }


def _level_rows(measured: Measured, level: str) -> list[Document]:
    """Return the rows of all contenders at a level, decoders included."""
    kept = measured.rounds[level].kept
    rows = []
    for contender in [*measured.settings.contenders, *kept[0].calibration]:
        epochs = epochs_of(kept, contender)
        row = _cell(contender, level, "take") | {"tuning": str(epochs[0].job.tuning)}
        row |= _figures(epochs, measured.settings.table.rows)
        starts = [e for who, e in measured.starts if who == contender]
        mine = [e for e in starts if e.job.workload.level == level]
        row["coldFirstBatchSeconds"] = _spread(starts_of(mine))
        row["nextFirstBatchSeconds"] = _spread(next_starts_of(epochs))
        row["peakMemoryBytes"] = measured.proofs[level][contender].peak_bytes
        rows.append(row)
    return rows


def _cell(contender: Contender, level: str, consumer: str) -> Document:
    return {
        "consumer": consumer,
        "level": level,
        "loader": contender.loader,
        "layout": contender.layout,
        "form": contender.form,
    }


def _train_rows(measured: Measured) -> list[Document]:
    kinds: dict[tuple[str, str], list[Epoch]] = {}
    for epoch in measured.train:
        kinds.setdefault((epoch.job.workload.level, epoch.job.loader), []).append(epoch)
    return [
        _cell(Contender(loader=loader, layout="flat", form="expanded"), level, "train")
        | {"tuning": str(epochs[0].job.tuning)}
        | _figures(epochs, measured.settings.small.rows)
        for (level, loader), epochs in kinds.items()
    ]


def _figures(epochs: Sequence[Epoch], rows_in: int) -> Document:
    first = epochs[0]
    return {
        "rowsIn": rows_in,
        "rowsOut": first.rows_out,
        "batches": first.batches,
        "bytesOut": None if first.job.loader in FLOORS else first.num_bytes,
        "seconds": [rounded(epoch.seconds) for epoch in epochs],
        "rowsPerSecond": spread(e.rows_per_second(rows_in) for e in epochs),
        "steadyRowsPerSecond": spread(e.steady_rows_per_second(rows_in) for e in epochs),
        "firstBatchSeconds": spread(e.first_batch_seconds for e in epochs),
        "cpuSecondsPerMillionRows": _cpu(epochs, rows_in),
        "profileSeconds": _profile(epochs),
    }


def _cpu(epochs: Sequence[Epoch], rows_in: int) -> dict[str, float] | None:
    known = [epoch.cpu_seconds for epoch in epochs if epoch.cpu_seconds is not None]
    return spread(seconds / rows_in * _MILLION for seconds in known) if known else None


def _profile(epochs: Sequence[Epoch]) -> dict[str, float]:
    names = epochs[0].profile
    return {
        name: rounded(statistics.median(epoch.profile[name] for epoch in epochs)) for name in names
    }


def _tuning_rows(measured: Measured) -> list[Document]:
    kinds: dict[tuple[str, Contender, str, int], list[Epoch]] = {}
    for contender, tuning, epoch, rows_in in measured.tuning:
        key = (epoch.job.workload.level, contender, str(tuning), rows_in)
        kinds.setdefault(key, []).append(epoch)
    return [
        {
            "level": level,
            "loader": contender.loader,
            "tuning": tuning,
            "layout": contender.layout,
            "form": contender.form,
            "rows": rows_in,
            "isChosen": str(measured.best[level, contender]) == tuning,
            "steadyRowsPerSecond": spread(e.steady_rows_per_second(rows_in) for e in epochs),
        }
        for (level, contender, tuning, rows_in), epochs in kinds.items()
    ]


def _ablation_rows(measured: Measured) -> list[Document]:
    by_name: dict[str, list[Epoch]] = {}
    for name, epoch in measured.ablation:
        by_name.setdefault(name, []).append(epoch)
    rows_in = measured.settings.table.rows
    return [
        {"variant": name, "where": epochs[0].job.workload.where}
        | _figures(epochs, rows_in)
        | {"ratio": _ratio(epochs, by_name[base_of(name)], lambda e: e.rows_per_second(rows_in))}
        for name, epochs in by_name.items()
    ]


def _ratio(
    epochs: Sequence[Epoch], base: Sequence[Epoch], speed: Callable[[Epoch], float]
) -> dict[str, float]:
    """Return the ratio of the pairs of each round."""
    return spread(speed(mine) / speed(other) for mine, other in zip(epochs, base, strict=True))


def _proof(found: Mapping[Contender, Epoch]) -> Document:
    """Return the sums of the proof, equal for all loaders: `schedule` refuses other results."""
    loaders = {who: epoch for who, epoch in found.items() if who.loader not in FLOORS}
    sums = next(iter(loaders.values())).sums
    columns = {k: f"{v:016x}" for k, v in sorted(sums.items()) if k != "rows"}
    agreed = [f"{who.loader} ({who.layout}, {who.form})" for who in loaders]
    return {"agreed": agreed, "rows": sums["rows"], "checksums": columns}
