"""Functions on strings. Part of `functions`; `patterns` holds the matching kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.expressions import coercion, patterns
from pipeline_runtime.expressions.functions.base import (
    Arguments,
    Function,
    Rule,
    argument_error,
    constant_int,
    constant_text,
    define,
    need_common_type,
    need_text,
)
from pipeline_runtime.expressions.plan import Datum, Kernel, Plan, build_apply
from pipeline_runtime.grammar.syntax_tree import Span


def _map(name: str, kernel: Kernel) -> Rule:
    def rule(span: Span, args: Arguments) -> Plan:
        text = need_text(args, 0)
        return build_apply(span, name, text.type, kernel, text)

    return rule


def _match(name: str, build: Callable[[str], Kernel]) -> Rule:
    def rule(span: Span, args: Arguments) -> Plan:
        try:
            kernel = build(constant_text(args, 1))
        except ValueError as error:
            raise argument_error(args, 1, str(error)) from error
        return build_apply(span, name, pa.bool_(), kernel, need_text(args, 0))

    return rule


def _length(span: Span, args: Arguments) -> Plan:
    def kernel(strings: Datum) -> Datum:
        return pc.utf8_length(strings).cast(pa.int64())

    return build_apply(span, "length", pa.int64(), kernel, need_text(args, 0))


def _substr(span: Span, args: Arguments) -> Plan:
    text, start = need_text(args, 0), constant_int(args, 1)
    if start == 0:
        raise argument_error(args, 1, "counts from 1, or from -1 at the end, got 0")
    size = constant_int(args, 2) if len(args) > 2 else None
    if size is not None and size < 0:
        raise argument_error(args, 2, f"must be a length of 0 or more, got {size}")
    kernel = partial(_slice, start - 1 if start > 0 else start, size)
    return build_apply(span, "substr", text.type, kernel, text)


def _slice(start: int, size: int | None, strings: Datum) -> Datum:
    if size == 0:
        return pc.utf8_slice_codeunits(strings, start=0, stop=0)
    tail = pc.utf8_slice_codeunits(strings, start=start, stop=None)
    # In two steps: a negative start with a stop would count the stop from the end as well.
    return tail if size is None else pc.utf8_slice_codeunits(tail, start=0, stop=size)


def build_join(span: Span, args: Arguments, *, skip_nulls: bool) -> Plan:
    """`concat` (nulls count as '') or `||` (null if any operand is)."""
    texts = tuple(need_text(args, index) for index in range(len(args)))
    dtype = need_common_type(texts)
    texts = tuple(coercion.coerce(plan, dtype) for plan in texts)
    # Not "skip": Arrow 26 then drops rows in which every operand is null.
    handling = "replace" if skip_nulls else "emit_null"

    def kernel(*strings: Datum) -> Datum:
        separator = pa.scalar("", dtype)
        return pc.binary_join_element_wise(
            *strings, separator, null_handling=handling, null_replacement=""
        )

    return build_apply(span, "concat" if skip_nulls else "||", dtype, kernel, *texts)


def _contains(pattern: str) -> Kernel:
    return partial(pc.match_substring, pattern=pattern)


def _starts_with(pattern: str) -> Kernel:
    return partial(pc.starts_with, pattern=pattern)


def _ends_with(pattern: str) -> Kernel:
    return partial(pc.ends_with, pattern=pattern)


FUNCTIONS: tuple[Function, ...] = (
    define("lower", _map("lower", pc.utf8_lower)),
    define("upper", _map("upper", pc.utf8_upper)),
    define("trim", _map("trim", pc.utf8_trim_whitespace)),
    define("length", _length),
    define("contains", _match("contains", _contains)),
    define("starts_with", _match("starts_with", _starts_with)),
    define("ends_with", _match("ends_with", _ends_with)),
    define("regexp_match", _match("regexp_match", patterns.build_regex)),
    define("substr", _substr),
    define("concat", partial(build_join, skip_nulls=True)),
)
