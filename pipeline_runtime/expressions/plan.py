"""A typed expression: what `binder` makes of a syntax tree and a schema, and `evaluate` runs.

A plan holds Arrow types and kernels and no names to look up but those of columns. `pushdown` reads
it too, because here a constant already has exactly the type of the column it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import pyarrow as pa

from pipeline_runtime.grammar.syntax_tree import Literal, Span

# What a kernel takes and gives: an array of the batch's length, or a scalar that stands for one.
Datum: TypeAlias = pa.Array | pa.Scalar
Kernel: TypeAlias = Callable[..., Datum]


class TypeRuleError(Exception):
    """A type rule is broken at `span`, or at the whole operator or call if that is None."""

    def __init__(self, message: str, *, span: Span | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.span = span


class ArgumentError(TypeRuleError):
    """A rule of a function; its message goes on after "argument 1 of f", or "f" without index."""

    def __init__(self, message: str, *, index: int | None = None, span: Span | None = None) -> None:
        super().__init__(message, span=span)
        self.index = index


class KernelError(Exception):
    """Values broke a rule while a kernel ran; `evaluate` adds the place."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constant:
    """One value for every row; `literal` is set while its type may still follow its neighbour's."""

    span: Span
    type: pa.DataType
    value: pa.Scalar
    literal: Literal | None = None
    can_fail: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Read:
    """A column; `type` is that of its plain form (see `types.plain_type`)."""

    span: Span
    type: pa.DataType
    name: str
    can_fail: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Apply:
    """A kernel over arguments; `op` is its name in the language, for `pushdown` and messages.

    `can_fail`, here and below: some values make it raise, so rows that a `case` excludes must not
    reach it.
    """

    span: Span
    type: pa.DataType
    op: str
    kernel: Kernel
    args: tuple[Plan, ...]
    can_fail: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choose:
    """The value of the first condition that is true."""

    span: Span
    type: pa.DataType
    conditions: tuple[Plan, ...]
    values: tuple[Plan, ...]
    default: Plan
    can_fail: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shared:
    """A plan used at several places and run once a batch."""

    span: Span
    type: pa.DataType
    plan: Plan
    can_fail: bool


Plan = Constant | Read | Apply | Choose | Shared


def build_constant(span: Span, value: pa.Scalar) -> Constant:
    """A constant whose type is settled."""
    return Constant(span=span, type=value.type, value=value)


def build_apply(
    span: Span, op: str, dtype: pa.DataType, kernel: Kernel, *args: Plan, is_partial: bool = False
) -> Apply:
    """A kernel over `args`; `is_partial` says that the kernel itself raises for some values."""
    can_fail = is_partial or any(arg.can_fail for arg in args)
    return Apply(span=span, type=dtype, op=op, kernel=kernel, args=args, can_fail=can_fail)


def build_shared(plan: Plan) -> Plan:
    """Return `plan`, made safe to use more than once."""
    if isinstance(plan, Constant | Read | Shared):
        return plan
    return Shared(span=plan.span, type=plan.type, plan=plan, can_fail=plan.can_fail)
