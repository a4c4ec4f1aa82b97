"""The strategy of a join: the whole side table in memory, parts of it, or parts written first.

`choose_strategy` decides when a step is bound, from the buckets of both tables and the size of the
side table alone. No strategy changes a row of the result.

    Broadcast   the side table fits in maxBytes: each worker has all of it
    Bucket      both tables have buckets by a key: a worker has the parts for the buckets it reads
    Exchange    only the rows have such buckets: the side table is written to parts of them first
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline_runtime.errors import SourceError
from pipeline_runtime.formatting import format_bytes
from pipeline_runtime.plan.bucketed_sides import INDEX_BYTES_PER_ROW
from pipeline_runtime.sources import Bucketing, Unit
from pipeline_runtime.steps.base import SideTableRequest
from pipeline_runtime.steps.checks import broken

Strategy = Literal["Broadcast", "Bucket", "Exchange"]
_STRATEGIES: tuple[Strategy, ...] = ("Broadcast", "Bucket", "Exchange")

# An exchange makes so many parts for each bucket that this many of them fit in maxBytes, as readers
# have eight buckets open, and twice as many while they move on.
_PARTS_IN_MEMORY = 16
_MAX_PARTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFacts:
    """The facts about a side table on which the strategy depends.

    Attributes:
        num_bytes: of the needed columns, uncompressed; an upper bound if there is a `where`.
        stored_bytes: of the same, as stored.
        units: those that may have rows that the join needs.
    """

    description: str
    bucketing: Bucketing | None
    num_bytes: int
    stored_bytes: int
    units: Sequence[Unit]

    def describe(self) -> tuple[str, str]:
        """Return the work and the memory of a table that is read as a whole, for people."""
        files = len({unit.place for unit in self.units})
        index = INDEX_BYTES_PER_ROW * sum(unit.num_rows for unit in self.units)
        return (
            f"reads {files} files of the side table, about {format_bytes(self.stored_bytes)}",
            f"peak memory per reader about {format_bytes(self.num_bytes + index)}",
        )

    def bytes_of_parts(self, num_parts: int) -> list[int]:
        """Return the size in memory of each part of so many, if all rows are equally large."""
        rows = [0] * num_parts
        for unit in self.units:
            if unit.bucket is not None and unit.bucket >= 0:
                rows[unit.bucket % num_parts] += unit.num_rows
        bytes_per_row = self.num_bytes / max(1, sum(unit.num_rows for unit in self.units))
        return [int((bytes_per_row + INDEX_BYTES_PER_ROW) * count) for count in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinChoice:
    """The strategy of a join, and why not the others.

    Attributes:
        key: the number of the key that the buckets are of.
        num_parts: number of the side table's parts.
        reasons: why a strategy cannot or need not be taken.
    """

    strategy: Strategy
    key: int = 0
    num_parts: int = 1
    num_row_buckets: int = 1
    num_side_buckets: int | None = None
    reasons: Mapping[Strategy, str]

    def describe(self) -> tuple[str, ...]:
        """Return the choice as lines for people."""
        line = f"strategy {self.strategy}: each worker has the whole side table in memory"
        if self.strategy == "Bucket":
            line = (
                f"strategy Bucket: N = {self.num_row_buckets} buckets of the rows, "
                f"M = {self.num_side_buckets} of the side table, so g = {self.num_parts} parts, "
                "which a worker loads when rows need them"
            )
        elif self.strategy == "Exchange":
            line = (
                f"strategy Exchange: the side table is read once and written to {self.num_parts} "
                f"parts, for the {self.num_row_buckets} buckets of the rows"
            )
        return (line, *(f"not {name}: {reason}" for name, reason in self.reasons.items()))


def choose_strategy(request: SideTableRequest, side: SideFacts) -> JoinChoice:
    """Return the strategy that the step asks for or, if it is Auto, the first that fits.

    Raises:
        ManifestError: the tables do not allow the strategy that the step asks for.
        SourceError: the side table fits in no way.
    """
    reasons = _find_reasons(request, side)
    if request.strategy != "Auto":
        wanted: Strategy = request.strategy  # type: ignore[assignment]  # the model has checked it
        if wanted != "Broadcast" and wanted in reasons:
            raise broken(
                f"must be a strategy that the tables allow, got {wanted}, but {reasons[wanted]}",
                "strategy",
            )
        others = {name: f"the step asks for {wanted}" for name in _STRATEGIES if name != wanted}
        return _build_choice(wanted, request, side, others)
    possible = [name for name in _STRATEGIES if name not in reasons]
    if not possible and request.where is None:
        raise SourceError(_explain_refusal(request, side, reasons))
    chosen: Strategy = next(iter(possible), "Broadcast")  # `where` may leave little enough
    unneeded = {name: _UNNEEDED[chosen] for name in possible if name != chosen}
    choice = _build_choice(chosen, request, side, reasons | unneeded)
    if chosen == "Bucket" and "Exchange" in possible:
        largest = max(side.bytes_of_parts(choice.num_parts))
        if largest > request.max_bytes:
            reasons["Bucket"] = (
                f"the largest of {choice.num_parts} parts has {largest:,} bytes, more than "
                f"maxBytes ({request.max_bytes:,} bytes)"
            )
            return _build_choice("Exchange", request, side, reasons)
    return choice


# Why Auto takes no later strategy than the one that it takes.
_UNNEEDED: Mapping[Strategy, str] = {
    "Broadcast": "it is not needed, because the whole side table fits in maxBytes",
    "Bucket": "it is not needed, because both tables have buckets by the key",
    "Exchange": "it is not needed",
}


def _find_reasons(request: SideTableRequest, side: SideFacts) -> dict[Strategy, str]:
    """Return why each of the strategies cannot be taken; those that can are not in it."""
    reasons: dict[Strategy, str] = {}
    if side.num_bytes > request.max_bytes:
        reasons["Broadcast"] = (
            f"the side table has {side.num_bytes:,} bytes, more than maxBytes "
            f"({request.max_bytes:,} bytes)"
        )
    rows = request.bucketing
    if rows is None or rows.column not in request.left_keys:
        keys = " or ".join(request.left_keys)
        found = f"their buckets are by {rows.column}" if rows else "they have none"
        reasons["Bucket"] = reasons["Exchange"] = (
            f"the rows must have buckets by {keys}, but {found}; {_HOW_TO_BUCKET} {keys}"
        )
        return reasons
    right = request.right_keys[request.left_keys.index(rows.column)]
    if side.bucketing is None or side.bucketing.column != right:
        found = f"its buckets are by {side.bucketing.column}" if side.bucketing else "it has none"
        reasons["Bucket"] = (
            f"the side table must have buckets by {right}, but {found}; {_HOW_TO_BUCKET} {right}"
        )
    elif old := sorted({unit.place for unit in side.units if unit.bucket is None}):
        more = f" and {len(old) - 1} more" if len(old) > 1 else ""
        reasons["Bucket"] = (
            f"each file of the side table must have a bucket by {right}, but {old[0]}{more} was "
            "written before the table's buckets changed; rewrite these files (Spark: CALL "
            "system.rewrite_data_files)"
        )
    return reasons


# What makes a table of buckets, up to the name of the column.
_HOW_TO_BUCKET = "write the table with output.iceberg.bucketBy:"


def _explain_refusal(
    request: SideTableRequest, side: SideFacts, reasons: Mapping[Strategy, str]
) -> str:
    return (
        f"side table {side.description}: must fit in maxBytes ({request.max_bytes:,} bytes), got "
        f"{side.num_bytes:,} bytes; raise maxBytes, name fewer columns, or narrow it with where. "
        + ". ".join(f"{name} is not possible: {why}" for name, why in _distinct(reasons).items())
    )


def _distinct(reasons: Mapping[Strategy, str]) -> Mapping[str, str]:
    """Return the reasons against the strategies that need buckets, each once."""
    bucket, exchange = reasons["Bucket"], reasons["Exchange"]
    if bucket == exchange:
        return {"A join by buckets": bucket}
    return {"Bucket": bucket, "Exchange": exchange}


def _build_choice(
    strategy: Strategy,
    request: SideTableRequest,
    side: SideFacts,
    reasons: Mapping[Strategy, str],
) -> JoinChoice:
    if strategy == "Broadcast":
        return JoinChoice(strategy=strategy, reasons=reasons)
    assert request.bucketing is not None  # else there is a reason against it
    num_rows = request.bucketing.num_buckets
    num_side = side.bucketing.num_buckets if side.bucketing and strategy == "Bucket" else None
    if num_side is not None:
        num_parts = math.gcd(num_rows, num_side)
    else:
        num_parts = num_rows
        while num_parts < _MAX_PARTS and side.num_bytes * _PARTS_IN_MEMORY > (
            request.max_bytes * num_parts
        ):
            num_parts += num_rows
    return JoinChoice(
        strategy=strategy,
        key=request.left_keys.index(request.bucketing.column),
        num_parts=num_parts,
        num_row_buckets=num_rows,
        num_side_buckets=num_side,
        reasons=reasons,
    )
