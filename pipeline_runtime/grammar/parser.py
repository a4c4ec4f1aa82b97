"""Parses tokens into a syntax tree by operator precedence (Pratt).

Runs after `lexer` and before `expressions.binder`; `literals` reads numbers, dates and timestamps.
Owns the grammar, operator precedence (PostgreSQL's) and the bound on nesting, which keeps every
later recursion over a tree shallow.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NoReturn

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.grammar import literals
from pipeline_runtime.grammar.lexer import Token, TokenKind, tokenize
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
    walk,
)

# Deep enough for generated text, shallow enough for Python's stack (1000 frames by default, and
# each level costs at most four of them here and in the binder).
MAX_DEPTH = 100


class Power(enum.IntEnum):
    """Binding powers, loosest first."""

    NONE = 0
    OR = 1
    AND = 2
    NOT = 3
    IS = 4
    COMPARE = 5
    RANGE = 6
    JOIN = 7
    SUM = 8
    PRODUCT = 9
    MINUS = 10
    FIELD = 11


_POWERS = {
    "or": Power.OR,
    "and": Power.AND,
    "is": Power.IS,
    **dict.fromkeys(("=", "!=", "<", "<=", ">", ">="), Power.COMPARE),
    **dict.fromkeys(("in", "between", "like", "not"), Power.RANGE),
    "||": Power.JOIN,
    **dict.fromkeys(("+", "-"), Power.SUM),
    **dict.fromkeys(("*", "/", "%"), Power.PRODUCT),
    ".": Power.FIELD,
}

_UNCHAINED = frozenset({Power.COMPARE, Power.RANGE})
_FLAT = frozenset({"and", "or", "||"})


def parse_tree(text: str) -> Node:
    """Parse `text` into its tree; raises ExpressionError at the first place that breaks a rule."""
    parser = _Parser(text)
    if parser.is_done():
        parser.fail("an expression is empty; write one such as `price > 0`")
    root = parser.parse(Power.NONE)
    if not parser.is_done():
        parser.fail_expected("an operator or the end of the text")
    deepest, depth = max(walk(root), key=lambda visit: visit[1])
    if depth > MAX_DEPTH:
        parser.fail_depth(deepest.span)
    return root


class _Parser:
    """A cursor over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._position = 0
        self._depth = 0

    # -- the cursor ------------------------------------------------------------------------------

    @property
    def peek(self) -> Token:
        return self._tokens[self._position]

    def is_done(self) -> bool:
        return self.peek.kind is TokenKind.END

    def _next(self) -> Token:
        token = self.peek
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token

    def _is_at(self, *values: str) -> bool:
        word = self.peek.kind in (TokenKind.SYMBOL, TokenKind.KEYWORD)
        return word and self.peek.value in values

    def _accept(self, value: str) -> bool:
        found = self._is_at(value)
        if found:
            self._next()
        return found

    def _expect(self, value: str, context: str) -> None:
        if not self._accept(value):
            self.fail_expected(f"`{value}` {context}")

    def _span_from(self, start: int) -> Span:
        return Span(start=start, end=self._tokens[self._position - 1].span.end)

    # -- messages --------------------------------------------------------------------------------

    def fail(self, message: str, span: Span | None = None) -> NoReturn:
        place = span or self.peek.span
        length = place.end - place.start
        raise ExpressionError(message, text=self._text, offset=place.start, length=length)

    def fail_expected(self, wanted: str) -> NoReturn:
        span = self.peek.span
        got = self._text[span.start : span.end]
        self.fail(f"expected {wanted}, got {f'`{got}`' if got else 'the end of the text'}")

    def fail_depth(self, span: Span) -> NoReturn:
        self.fail(f"an expression nests at most {MAX_DEPTH} levels deep; split it in steps", span)

    # -- operators -------------------------------------------------------------------------------

    def parse(self, power: Power) -> Node:
        """Parse an expression of operators that bind tighter than `power`."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.fail_depth(self.peek.span)
        start = self.peek.span.start
        left = self._parse_prefix(power)
        last = Power.NONE
        while (found := self._infix_power()) > power:
            if found is last and found in _UNCHAINED:
                self.fail("comparisons do not chain; join two with `and`, or use parentheses")
            left, last = self._parse_infix(left, found, start), found
        self._depth -= 1
        return left

    def _infix_power(self) -> Power:
        if self.peek.kind not in (TokenKind.SYMBOL, TokenKind.KEYWORD):
            return Power.NONE
        return _POWERS.get(self.peek.value, Power.NONE)

    def _parse_infix(self, left: Node, power: Power, start: int) -> Node:
        op = self._next().value
        if power is Power.RANGE:
            return self._parse_range(left, op, start)
        if power is Power.IS:
            return self._parse_is(left, start)
        if power is Power.FIELD:
            return self._parse_field(left, start)
        if op in _FLAT:
            return self._parse_chain(left, op, power, start)
        right = self.parse(power)
        return Binary(span=self._span_from(start), op=op, left=left, right=right)

    def _parse_chain(self, left: Node, op: str, power: Power, start: int) -> Node:
        operands = [left, self.parse(power)]
        while self._accept(op):
            operands.append(self.parse(power))
        return Logical(span=self._span_from(start), op=op, operands=tuple(operands))

    def _parse_is(self, left: Node, start: int) -> Node:
        negated = self._accept("not")
        self._expect("null", "after `is`")
        return IsNull(span=self._span_from(start), operand=left, negated=negated)

    def _parse_field(self, left: Node, start: int) -> Node:
        if self.peek.kind not in (TokenKind.NAME, TokenKind.QUOTED_NAME):
            self.fail_expected("the name of a struct's field after `.`")
        name = self._next().value
        return Field(span=self._span_from(start), base=left, name=name)

    def _parse_range(self, left: Node, op: str, start: int) -> Node:
        negated = op == "not"
        if negated:
            if not self._is_at("in", "between", "like"):
                self.fail_expected("`in`, `between` or `like` after `not`")
            op = self._next().value
        parse: Callable[[Node, bool, int], Node] = {
            "in": self._parse_in,
            "between": self._parse_between,
            "like": self._parse_like,
        }[op]
        return parse(left, negated, start)

    def _parse_in(self, left: Node, negated: bool, start: int) -> Node:
        self._expect("(", "after `in`")
        if self._is_at(")"):
            self.fail("the list after `in` is empty; write at least one value, or `false`")
        items = self._parse_items("after the list of `in`")
        return InList(span=self._span_from(start), operand=left, items=items, negated=negated)

    def _parse_between(self, left: Node, negated: bool, start: int) -> Node:
        low = self.parse(Power.RANGE)
        self._expect("and", "between the two ends of `between`")
        high = self.parse(Power.RANGE)
        span = self._span_from(start)
        return Between(span=span, operand=left, low=low, high=high, negated=negated)

    def _parse_like(self, left: Node, negated: bool, start: int) -> Node:
        pattern = self.parse(Power.RANGE)
        return Like(span=self._span_from(start), operand=left, pattern=pattern, negated=negated)

    def _parse_items(self, context: str) -> tuple[Node, ...]:
        items = [self.parse(Power.NONE)]
        while self._accept(","):
            items.append(self.parse(Power.NONE))
        self._expect(")", context)
        return tuple(items)

    # -- operands --------------------------------------------------------------------------------

    def _parse_prefix(self, power: Power) -> Node:
        token = self.peek
        match token.kind:
            case TokenKind.NUMBER:
                return self._parse_number(token.span.start)
            case TokenKind.STRING:
                return Literal(span=self._next().span, value=token.value)
            case TokenKind.QUOTED_NAME:
                return Column(span=self._next().span, name=token.value, quoted=True)
            case TokenKind.NAME:
                return self._parse_name()
            case TokenKind.KEYWORD:
                return self._parse_keyword(power)
            case TokenKind.SYMBOL:
                return self._parse_symbol()
            case _:
                self.fail_expected("a value")

    def _parse_symbol(self) -> Node:
        if self._accept("("):
            inner = self.parse(Power.NONE)
            self._expect(")", "to close the parenthesis")
            return inner
        if self._accept("+"):
            return self.parse(Power.MINUS)
        if self._is_at("-"):
            return self._parse_minus()
        self.fail_expected("a value")

    def _parse_minus(self) -> Node:
        start = self._next().span.start
        if self.peek.kind is TokenKind.NUMBER:
            return self._parse_number(start, sign="-")
        operand = self.parse(Power.MINUS)
        return Unary(span=self._span_from(start), op="-", operand=operand)

    def _parse_keyword(self, power: Power) -> Node:
        token = self.peek
        match token.value:
            case "true" | "false" | "null":
                values = {"true": True, "false": False, "null": None}
                return Literal(span=self._next().span, value=values[token.value])
            case "case":
                return self._parse_case()
            case "not" if power <= Power.NOT:
                self._next()
                operand = self.parse(Power.NOT)
                return Unary(span=self._span_from(token.span.start), op="not", operand=operand)
            case "not":
                self.fail("`not` binds looser than this operator; put it in parentheses: (not x)")
        word = self._text[token.span.start : token.span.end]
        self.fail(f'expected a value, got the keyword `{word}`; a column is written "{word}"')

    def _parse_case(self) -> Node:
        start = self._next().span.start
        subject = None if self._is_at("when") else self.parse(Power.NONE)
        whens: list[tuple[Node, Node]] = []
        while self._accept("when"):
            condition = self.parse(Power.NONE)
            self._expect("then", "after the condition of `when`")
            whens.append((condition, self.parse(Power.NONE)))
        if not whens:
            self.fail_expected("`when` after `case`")
        default = self.parse(Power.NONE) if self._accept("else") else None
        self._expect("end", "to close `case`")
        span = self._span_from(start)
        return Case(span=span, subject=subject, whens=tuple(whens), default=default)

    def _parse_name(self) -> Node:
        token = self._next()
        if self.peek.kind is TokenKind.STRING and token.value.lower() in ("date", "timestamp"):
            return self._parse_time(token)
        if not self._is_at("("):
            return Column(span=token.span, name=token.value)
        self._next()
        name = token.value.lower()
        if name == "cast":
            return self._parse_cast(token.span.start)
        args = () if self._accept(")") else self._parse_items(f"after the arguments of {name}")
        span = self._span_from(token.span.start)
        return Call(span=span, name=name, args=args, name_span=token.span)

    def _parse_cast(self, start: int) -> Node:
        operand = self.parse(Power.NONE)
        self._expect("as", "and a type in cast(x as type)")
        type_start = self.peek.span.start
        if self.peek.kind is not TokenKind.NAME:
            self.fail_expected("the name of a type after `as`")
        name = self._next().value.lower() + self._parse_type_arguments()
        type_span = self._span_from(type_start)
        self._expect(")", "to close cast(x as type)")
        span = self._span_from(start)
        return Cast(span=span, operand=operand, type_name=name, type_span=type_span)

    def _parse_type_arguments(self) -> str:
        if not self._accept("("):
            return ""
        numbers = [self._next().value]
        while self._accept(","):
            numbers.append(self._next().value)
        self._expect(")", "after the numbers of a type, as in decimal(12, 2)")
        return f"({','.join(numbers)})"

    # -- literals --------------------------------------------------------------------------------

    def _parse_number(self, start: int, sign: str = "") -> Node:
        token = self._next()
        span = Span(start=start, end=token.span.end)
        digits = sign + token.value
        try:
            return Literal(span=span, value=literals.parse_number(digits), digits=digits)
        except ValueError as error:
            self.fail(str(error), span)

    def _parse_time(self, word: Token) -> Node:
        token = self._next()
        span = Span(start=word.span.start, end=token.span.end)
        read = literals.parse_date if word.value.lower() == "date" else literals.parse_timestamp
        try:
            return Literal(span=span, value=read(token.value))
        except ValueError as error:
            self.fail(str(error), token.span)
