"""Runs a typed expression over a table, one batch of aligned chunks at a time.

Runs after `binder`; knows plans, not syntax. Owns the reading of columns, the guard that `case`
puts around values that can raise, and the place of an error at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.expressions.columns import plain_array
from pipeline_runtime.expressions.plan import (
    Apply,
    Choose,
    Constant,
    Datum,
    KernelError,
    Plan,
    Read,
    Shared,
)
from pipeline_runtime.grammar.syntax_tree import Span

# Below this many rows a chunk, the calls of kernels (about 2 µs each) outweigh the work in them
# (about 1 ns a row and kernel), and copying the chunks together is cheaper.
_MIN_ROWS_PER_CHUNK = 16 * 1024

_IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Aligned columns, and the results that are needed again while this batch lasts."""

    columns: dict[str, pa.Array]
    num_rows: int
    plain: dict[str, pa.Array] = field(default_factory=dict)
    shared: dict[int, Datum] = field(default_factory=dict)

    def take(self, rows: _IntArray) -> _Batch:
        indices = pa.array(rows)
        columns = {name: column.take(indices) for name, column in self.columns.items()}
        return _Batch(columns=columns, num_rows=len(rows))


def run(plan: Plan, names: Sequence[str], table: pa.Table, text: str) -> pa.Array | pa.ChunkedArray:
    """The value of `plan` for every row; reads the columns `names` of `table` and no others."""
    runner = _Runner(text)
    arrays = [runner.run_array(plan, batch) for batch in _cut(table, names)]
    if len(arrays) == 1:
        return arrays[0]
    return pa.chunked_array(arrays, type=plan.type)


def _cut(table: pa.Table, names: Sequence[str]) -> Iterator[_Batch]:
    """Cut a table where one of its columns starts a chunk; there is always at least one batch."""
    if table.num_rows == 0 or not names:
        empty = {name: pa.array([], type=table.schema.field(name).type) for name in names}
        yield _Batch(columns=empty, num_rows=table.num_rows)
        return
    needed = table.select(list(names))
    num_chunks = max(column.num_chunks for column in needed.columns)
    if num_chunks > 1 and table.num_rows < num_chunks * _MIN_ROWS_PER_CHUNK:
        needed = needed.combine_chunks()
    for batch in needed.to_batches():
        columns = dict(zip(names, batch.columns, strict=True))
        yield _Batch(columns=columns, num_rows=batch.num_rows)


class _Runner:
    """Runs plans of one text, which it needs for messages.

    With `is_guarded`, a `case` whose branches raise is run again, each branch on its own rows. The
    first try goes without guards all the way down, so the work grows with the square of the
    nesting at most, not with two to its power.
    """

    def __init__(self, text: str, *, is_guarded: bool = True) -> None:
        self._text = text
        self._unguarded = _Runner(text, is_guarded=False) if is_guarded else None

    def run_array(self, plan: Plan, batch: _Batch) -> pa.Array:
        """The value for every row as an array of exactly the plan's type."""
        result = self._run(plan, batch)
        if isinstance(result, pa.Scalar):
            return pa.repeat(result, batch.num_rows)
        return result

    def _run(self, plan: Plan, batch: _Batch) -> Datum:
        match plan:
            case Constant():
                return plan.value
            case Read():
                return _read(plan, batch)
            case Apply():
                args = [self._run(arg, batch) for arg in plan.args]
                return self._apply(plan, args)
            case Shared():
                if id(plan) not in batch.shared:
                    batch.shared[id(plan)] = self._run(plan.plan, batch)
                return batch.shared[id(plan)]
            case Choose():
                return self._choose(plan, batch)

    def _apply(self, plan: Apply, args: Sequence[Datum]) -> Datum:
        """Run a kernel; one over constants alone runs on a single row and stays a scalar."""
        is_constant = all(isinstance(arg, pa.Scalar) for arg in args)
        try:
            if is_constant:
                return plan.kernel(*(pa.repeat(arg, 1) for arg in args))[0]
            return plan.kernel(*args)
        except (KernelError, pa.ArrowException, OverflowError) as error:
            raise self._place(plan, error) from error

    def _place(self, plan: Apply, error: Exception) -> ExpressionError:
        message = str(error)
        if plan.op in ("+", "-", "*", "abs") or message == "overflow":
            message = f"`{plan.op}` left the range of {plan.type}; cast an operand to float64"
        return self._error(f"at run time: {message}", plan.span)

    def _error(self, message: str, span: Span) -> ExpressionError:
        length = span.end - span.start
        return ExpressionError(message, text=self._text, offset=span.start, length=length)

    # -- choice ----------------------------------------------------------------------------------

    def _choose(self, plan: Choose, batch: _Batch) -> Datum:
        if plan.can_fail and self._unguarded is not None:
            try:
                return self._unguarded._choose(plan, batch)
            except ExpressionError:
                return self._choose_by_rows(plan, batch)
        result = self._run(plan.default, batch)
        for condition, value in reversed(list(zip(plan.conditions, plan.values, strict=True))):
            is_true = _is_true(self._run(condition, batch))
            result = pc.if_else(is_true, self._run(value, batch), result)
        return result

    def _choose_by_rows(self, plan: Choose, batch: _Batch) -> pa.Array:
        """Run each value on its own rows, so that it never sees those that a condition excludes."""
        left: _IntArray = np.arange(batch.num_rows)
        rows: list[_IntArray] = []
        values: list[pa.Array] = []
        for condition, value in zip(plan.conditions, plan.values, strict=True):
            is_true = _is_true(self.run_array(condition, batch.take(left)))
            hits = is_true.to_numpy(zero_copy_only=False)
            rows.append(left[hits])
            values.append(self.run_array(value, batch.take(left[hits])))
            left = left[~hits]
        rows.append(left)
        values.append(self.run_array(plan.default, batch.take(left)))
        order = np.argsort(np.concatenate(rows), kind="stable")
        return pa.concat_arrays(values).take(pa.array(order))


def _read(plan: Read, batch: _Batch) -> pa.Array:
    if plan.name not in batch.plain:
        batch.plain[plan.name] = plain_array(batch.columns[plan.name], plan.type)
    return batch.plain[plan.name]


def _is_true(condition: Datum) -> Datum:
    return pc.fill_null(condition, False)
