"""A row of the page: what was compared, the bounds of its measure, and if the target is met."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.dataloading.reporting.comparisons import describe_ratio, rounded
from benchmarks.dataloading.reporting.ratios import Ratio, pair_ratios
from benchmarks.iceberg.programs import Epoch
from benchmarks.records import Document


def build_row(
    *,
    subject: str,
    peer: str,
    measure: str,
    values: Sequence[float],
    at_least: float | None = None,
    at_most: float | None = None,
    not_run: str = "",
    note: str = "",
    epochs: Mapping[str, Sequence[Epoch]] | None = None,
) -> Document:
    """Return a row of the results.

    Args:
        values: of the measure, one for each round. Ratios of several rounds have bounds.
        at_least, at_most: the target, by the lower or upper bound; by the median if there is none.
        not_run: why there are no values.
        note: what else was found; shown beside the result.
        epochs: of the arms `subject` and `peer`, round by round.
    """
    target = {"at_least": at_least, "at_most": at_most}
    names = {"subject": subject, "peer": peer, "measure": measure}
    entry: Document = names | {key: bar for key, bar in target.items() if bar is not None}
    if not_run or not values:
        return entry | {"not_run": not_run or "no round"}
    ratio = _find_bounds(values)
    low, high = ratio.low or ratio.median, ratio.high or ratio.median
    is_met = None
    if at_least is not None or at_most is not None:
        is_met = (at_least is None or low >= at_least) and (at_most is None or high <= at_most)
    entry |= {"rounds": len(values), **describe_ratio(ratio), "is_met": is_met}
    if note:
        entry["note"] = note
    for arm, measured in (epochs or {}).items():
        entry[arm + "_rows"] = measured[0].rows
        entry[arm + "_seconds"] = [rounded(epoch.seconds) for epoch in measured]
        peak = statistics.median(epoch.peak_bytes for epoch in measured)
        entry[arm + "_peak_mebibytes"] = round(peak / 2**20)
    return entry


def _find_bounds(values: Sequence[float]) -> Ratio:
    """Return the median and, of positive values of several rounds, its bounds."""
    if len(values) > 1 and min(values) > 0:
        return pair_ratios(values, [1.0] * len(values))
    return Ratio(median=statistics.median(values), low=None, high=None)
