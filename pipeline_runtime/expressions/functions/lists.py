"""Functions on lists. Part of `functions`.

Positions count from 0 and from -1 at the end, as in Arrow and Python, so that "the last 50 clicks"
is `list_slice(clicks, -50)`. Everything works on offsets and flat values; nothing loops over rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.expressions import coercion, columns, types
from pipeline_runtime.expressions.functions.base import (
    Arguments,
    Function,
    Rule,
    argument_error,
    constant_int,
    define,
    need_list,
)
from pipeline_runtime.expressions.plan import (
    Datum,
    KernelError,
    Plan,
    build_apply,
    build_constant,
)
from pipeline_runtime.grammar.syntax_tree import Span

IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segments:
    """A list array taken apart: row i holds `values[starts[i] : starts[i] + sizes[i]]`."""

    values: pa.Array
    starts: IntArray
    sizes: IntArray
    is_null: np.ndarray[tuple[int], np.dtype[np.bool_]]


def _split(lists: pa.Array) -> _Segments:
    """Take a list array apart; a null row counts as empty, whatever its offsets say."""
    offsets = lists.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    is_null = pc.is_null(lists).to_numpy(zero_copy_only=False)
    sizes = np.where(is_null, 0, np.diff(offsets))
    return _Segments(values=lists.values, starts=offsets[:-1], sizes=sizes, is_null=is_null)


def _items(parts: _Segments) -> pa.Array:
    """The values of all rows, row after row; without a copy if nothing lies between the rows."""
    if np.array_equal(parts.starts[1:], (parts.starts + parts.sizes)[:-1]):
        start = int(parts.starts[0]) if len(parts.starts) else 0
        return parts.values.slice(start, int(parts.sizes.sum()))
    return parts.values.take(pa.array(_positions(parts.starts, parts.sizes)))


def _positions(starts: IntArray, sizes: IntArray) -> IntArray:
    """The positions of all values of all rows, row after row."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - sizes), sizes) + np.arange(total)


# -- length, element, slice ----------------------------------------------------------------------


def _length(span: Span, args: Arguments) -> Plan:
    def kernel(lists: Datum) -> Datum:
        return pc.list_value_length(lists).cast(pa.int64())

    return build_apply(span, "list_length", pa.int64(), kernel, need_list(args, 0))


def _element(span: Span, args: Arguments) -> Plan:
    lists, index = need_list(args, 0), args[1]
    is_whole = pa.types.is_integer(index.type) and not pa.types.is_uint64(index.type)
    if not (is_whole or pa.types.is_null(index.type)):
        raise argument_error(args, 1, f"must be an integer of at most int64, got {index.type}")
    wide = coercion.coerce(index, pa.int64())
    return build_apply(span, "list_element", lists.type.value_type, _take_element, lists, wide)


