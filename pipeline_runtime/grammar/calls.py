"""The functions and cast types of the language, by name, and whether an expression uses them so.

`expressions` knows what they do, with Arrow; their names and numbers of arguments are known here,
so that a manifest can be checked without it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.grammar.syntax_tree import Call, Cast, Node, Span, walk

# As users write them; `[]` marks what may be left out, `...` any number of arguments.
_SIGNATURES = (
    "lower(s)",
    "upper(s)",
    "trim(s)",
    "length(s)",
    "contains(s, 'part')",
    "starts_with(s, 'part')",
    "ends_with(s, 'part')",
    "regexp_match(s, 'regex')",
    "substr(s, start[, length])",
    "concat(s, ...)",
    "abs(x)",
    "round(x[, digits])",
    "floor(x)",
    "ceil(x)",
    "sqrt(x)",
    "ln(x)",
    "log1p(x)",
    "exp(x)",
    "greatest(a, ...)",
    "least(a, ...)",
    "coalesce(a, ...)",
    "nullif(a, b)",
    "if(condition, then, else)",
    "year(t)",
    "month(t)",
    "day(t)",
    "day_of_week(t)",
    "hour(t)",
    "minute(t)",
    "date(t)",
    "date_diff_days(start, end)",
    "epoch_seconds(t)",
    "list_length(l)",
    "list_element(l, index)",
    "list_slice(l, start[, stop])",
    "list_contains(l, value)",
    "list_sum(l)",
    "list_min(l)",
    "list_max(l)",
)
# Types of `cast(x as type)`; `expressions.types` says what they are.
CAST_TYPES = (
    *("bool", "boolean", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("tinyint", "smallint", "integer", "bigint"),
    *("float32", "float64", "real", "double", "string", "varchar", "text", "date"),
    *("timestamp", "timestamp_s", "timestamp_ms", "timestamp_us", "timestamp_ns"),
)
# Names that mean different widths in SQL, NumPy and Arrow.
_UNCLEAR_TYPES = {"int": "int32 or int64", "float": "float32 or float64"}
_DECIMAL_NAME = re.compile(r"(?:decimal|numeric)\((\d{1,3})(?:,(\d{1,3}))?\)")
# Arrow's widest decimal (decimal256).
MAX_DECIMAL_DIGITS = 76
# More names than this in a message help nobody.
_MAX_NAMES_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The arguments that a function takes; `max_args` None means any number."""

    text: str
    min_args: int
    max_args: int | None


def _parse_signature(text: str) -> Signature:
    """Count the arguments that a signature shows: `f(a, b[, c])`, `f(a, ...)`."""
    inner = text.partition("(")[2].rstrip(")")
    required, _, optional = inner.replace("...", "").partition("[")
    min_args = len([part for part in required.split(",") if part.strip()])
    max_args = min_args + len([part for part in optional.strip("]").split(",") if part.strip()])
    return Signature(
        text=text, min_args=min_args, max_args=None if inner.endswith("...") else max_args
    )


SIGNATURES: Mapping[str, Signature] = MappingProxyType(
    {text.partition("(")[0]: _parse_signature(text) for text in _SIGNATURES}
)


def check_names(root: Node, text: str) -> None:
    """Check the functions, their numbers of arguments, and the types of casts.

    Raises ExpressionError for the first that no table could make right.
    """
    for node, _ in walk(root):
        if isinstance(node, Call):
            check_call(node, text)
        elif isinstance(node, Cast):
            try:
                parse_decimal(node.type_name)
            except ValueError as error:
                raise _error(str(error), text, node.type_span) from error


def check_call(node: Call, text: str) -> None:
    """Raise ExpressionError if no function has this name, or takes so many arguments."""
    found = SIGNATURES.get(node.name)
    if found is None:
        hint = suggest(node.name, SIGNATURES)
        raise _error(f"no function is named {node.name!r}{hint}", text, node.name_span)
    low, high, got = found.min_args, found.max_args, len(node.args)
    if low <= got and (high is None or got <= high):
        return
    wanted = f"{low} or more" if high is None else f"{low}" if low == high else f"{low} to {high}"
    plural = "" if wanted == "1" else "s"
    message = f"{node.name} takes {wanted} argument{plural}, got {got}: {found.text}"
    raise _error(message, text, node.span)


def parse_decimal(type_name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal's name, and None for another type of a cast.

    Raises ValueError, with a message for the user, if casts know no such type.
    """
    if type_name in CAST_TYPES:
        return None
    if type_name in _UNCLEAR_TYPES:
        choice = _UNCLEAR_TYPES[type_name]
        raise ValueError(f"a cast must name the width of a number: write {choice}")
    if match := _DECIMAL_NAME.fullmatch(type_name):
        precision, scale = int(match[1]), int(match[2] or 0)
        if scale <= precision and 0 < precision <= MAX_DECIMAL_DIGITS:
            return precision, scale
    known = ", ".join(CAST_TYPES)
    raise ValueError(f"a cast must name one of {known} or decimal(p, s), got {type_name!r}")


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known ones, or all of a few."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    near = near or [other for other in names if other.casefold() == name.casefold()]
    if near:
        return f"; did you mean {' or '.join(repr(other) for other in near)}?"
    shown = ", ".join(names[:_MAX_NAMES_SHOWN]) + (", …" if len(names) > _MAX_NAMES_SHOWN else "")
    return f"; there are {shown}" if names else "; there are none"


def _error(message: str, text: str, span: Span) -> ExpressionError:
    return ExpressionError(message, text=text, offset=span.start, length=span.end - span.start)
