"""The interface of accumulators, and how they read the columns that they measure.

Values that a metric cannot use are left out of it and counted: a null, a score that is NaN, a label
that is neither 0 nor 1, a weight below 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.measuring.exact import MAX_WEIGHT, Bools, Floats
from pipeline_runtime.measuring.values import State, Sums, merge_states

# A result as JSON: `value`, `rows`, `leftOut`, and what else a kind of metric has.
Result = dict[str, Any]

# Columns of a metric, in the order in which a bad value is looked for.
_REASONS = ("group", "score", "label", "weight", "column")


class Merging(Protocol):
    """States of rows in any number of parts, and their merge; frozen and picklable."""

    def empty(self) -> State:
        """Return the state of no row."""
        ...

    def merge(self, states: Sequence[State]) -> State:
        """Return the state of the rows of all states; at least one is given."""
        ...


class Accumulator(Merging, Protocol):
    """A metric over rows in any number of parts."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it reads."""
        ...

    def update(self, table: pa.Table) -> State:
        """Return the state of these rows."""
        ...

    def finish(self, state: State) -> Result:
        """Return the metric, which depends on the state alone."""
        ...


class MergesValues:
    """The part of an accumulator whose values merge by themselves."""

    __slots__ = ()

    def merge(self, states: Sequence[State]) -> State:
        """Return the state of the rows of all states."""
        return merge_states(states)


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Columns of the rows that a metric can use, as float64, and how many rows it left out."""

    values: Mapping[str, Floats]
    is_used: Bools
    left_out: Mapping[str, int]

    @property
    def num_rows(self) -> int:
        return int(self.is_used.sum())

    def __getitem__(self, role: str) -> Floats:
        return self.values[role]

    def counts(self) -> Sums:
        """Return the rows that are used, and those left out for each reason."""
        return Sums((self.num_rows, *(self.left_out.get(reason, 0) for reason in _REASONS)))


NO_ROWS = Sums((0,) * (1 + len(_REASONS)))


def read_columns(
    table: pa.Table,
    *,
    label: str | None = None,
    weight: str | None = None,
    score: str | None = None,
    column: str | None = None,
    group: str | None = None,
    is_probability: bool = False,
    is_binary: bool = True,
) -> Read:
    """Read the columns of a metric.

    Args:
        label: 0 and 1, or any number that is not negative unless `is_binary`.
        score: any number, or one from 0 to 1 if `is_probability`.
        group: rows without a value are left out.
    """
    values: dict[str, Floats] = {}
    is_good: dict[str, Bools] = {}
    if group is not None:
        is_good["group"] = ~_find_nulls(table.column(group))
    if score is not None:
        values["score"], good = _read(table.column(score))
        if is_probability:
            good &= (values["score"] >= 0) & (values["score"] <= 1)
        is_good["score"] = good
    if label is not None:
        values["label"], good = _read(table.column(label))
        labels = values["label"]
        allowed = (labels == 0) | (labels == 1) if is_binary else _is_amount(labels)
        is_good["label"] = good & allowed
    if weight is not None:
        values["weight"], good = _read(table.column(weight))
        is_good["weight"] = good & _is_amount(values["weight"])
    if column is not None:
        values["column"], good = _read(table.column(column))
        is_good["column"] = good & np.isfinite(values["column"])
    is_used = np.ones(table.num_rows, dtype=np.bool_)
    left_out = {}
    for role, good in is_good.items():
        left_out[role] = int((is_used & ~good).sum())
        is_used &= good
    if not is_used.all():
        values = {role: value[is_used] for role, value in values.items()}
    return Read(values, is_used, left_out)


def _is_amount(values: Floats) -> Bools:
    return (values >= 0) & (values <= MAX_WEIGHT)


def _find_nulls(column: pa.ChunkedArray) -> Bools:
    """Return true for nulls, those of a dictionary included."""
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    return np.asarray(column.is_null())


def _read(column: pa.ChunkedArray) -> tuple[Floats, Bools]:
    """Return a column of numbers or booleans as float64, and true where there is a number."""
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    kind = column.type
    if pa.types.is_decimal(kind) or pa.types.is_boolean(kind) or pa.types.is_float16(kind):
        column = pc.cast(column, pa.float64(), safe=False)
    is_good = np.asarray(column.is_valid())
    if not is_good.all():
        column = pc.fill_null(column, pa.scalar(0).cast(column.type))
    values = np.asarray(column.to_numpy(), dtype=np.float64)
    values = values + 0.0  # −0 and 0 are one score
    return values, is_good & ~np.isnan(values)


def describe_rows(counts: Sums) -> Result:
    """Return the fields of a result about rows."""
    rows, *left_out = counts.numbers
    found = {role: n for role, n in zip(_REASONS, left_out, strict=True) if n}
    return {"rows": rows, "leftOut": found}


def list_columns(*names: str | None) -> frozenset[str]:
    """Return the names that are given."""
    return frozenset(_drop_none(names))


def _drop_none(names: Iterable[str | None]) -> Iterable[str]:
    return (name for name in names if name is not None)
