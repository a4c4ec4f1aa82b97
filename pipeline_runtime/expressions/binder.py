"""Gives every node of a syntax tree a type against a schema, and the kernel that will run it.

Runs after `parser`, before `evaluate`. Owns the walk over the tree and the place of each message;
the rules themselves stand in `operators`, `casts`, `patterns` and `functions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import pyarrow as pa

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.expressions import casts, coercion, columns, operators, patterns, types
from pipeline_runtime.expressions.functions import FUNCTIONS
from pipeline_runtime.expressions.functions.text import build_join
from pipeline_runtime.expressions.plan import (
    ArgumentError,
    Plan,
    Read,
    TypeRuleError,
    build_apply,
    build_shared,
)
from pipeline_runtime.grammar.calls import check_call, suggest
from pipeline_runtime.grammar.syntax_tree import (
    Between,
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Field,
    InList,
    IsNull,
    Like,
    Literal,
    Logical,
    Node,
    Span,
    Unary,
)


def bind(root: Node, text: str, columns: Mapping[str, pa.DataType]) -> Plan:
    """Type `root` against `columns`; raises ExpressionError at the first broken rule."""
    return _Binder(text, columns).bind(root)


class _Binder:
    """One walk over one tree."""

    def __init__(self, text: str, columns: Mapping[str, pa.DataType]) -> None:
        self._text = text
        self._columns = columns

    def bind(self, node: Node) -> Plan:
        match node:
            case Literal():
                return coercion.bind_literal(node)
            case Column():
                return self._bind_column(node)
            case Field():
                return self._bind_field(node)
            case Call():
                return self._bind_call(node)
            case Cast():
                return self._bind_cast(node)
            case Case():
                return self._bind_case(node)
            case _:
                return self._bind_operator(node)

    def _bind_operator(
        self, node: Unary | Binary | Logical | InList | Between | IsNull | Like
    ) -> Plan:
        match node:
            case Unary():
                return self._bind_unary(node)
            case Binary():
                return self._bind_binary(node)
            case Logical():
                return self._bind_logical(node)
            case InList():
                return self._bind_in(node)
            case Between():
                return self._bind_between(node)
            case IsNull():
                operand = self.bind(node.operand)
                return operators.build_is_null(node.span, operand, negated=node.negated)
            case Like():
                return self._bind_like(node)

    # -- messages --------------------------------------------------------------------------------

    def _fail(self, message: str, span: Span) -> NoReturn:
        length = span.end - span.start
        raise ExpressionError(message, text=self._text, offset=span.start, length=length)

    @contextmanager
    def _placing(self, span: Span, label: str = "") -> Iterator[None]:
        """Turn a broken rule into an error at its place, `span` if it names none."""
        try:
            yield
        except ArgumentError as error:
            of = f"{label} " if error.index is None else f"argument {error.index + 1} of {label} "
            self._fail(of + error.message, error.span or span)
        except TypeRuleError as error:
            self._fail(error.message, error.span or span)

    # -- columns ---------------------------------------------------------------------------------

    def _bind_column(self, node: Column) -> Plan:
        if node.name not in self._columns:
            self._fail(self._describe_unknown(node), node.span)
        dtype = types.plain_type(self._columns[node.name])
        return Read(span=node.span, type=dtype, name=node.name)

    def _describe_unknown(self, node: Column) -> str:
        message = f"no column is named {node.name!r}{suggest(node.name, self._columns)}"
        if node.quoted:
            escaped = node.name.replace("'", "''")
            message += f" (for a string, write '{escaped}' in single quotes)"
        return message

    def _bind_field(self, node: Field) -> Plan:
        if isinstance(node.base, Column) and node.base.name not in self._columns:
            whole = f"{node.base.name}.{node.name}"
            if whole in self._columns:
                self._fail(f'a name with a point is written "{whole}", in double quotes', node.span)
        base = self.bind(node.base)
        if not pa.types.is_struct(base.type):
            hint = 'a name with a point is written "a.b"'
            self._fail(f"`.{node.name}` needs a struct, got {base.type}; {hint}", node.span)
        names = [field.name for field in base.type]
        if names.count(node.name) != 1:
            self._fail(
                f"the struct has no field {node.name!r}{suggest(node.name, names)}", node.span
            )
        dtype = types.plain_type(base.type.field(node.name).type)
        kernel = partial(columns.read_field, name=node.name, dtype=dtype)
        return build_apply(node.span, ".", dtype, kernel, base)

    # -- operators -------------------------------------------------------------------------------

    def _bind_unary(self, node: Unary) -> Plan:
        operand = self.bind(node.operand)
        build = operators.build_not if node.op == "not" else operators.build_negation
        with self._placing(node.span):
            return build(node.span, operand)

    def _bind_binary(self, node: Binary) -> Plan:
        left, right = self.bind(node.left), self.bind(node.right)
        is_arithmetic = node.op in ("+", "-", "*", "/", "%")
        build = operators.build_arithmetic if is_arithmetic else operators.build_comparison
        with self._placing(node.span):
            return build(node.span, node.op, left, right)

    def _bind_logical(self, node: Logical) -> Plan:
        plans = tuple(self.bind(operand) for operand in node.operands)
        if node.op == "||":
            with self._placing(node.span, "`||`"):
                return build_join(node.span, plans, skip_nulls=False)
        with self._placing(node.span):
            return operators.build_logical(node.span, node.op, plans)

    def _bind_in(self, node: InList) -> Plan:
        operand = self.bind(node.operand)
        items = tuple(self.bind(item) for item in node.items)
        with self._placing(node.span):
            return self._negate(node, operators.build_in(node.span, operand, items))

    def _bind_between(self, node: Between) -> Plan:
        operand, low, high = (self.bind(part) for part in (node.operand, node.low, node.high))
        with self._placing(node.span):
            return self._negate(node, operators.build_between(node.span, operand, low, high))

    def _bind_like(self, node: Like) -> Plan:
        operand = self.bind(node.operand)
        pattern = node.pattern.value if isinstance(node.pattern, Literal) else None
        if not isinstance(pattern, str):
            self._fail("`like` needs a string literal as its pattern", node.pattern.span)
        if pa.types.is_null(operand.type):
            operand = coercion.coerce(operand, pa.string())
        if not types.is_text(operand.type):
            self._fail(f"`like` needs a string, got {operand.type}", node.operand.span)
        kernel = patterns.build_like(pattern)
        return self._negate(node, build_apply(node.span, "like", pa.bool_(), kernel, operand))

    def _negate(self, node: InList | Between | Like, plan: Plan) -> Plan:
        return operators.build_not(node.span, plan) if node.negated else plan

    def _bind_case(self, node: Case) -> Plan:
        conditions = [self.bind(condition) for condition, _ in node.whens]
        values = [self.bind(value) for _, value in node.whens]
        default = None if node.default is None else self.bind(node.default)
        with self._placing(node.span):
            if node.subject is not None:
                subject = build_shared(self.bind(node.subject))
                compare = partial(operators.build_comparison, node.span, "=", subject)
                conditions = [compare(value) for value in conditions]
            return operators.build_choice(node.span, conditions, values, default)

    def _bind_cast(self, node: Cast) -> Plan:
        operand = self.bind(node.operand)
        dtype = self.find_type(node)
        with self._placing(node.span):
            kernel = casts.build_cast(operand.type, dtype)
        return build_apply(node.span, "cast", dtype, kernel, operand, is_partial=True)

    def find_type(self, node: Cast) -> pa.DataType:
        """The type that a cast names; raises ExpressionError if there is none."""
        try:
            return types.parse_type(node.type_name)
        except ValueError as error:
            self._fail(str(error), node.type_span)

    # -- functions -------------------------------------------------------------------------------

    def _bind_call(self, node: Call) -> Plan:
        check_call(node, self._text)
        function = FUNCTIONS[node.name]
        args = tuple(self.bind(arg) for arg in node.args)
        with self._placing(node.span, node.name):
            return function.rule(node.span, args)
