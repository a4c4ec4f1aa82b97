"""Metrics of one column: mean, quantiles, number of different values, most frequent values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime, time
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime import hashing
from pipeline_runtime.measuring.base import (
    NO_ROWS,
    MergesValues,
    Result,
    describe_rows,
    list_columns,
    read_columns,
)
from pipeline_runtime.measuring.exact import (
    Floats,
    Ints,
    divide,
    sum_exactly,
    sum_products,
    to_exact,
)
from pipeline_runtime.measuring.values import Histogram, Sample, State, Sums

JsonScalar: TypeAlias = str | int | bool | None

# The first bits of a float64: sign, exponent, and 12 of the significand. So a quantile is at most
# 2**-12 (0.025 %) too close to 0, and integers up to 8,192 are exact.
_QUANTILE_BITS = 24
_SIGN_BIT = np.uint64(1 << 63)
# Smallest hashes to count different values by: a standard error of 1.1 %.
DISTINCT_SAMPLE = 8192
# Longer texts are cut in results.
_MAX_TEXT_CHARS = 200
# JSON readers round larger integers.
_MAX_SAFE_INTEGER = (1 << 53) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(MergesValues):
    """The mean of a column, weighted by another one."""

    column: str
    weight: str | None = None

    @property
    def columns(self) -> frozenset[str]:
        return list_columns(self.column, self.weight)

    def empty(self) -> State:
        return {"rows": NO_ROWS, "sums": Sums((0, 0))}

    def update(self, table: pa.Table) -> State:
        read = read_columns(table, column=self.column, weight=self.weight)
        values_N = read["column"]
        if self.weight is None:
            sums = (sum_exactly(values_N), to_exact(len(values_N)))
        else:
            sums = (sum_products(values_N, read["weight"]), sum_exactly(read["weight"]))
        return {"rows": read.counts(), "sums": Sums(sums)}

    def finish(self, state: State) -> Result:
        rows, sums = state["rows"], state["sums"]
        assert isinstance(rows, Sums)
        assert isinstance(sums, Sums)
        total, weight = sums.numbers
        return describe_rows(rows) | {"value": divide(total, weight) if weight else None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles(MergesValues):
    """Quantiles of a column: the smallest value that is at least as large as a share of the rows.

    Attributes:
        at: shares, from 0 to 1.
    """

    column: str
    at: tuple[Fraction, ...]

    @property
    def columns(self) -> frozenset[str]:
        return list_columns(self.column)

    def empty(self) -> State:
        return {"rows": NO_ROWS, "column": Histogram.empty(1 << _QUANTILE_BITS, 1)}

    def update(self, table: pa.Table) -> State:
        read = read_columns(table, column=self.column)
        buckets_N = _find_buckets(read["column"])
        empty = Histogram.empty(1 << _QUANTILE_BITS, 1)
        return {"rows": read.counts(), "column": empty.count(buckets_N, np.zeros_like(buckets_N))}

    def finish(self, state: State) -> Result:
        rows, histogram = state["rows"], state["column"]
        assert isinstance(rows, Sums)
        assert isinstance(histogram, Histogram)
        ranks = np.cumsum(histogram.whole_BC[:, 0])
        lines = []
        for share in self.at:
            value = None
            if len(ranks):
                rank = max(1, math.ceil(share * int(ranks[-1])))
                value = _find_value(int(histogram.buckets_B[np.searchsorted(ranks, rank)]))
            lines.append({"at": float(share), "value": value})
        return describe_rows(rows) | {"value": None, "quantiles": lines}


def _find_buckets(values_N: Floats) -> Ints:
    """Return the first bits of float64 values, in an order that is that of the values."""
    patterns_N = values_N.view(np.uint64)
    ordered_N = np.where(patterns_N & _SIGN_BIT, ~patterns_N, patterns_N | _SIGN_BIT)
    return (ordered_N >> np.uint64(64 - _QUANTILE_BITS)).astype(np.int64)


def _find_value(bucket: int) -> float:
    """Return the value of a bucket that is closest to 0."""
    ordered = np.array([bucket << (64 - _QUANTILE_BITS)], dtype=np.uint64)
    if ordered[0] & _SIGN_BIT:
        return float((ordered ^ _SIGN_BIT).view(np.float64)[0])
    last = ordered | np.uint64((1 << (64 - _QUANTILE_BITS)) - 1)
    return float((~last).view(np.float64)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct(MergesValues):
    """The number of different values of a column, without nulls."""

    column: str
    limit: int = DISTINCT_SAMPLE

    @property
    def columns(self) -> frozenset[str]:
        return list_columns(self.column)

    def empty(self) -> State:
        return {"rows": NO_ROWS, "values": Sample.empty(self.limit)}

    def update(self, table: pa.Table) -> State:
        column, rows = _read_values(table, self.column)
        values, _ = Sample.empty(self.limit).count(hashing.hash_values(column))
        return {"rows": rows, "values": values}

    def finish(self, state: State) -> Result:
        rows, values = state["rows"], state["values"]
        assert isinstance(rows, Sums)
        assert isinstance(values, Sample)
        error = 0.0 if values.is_complete else 1 / math.sqrt(self.limit - 2)
        return describe_rows(rows) | {"value": values.estimate(), "relativeStandardError": error}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(MergesValues):
    """The most frequent values of a column, if it has at most `limit` different ones.

    Of a column with more, these are the most frequent ones of a random sample of its values.
    """

    column: str
    k: int
    limit: int

    @property
    def columns(self) -> frozenset[str]:
        return list_columns(self.column)

    def empty(self) -> State:
        return {"rows": NO_ROWS, "values": Sample.empty(self.limit, has_texts=True)}

    def update(self, table: pa.Table) -> State:
        column, rows = _read_values(table, self.column)
        empty = Sample.empty(self.limit, has_texts=True)
        values, first = empty.count(hashing.hash_values(column))
        texts = tuple(map(to_json, column.take(pa.array(first)).to_pylist()))
        return {"rows": rows, "values": values.with_texts(texts)}

    def finish(self, state: State) -> Result:
        rows, values = state["rows"], state["values"]
        assert isinstance(rows, Sums)
        assert isinstance(values, Sample)
        # Equal counts are in the order of the hashes.
        order = np.argsort(-values.counts_K, kind="stable")[: self.k]
        pairs = [(values.texts_K[place], int(values.counts_K[place])) for place in order.tolist()]
        return describe_rows(rows) | {
            "value": None,
            "isComplete": values.is_complete,
            "top": [{"value": text, "rows": count} for text, count in pairs],
        }


def _read_values(table: pa.Table, name: str) -> tuple[pa.ChunkedArray, Sums]:
    """Return the values of a column that are not null, and the number of rows."""
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    read = read_columns(table, group=name)
    counts = Sums((read.num_rows, 0, 0, 0, 0, read.left_out["group"]))
    return column.filter(pa.array(read.is_used)), counts


def to_json(value: Any) -> JsonScalar:
    """Return a value of a column as JSON has it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _MAX_SAFE_INTEGER else str(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}…"