def _take_element(lists: Datum, index: Datum) -> Datum:
    lists, index = _as_arrays(lists, index)
    parts = _split(lists)
    position = pc.fill_null(index, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    position = np.where(position < 0, position + parts.sizes, position)
    is_inside = (position >= 0) & (position < parts.sizes)
    is_inside &= pc.is_valid(index).to_numpy(zero_copy_only=False)
    place = np.where(is_inside, parts.starts + position, 0)
    return parts.values.take(pa.array(place, mask=~is_inside))


def _as_arrays(lists: Datum, other: Datum) -> tuple[pa.Array, pa.Array]:
    if isinstance(lists, pa.Scalar):
        lists = pa.repeat(lists, len(other))
    if isinstance(other, pa.Scalar):
        other = pa.repeat(other, len(lists))
    return lists, other


def _slice(span: Span, args: Arguments) -> Plan:
    lists, start = need_list(args, 0), constant_int(args, 1)
    stop = constant_int(args, 2) if len(args) > 2 else None
    return build_apply(span, "list_slice", lists.type, partial(_take_slice, start, stop), lists)


def _take_slice(start: int, stop: int | None, lists: pa.Array) -> pa.Array:
    parts = _split(lists)
    first = _clip(start, parts.sizes)
    last = parts.sizes if stop is None else _clip(stop, parts.sizes)
    sizes = np.maximum(last - first, 0)
    values = parts.values.take(pa.array(_positions(parts.starts + first, sizes)))
    return columns.join_list(lists.type, sizes, values, pa.array(parts.is_null))


def _clip(position: int, sizes: IntArray) -> IntArray:
    counted = position + sizes if position < 0 else np.full_like(sizes, position)
    return np.clip(counted, 0, sizes)


# -- contains ------------------------------------------------------------------------------------


def _contains(span: Span, args: Arguments) -> Plan:
    lists, value = need_list(args, 0), args[1]
    item = lists.type.value_type
    # Stands for an item of the list, so that a literal takes its type.
    sample = build_constant(span, pa.scalar(None, item))
    dtype = coercion.common_type((sample, value))
    if dtype is None or not types.is_comparable(dtype):
        message = f"must be comparable with items of type {item}, got {value.type}"
        raise argument_error(args, 1, message)
    value = coercion.coerce(value, dtype)
    kernel = partial(_has_value, dtype)
    return build_apply(span, "list_contains", pa.bool_(), kernel, lists, value)


def _has_value(dtype: pa.DataType, lists: Datum, value: Datum) -> Datum:
    lists, value = _as_arrays(lists, value)
    parts = _split(lists)
    items = coercion.widen(_items(parts), dtype)
    rows = np.repeat(np.arange(len(parts.sizes)), parts.sizes)
    hits = pc.fill_null(pc.equal(items, value.take(pa.array(rows))), False)
    found = np.zeros(len(parts.sizes), dtype=np.bool_)
    found[rows[hits.to_numpy(zero_copy_only=False)]] = True
    is_null = parts.is_null | pc.is_null(value).to_numpy(zero_copy_only=False)
    return pa.array(found, mask=is_null)


# -- sum, minimum, maximum -----------------------------------------------------------------------


def _reduction(name: str, ufunc: np.ufunc) -> Rule:
    """A rule for a reduction: null items are left out, a row with no item left gives null."""

    def rule(span: Span, args: Arguments) -> Plan:
        lists = need_list(args, 0)
        item = lists.type.value_type
        if not (pa.types.is_integer(item) or pa.types.is_floating(item)):
            raise argument_error(args, 0, f"must be a list of integers or floats, got {lists.type}")
        is_sum = ufunc is np.add
        dtype = _sum_type(item) if is_sum else item
        kernel = partial(_reduce, ufunc, dtype)
        return build_apply(span, name, dtype, kernel, lists, is_partial=is_sum)

    return rule


def _sum_type(item: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(item):
        return pa.float64()
    return pa.uint64() if pa.types.is_uint64(item) else pa.int64()


def _reduce(ufunc: np.ufunc, dtype: pa.DataType, lists: pa.Array) -> pa.Array:
    parts = _split(lists)
    items = _items(parts)
    rows = np.repeat(np.arange(len(parts.sizes)), parts.sizes)
    rows = rows[items.is_valid().to_numpy(zero_copy_only=False)]
    sizes = np.bincount(rows, minlength=len(parts.sizes))
    is_empty = sizes == 0
    values = items.drop_null().cast(dtype).to_numpy(zero_copy_only=False)
    starts = (np.cumsum(sizes) - sizes)[~is_empty]
    result = np.zeros(len(sizes), dtype=values.dtype)
    if len(starts):
        result[~is_empty] = _reduce_segments(ufunc, values, starts)
    return pa.array(result, type=dtype, mask=is_empty)


def _reduce_segments(ufunc: np.ufunc, values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    if ufunc is np.add and values.dtype.kind in "iu":
        _check_sums(values, starts)
    with np.errstate(over="ignore", invalid="ignore"):  # floats sum to infinity, as in IEEE 754
        return np.asarray(ufunc.reduceat(values, starts))


def _check_sums(values: np.ndarray, starts: np.ndarray) -> None:
    """Refuse sums that overflow: compare float sums first, and exact ones near the limit."""
    rough = np.abs(np.add.reduceat(values.astype(np.float64), starts))
    limits = np.iinfo(values.dtype)
    if rough.max() < limits.max / 2:
        return
    exact = np.add.reduceat(values.astype(object), starts)
    if exact.max() > limits.max or exact.min() < limits.min:
        raise KernelError(f"a sum does not fit {values.dtype}")


FUNCTIONS: tuple[Function, ...] = (
    define("list_length", _length),
    define("list_element", _element),
    define("list_slice", _slice),
    define("list_contains", _contains),
    define("list_sum", _reduction("list_sum", np.add)),
    define("list_min", _reduction("list_min", np.fmin)),
    define("list_max", _reduction("list_max", np.fmax)),
)
