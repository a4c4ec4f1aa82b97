"""The syntax tree of an expression: frozen nodes that know their place in the text.

Built by `parser`, read by `expressions` (types, rewrites). Holds no Arrow type, so a parsed
expression is small, hashable by its text and cheap to send to a worker.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field

LiteralValue = None | bool | int | float | str | dt.date | dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Position of a node: character offsets into the text, `end` excluded."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A constant; `digits` keeps a number as written, which a decimal column uses exactly."""

    span: Span
    value: LiteralValue
    digits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table, by name."""

    span: Span
    name: str
    quoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a struct: `base.name`."""

    span: Span
    base: Node
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary:
    """`not x` or `-x`."""

    span: Span
    op: str
    operand: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """Arithmetic (`+ - * / %`) or a comparison (`= != < <= > >=`)."""

    span: Span
    op: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Logical:
    """`and`, `or` or `||` over two or more operands; one node a chain, so long chains stay flat."""

    span: Span
    op: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InList:
    """`x in (a, b)`, or `x not in (a, b)`."""

    span: Span
    operand: Node
    items: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """`x between low and high`, both ends included."""

    span: Span
    operand: Node
    low: Node
    high: Node
    negated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull:
    """`x is null`, or `x is not null`."""

    span: Span
    operand: Node
    negated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Like:
    """`x like 'pattern'`."""

    span: Span
    operand: Node
    pattern: Node
    negated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`case [subject] when c then v ... [else v] end`."""

    span: Span
    subject: Node | None
    whens: tuple[tuple[Node, Node], ...]
    default: Node | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`name(args)`; `name_span` is the name alone, for messages."""

    span: Span
    name: str
    args: tuple[Node, ...]
    name_span: Span = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """`cast(x as type)`."""

    span: Span
    operand: Node
    type_name: str
    type_span: Span = field(compare=False)


Node = (
    Literal
    | Column
    | Field
    | Unary
    | Binary
    | Logical
    | InList
    | Between
    | IsNull
    | Like
    | Case
    | Call
    | Cast
)


def children(node: Node) -> tuple[Node, ...]:
    """The direct operands of a node, in the text's order."""
    match node:
        case Literal() | Column():
            return ()
        case Field(base=base):
            return (base,)
        case Unary() | IsNull() | Cast():
            return (node.operand,)
        case Binary():
            return (node.left, node.right)
        case Logical():
            return node.operands
        case InList():
            return (node.operand, *node.items)
        case Between():
            return (node.operand, node.low, node.high)
        case Like():
            return (node.operand, node.pattern)
        case Call():
            return node.args
        case Case():
            return _case_children(node)


def _case_children(node: Case) -> tuple[Node, ...]:
    ends = (node.subject, *(part for when in node.whens for part in when), node.default)
    return tuple(part for part in ends if part is not None)


def walk(root: Node) -> Iterator[tuple[Node, int]]:
    """Every node under `root` with its depth (the root's is 1), without recursion."""
    stack: list[tuple[Node, int]] = [(root, 1)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack.extend((child, depth + 1) for child in reversed(children(node)))
