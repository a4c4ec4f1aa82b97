"""From measured epochs to the document of results: medians, spread, ratios; schema in README.md.

`schedule` runs before it, `report` and `figure` print what it gives.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.dataloading.epochs import Epoch
from benchmarks.dataloading.hosts import LOADERS
from benchmarks.dataloading.schedule import (
    ALL_ON,
    TORCH_LOADERS,
    Measured,
    Table,
)
from benchmarks.dataloading.workloads import BATCH_SIZE, LEVELS

RESULTS_VERSION = 1
Document = dict[str, Any]
_MILLION = 1_000_000


def build_results(measured: Measured, environment: Mapping[str, Any]) -> Document:
    """Everything that was measured; `environment` says on what."""
    settings = measured.settings
    return {
        "version": RESULTS_VERSION,
        "benchmark": "dataloading",
        "quick": settings.quick,
        **environment,
        "settings": {
            "rows": settings.table.rows,
            "smallRows": settings.small.rows,
            "repeats": settings.repeats,
            "tuningRepeats": settings.tuning_repeats,
            "batchSize": BATCH_SIZE,
        },
        "throughput": [
            *_consumer_rows(measured.touch, "touch", settings.table),
            *_consumer_rows(measured.train, "train", settings.small),
        ],
        "tuning": _tuning_rows(measured),
        "ablation": _ablation_rows(measured),
        "proof": {level: _proof(found) for level, found in measured.proofs.items()},
    }


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, least and largest."""
    values = list(values)
    return {
        "median": _round(statistics.median(values)),
        "min": _round(min(values)),
        "max": _round(max(values)),
    }


def _round(value: float) -> float:
    """Four significant digits: more would only look exact."""
    return float(f"{value:.4g}")


def _consumer_rows(epochs: Sequence[Epoch], consumer: str, table: Table) -> list[Document]:
    rows = []
    for level in LEVELS:
        mine = [epoch for epoch in epochs if epoch.job.workload.level == level]
        if not mine:
            continue
        by_loader = {name: [e for e in mine if e.job.loader == name] for name in LOADERS}
        best = fastest(by_loader, TORCH_LOADERS)
        for name, repeats in by_loader.items():
            row: Document = {"consumer": consumer, "level": level, "loader": name}
            if name in TORCH_LOADERS:
                row |= {"workers": repeats[0].job.num_workers, "isBestDataloader": name == best}
            rows.append(row | _figures(repeats, by_loader[best], table.rows))
    return rows


def fastest(by_loader: Mapping[str, Sequence[Epoch]], names: Sequence[str]) -> str:
    """The loader of the shortest median epoch."""
    return min(names, key=lambda name: statistics.median(e.seconds for e in by_loader[name]))


def _figures(repeats: Sequence[Epoch], base: Sequence[Epoch], rows_in: int) -> Document:
    first = repeats[0]
    return {
        "rowsIn": rows_in,
        "rowsOut": first.rows_out,
        "batches": first.batches,
        "bytesOut": first.num_bytes,
        "seconds": [_round(epoch.seconds) for epoch in repeats],
        "rowsPerSecond": spread(e.rows_per_second(rows_in) for e in repeats),
        "steadyRowsPerSecond": spread(e.steady_rows_per_second(rows_in) for e in repeats),
        "firstBatchSeconds": spread(e.first_batch_seconds for e in repeats),
        "cpuSecondsPerMillionRows": _cpu(repeats, rows_in),
        "ratio": _ratio(repeats, base, lambda e: e.rows_per_second(rows_in)),
        "steadyRatio": _ratio(repeats, base, lambda e: e.steady_rows_per_second(rows_in)),
        "profileSeconds": _profile(repeats),
    }


def _ratio(
    repeats: Sequence[Epoch], base: Sequence[Epoch], speed: Callable[[Epoch], float]
) -> dict[str, float]:
    """The ratio of the medians, and the least and largest of one round's two epochs."""
    pairs = [speed(mine) / speed(other) for mine, other in zip(repeats, base, strict=True)]
    medians = [statistics.median(speed(epoch) for epoch in side) for side in (repeats, base)]
    return spread(pairs) | {"median": _round(medians[0] / medians[1])}


def _cpu(repeats: Sequence[Epoch], rows_in: int) -> dict[str, float] | None:
    known = [epoch.cpu_seconds for epoch in repeats if epoch.cpu_seconds is not None]
    return spread(seconds / rows_in * _MILLION for seconds in known) if known else None


def _profile(repeats: Sequence[Epoch]) -> dict[str, float]:
    names = repeats[0].profile
    return {
        name: _round(statistics.median(epoch.profile[name] for epoch in repeats)) for name in names
    }


def _tuning_rows(measured: Measured) -> list[Document]:
    rows: dict[tuple[str, str, int], list[float]] = {}
    for epoch in measured.tuning:
        key = (epoch.job.workload.level, epoch.job.loader, epoch.job.num_workers)
        rate = epoch.rows_per_second(measured.settings.table.rows)
        rows.setdefault(key, []).append(rate)
    return [
        {
            "level": level,
            "loader": loader,
            "workers": workers,
            "isChosen": measured.workers[level, loader] == workers,
            "rowsPerSecond": spread(rates),
        }
        for (level, loader, workers), rates in rows.items()
    ]


def _ablation_rows(measured: Measured) -> list[Document]:
    by_name = {
        name: [epoch for found, epoch in measured.ablation if found == name]
        for name in measured.settings.ablations
    }
    base = by_name[ALL_ON]
    rows_in = measured.settings.table.rows
    return [
        {"variant": name, "where": repeats[0].job.workload.where} | _figures(repeats, base, rows_in)
        for name, repeats in by_name.items()
    ]


def _proof(found: Mapping[str, Mapping[str, int]]) -> Document:
    """The sums that all loaders agreed on; `schedule` refused anything else."""
    sums = next(iter(found.values()))
    columns = {k: f"{v:016x}" for k, v in sorted(sums.items()) if k != "rows"}
    return {"agreed": list(found), "rows": sums["rows"], "checksums": columns}
