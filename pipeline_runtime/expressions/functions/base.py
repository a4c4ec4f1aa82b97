"""The definition of a function of the language, and checks that type rules share.

Neighbours: the modules beside this one hold the functions, `functions/__init__` joins them, and
`binder` calls `rule`. A check raises ArgumentError with a message that continues "argument 1 of f".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from pipeline_runtime.expressions import coercion, types
from pipeline_runtime.expressions.plan import ArgumentError, Constant, Plan, build_constant
from pipeline_runtime.grammar import literals
from pipeline_runtime.grammar.syntax_tree import Span

Arguments = tuple[Plan, ...]
Rule = Callable[[Span, Arguments], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function: `rule` checks argument types and gives the typed plan.

    `grammar.calls` says how many arguments it takes.
    """

    name: str
    rule: Rule


def define(name: str, rule: Rule) -> Function:
    """A function of `grammar.calls`."""
    return Function(name=name, rule=rule)


def argument_error(args: Arguments, index: int, message: str) -> ArgumentError:
    """An error at argument `index`; the message goes on after "argument 1 of f"."""
    return ArgumentError(message, index=index, span=args[index].span)


def need_text(args: Arguments, index: int) -> Plan:
    """Argument `index` as a string."""
    return _need(args, index, types.is_text, "a string", pa.string(), "cast it to string")


def need_number(args: Arguments, index: int) -> Plan:
    """Argument `index` as a number of any type."""
    return _need(args, index, types.is_number, "a number", pa.int64(), "cast it to float64")


def need_float(args: Arguments, index: int) -> Plan:
    """Argument `index` as float32 if it is that, else float64."""
    plan = need_number(args, index)
    return plan if pa.types.is_floating(plan.type) else coercion.coerce(plan, pa.float64())


def need_list(args: Arguments, index: int) -> Plan:
    """Argument `index`, which must be a list."""
    if types.is_any_list(args[index].type):
        return args[index]
    raise argument_error(args, index, f"must be a list, got {args[index].type}")


def need_day_or_time(args: Arguments, index: int) -> Plan:
    """Argument `index` as a date or a timestamp; a string literal is read as one."""
    plan = args[index]
    literal = coercion.literal_of(plan)
    if literal is not None and isinstance(literal.value, str):
        return _read_time(args, literal.value, index)
    wanted = "a date or a timestamp"
    return _need(args, index, types.is_day_or_time, wanted, pa.timestamp("us"), "cast it to date")


def need_time(args: Arguments, index: int) -> Plan:
    """Argument `index` as a timestamp."""
    plan = need_day_or_time(args, index)
    if pa.types.is_timestamp(plan.type):
        return plan
    raise argument_error(args, index, f"must be a timestamp, got {plan.type}")


def _read_time(args: Arguments, text: str, index: int) -> Plan:
    try:
        return build_constant(args[index].span, pa.scalar(literals.parse_time(text)))
    except ValueError as error:
        raise argument_error(args, index, f"must be a date or a timestamp: {error}") from error


def _need(
    args: Arguments,
    index: int,
    is_wanted: Callable[[pa.DataType], bool],
    wanted: str,
    null_type: pa.DataType,
    hint: str,
) -> Plan:
    plan = args[index]
    if pa.types.is_null(plan.type):
        return coercion.coerce(plan, null_type)
    if not is_wanted(plan.type):
        raise argument_error(args, index, f"must be {wanted}, got {plan.type}; {hint}")
    return plan


def constant_text(args: Arguments, index: int) -> str:
    """The value of argument `index`, which must be a string literal."""
    value = _constant(args, index)
    if isinstance(value, str):
        return value
    raise argument_error(args, index, "must be a string literal, such as 'text'")


def constant_int(args: Arguments, index: int) -> int:
    """The value of argument `index`, which must be an integer literal."""
    value = _constant(args, index)
    if isinstance(value, int) and not isinstance(value, bool) and value <= literals.MAX_INT64:
        return value
    raise argument_error(args, index, "must be an integer literal, such as 2")


def _constant(args: Arguments, index: int) -> object:
    plan = args[index]
    return plan.value.as_py() if isinstance(plan, Constant) else None


def need_common_type(args: Arguments) -> pa.DataType:
    """The one type of all arguments."""
    dtype = coercion.common_type(args)
    if dtype is None:
        kinds = ", ".join(dict.fromkeys(str(plan.type) for plan in args))
        raise ArgumentError(f"needs arguments of one type, got {kinds}; write cast(x as type)")
    return dtype
