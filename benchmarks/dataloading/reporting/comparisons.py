"""Comparisons: one entry per cell of the subject and per peer, by paired rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.dataloading.measuring.epochs import Epoch
from benchmarks.dataloading.measuring.rounds import Round
from benchmarks.dataloading.peers import FLOORS, SUBJECT, Contender
from benchmarks.dataloading.reporting.ratios import Ratio, pair_ratios
from benchmarks.dataloading.settings import Measured

Document = dict[str, Any]


def build_comparisons(measured: Measured) -> list[Document]:
    """Build the entries of all levels in their order. Cells of the subject are not compared."""
    return [
        _compare(measured, level, subject, peer)
        for level, rounds in measured.rounds.items()
        for subject in measured.settings.contenders
        if subject.loader == SUBJECT
        for peer in _peers(rounds.kept[0])
    ]


def _peers(first: Round) -> Iterator[Contender]:
    yield from (contender for contender in first.epochs if contender.loader != SUBJECT)
    yield from first.calibration


def _compare(measured: Measured, level: str, subject: Contender, peer: Contender) -> Document:
    rows = measured.settings.table.rows
    kept = measured.rounds[level].kept
    mine, others = epochs_of(kept, subject), epochs_of(kept, peer)
    steady = [[e.steady_rows_per_second(rows) for e in side] for side in (mine, others)]
    whole = [[e.rows_per_second(rows) for e in side] for side in (mine, others)]
    proofs = measured.proofs[level]
    return {
        "subject": SUBJECT,
        "peer": peer.named_for(subject),
        "layout": subject.layout,
        "form": subject.form,
        "work": level,
        **_fields("ratio", pair_ratios(*steady)),
        "peak_memory_bytes": proofs[subject].peak_bytes,
        "equal_rows": _are_equal(measured, level, subject, peer),
        "peer_layout": peer.layout,
        "peer_form": peer.form,
        "peer_peak_memory_bytes": proofs[peer].peak_bytes,
        "rows_per_second": rounded(statistics.median(steady[0])),
        "peer_rows_per_second": rounded(statistics.median(steady[1])),
        **_fields("epoch_ratio", pair_ratios(*whole)),
        "rounds": len(kept),
    }


def _fields(name: str, ratio: Ratio) -> Document:
    bounds = {f"{name}_low": ratio.low, f"{name}_high": ratio.high}
    known = {key: None if value is None else rounded(value) for key, value in bounds.items()}
    return {f"{name}_median": rounded(ratio.median), **known}


def epochs_of(rounds: Iterable[Round], contender: Contender) -> list[Epoch]:
    """Return a contender's epochs by round; those of a decode floor are the calibrations."""
    return [
        found.calibration[contender] if contender.loader in FLOORS else found.epochs[contender]
        for found in rounds
    ]


def _are_equal(measured: Measured, level: str, subject: Contender, peer: Contender) -> bool:
    """Return whether both proofs are equal. A decode floor only has to decode every row."""
    proofs = measured.proofs[level]
    if peer.loader not in FLOORS:
        return proofs[subject].sums == proofs[peer].sums
    return proofs[peer].rows_out == measured.settings.table.rows


def starts_of(epochs: Sequence[Epoch]) -> list[float]:
    """Return the seconds from the start of a process to its first batch, if measured."""
    return [epoch.cold_seconds for epoch in epochs if epoch.cold_seconds is not None]


def next_starts_of(epochs: Sequence[Epoch]) -> list[float]:
    """Return the seconds from an epoch's end to the next one's first batch, if measured."""
    found = (epoch.next_first_batch_seconds for epoch in epochs)
    return [seconds for seconds in found if seconds is not None]


def describe_ratio(ratio: Ratio) -> dict[str, float | None]:
    """Return a ratio as a field of the results."""
    return {
        "ratio_median": rounded(ratio.median),
        "ratio_low": None if ratio.low is None else rounded(ratio.low),
        "ratio_high": None if ratio.high is None else rounded(ratio.high),
    }


def rounded(value: float) -> float:
    """Round to four significant digits; more would only look exact."""
    return float(f"{value:.4g}")
