"""The grammar: precedence, limits, and messages with their carets."""

import pickle

import pytest
from facts import assert_told

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.expressions import Expression, conjuncts, parse, rename_columns
from pipeline_runtime.grammar.lexer import MAX_TEXT_CHARS
from pipeline_runtime.grammar.parser import MAX_DEPTH
from pipeline_runtime.grammar.syntax_tree import (
    Between,
    Binary,
    Case,
    Column,
    Field,
    InList,
    IsNull,
    Like,
    Literal,
    Logical,
    Node,
    Unary,
    children,
)


def show(node: Node) -> str:
    """The tree as an S-expression."""
    parts = " ".join(show(child) for child in children(node))
    match node:
        case Literal():
            return repr(node.value)
        case Column():
            return node.name
        case Field():
            return f"(.{node.name} {parts})"
        case Unary() | Binary() | Logical():
            return f"({node.op} {parts})"
        case Case():
            return f"(case {parts})"
        case InList() | Between() | IsNull() | Like():
            name = type(node).__name__.lower()
            return f"({'not-' if node.negated else ''}{name} {parts})"
        case _:
            return f"({getattr(node, 'name', 'cast')} {parts})"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        pytest.param("a or b and c", "(or a (and b c))", id="and binds tighter than or"),
        pytest.param("not a = b", "(not (= a b))", id="not binds looser than a comparison"),
        pytest.param("not a and b", "(and (not a) b)", id="not binds tighter than and"),
        pytest.param("a = b is null", "(isnull (= a b))", id="is binds looser than ="),
        pytest.param("a + b * c", "(+ a (* b c))", id="product before sum"),
        pytest.param("a - b - c", "(- (- a b) c)", id="minus groups from the left"),
        pytest.param("a % b / c", "(/ (% a b) c)", id="% and / group from the left"),
        pytest.param("-a * b", "(* (- a) b)", id="minus sign before product"),
        pytest.param("- - 5", "(- -5)", id="a minus sign before a number is part of it"),
        pytest.param("a -1", "(- a 1)", id="a minus after a value subtracts"),
        pytest.param("a || b + c", "(|| a (+ b c))", id="sum before ||"),
        pytest.param("a and b and c and d", "(and a b c d)", id="and chains stay flat"),
        pytest.param("(a and b) and c", "(and (and a b) c)", id="parentheses are kept"),
        pytest.param("a between 1 and 2 and b", "(and (between a 1 2) b)", id="between's and"),
        pytest.param("a not between 1 and 2", "(not-between a 1 2)", id="not between"),
        pytest.param("a + 1 in (1, 2)", "(inlist (+ a 1) 1 2)", id="sum before in"),
        pytest.param("a NOT IN (null)", "(not-inlist a None)", id="keywords have any case"),
        pytest.param("a Is Not Null", "(not-isnull a)", id="is not null"),
        pytest.param("a like 'x%' || 'y'", "(like a (|| 'x%' 'y'))", id="|| before like"),
        pytest.param("a == b", "(= a b)", id="== is ="),
        pytest.param("a <> b", "(!= a b)", id="<> is !="),
        pytest.param("'it''s'", '"it\'s"', id="two quotes are one"),
        pytest.param('"a ""b"" 日"', 'a "b" 日', id="any name in double quotes"),
        pytest.param("größe > 1.5e3", "(> größe 1500.0)", id="letters of any script"),
        pytest.param("a.b.c", "(.c (.b a))", id="fields of structs"),
        pytest.param("date = date '2026-01-02'", "(= date datetime.date(2026, 1, 2))", id="date"),
        pytest.param("LOWER(a)", "(lower a)", id="functions have any case"),
        pytest.param("case when a then b else c end", "(case a b c)", id="case"),
        pytest.param("case x when 1 then 2 end", "(case x 1 2)", id="case with a subject"),
        pytest.param("cast(a as decimal(12, 2))", "(cast a)", id="cast"),
        pytest.param("9223372036854775808", "9223372036854775808", id="an uint64"),
        pytest.param("-9223372036854775808", "-9223372036854775808", id="the least int64"),
    ],
)
def test_text_parses_to_tree(text: str, tree: str) -> None:
    assert show(parse(text).root) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "price >",
            """
            … end
                price >
                       ^
            """,
            id="an operand is missing",
        ),
        pytest.param(
            "a = 'de",
            """
            … '
                a = 'de
                    ^
            """,
            id="an open string",
        ),
        pytest.param(
            "a = “de”",
            """
            … "
                a = “de”
                    ^
            """,
            id="curly quotes",
        ),
        pytest.param(
            "a && b",
            """
            … & … and
                a && b
                  ^
            """,
            id="operators of C",
        ),
        pytest.param(
            "0 < a < 5",
            """
            … and
                0 < a < 5
                      ^
            """,
            id="chained comparison",
        ),
        pytest.param(
            "a = not b",
            """
            … (not
                a = not b
                    ^^^
            """,
            id="not after =",
        ),
        pytest.param(
            "a in ()",
            """
            … in … false
                a in ()
                      ^
            """,
            id="empty list",
        ),
        pytest.param(
            "(a > 1\nand b > 2",
            """
            … ) … end
                and b > 2
                         ^
            """,
            id="the line of the error alone is shown",
        ),
        pytest.param(
            "a > 1\nand end = 2",
            """
            … `end` … "end"
                and end = 2
                    ^^^
            """,
            id="a keyword as a name",
        ),
        pytest.param(
            "a b",
            """
            … `b`
                a b
                  ^
            """,
            id="two values",
        ),
        pytest.param(
            "a > 1.2.3",
            """
            … number
                a > 1.2.3
                    ^^^^
            """,
            id="two points",
        ),
        pytest.param(
            "a > 18446744073709551616",
            """
            … -9223372036854775808 … 18446744073709551615 … 18446744073709551616
                a > 18446744073709551616
                    ^^^^^^^^^^^^^^^^^^^^
            """,
            id="one beyond uint64",
        ),
        pytest.param(
            "d > date '2026-02-30'",
            """
            … '2026-02-30'
                d > date '2026-02-30'
                         ^^^^^^^^^^^^
            """,
            id="no such day",
        ),
        pytest.param(
            "a is 5",
            """
            … null … is … 5
                a is 5
                     ^
            """,
            id="is without null",
        ),
        pytest.param(
            "case a end",
            """
            … when … case … end
                case a end
                       ^^^
            """,
            id="case without when",
        ),
    ],
)
def test_a_broken_rule_is_shown_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    words, _, place = str(caught.value).partition("\n")
    facts, _, shown = unindent(message).partition("\n")
    assert_told(words, facts)
    assert place == shown


@pytest.mark.parametrize("text", ["", " \n "])
def test_an_empty_text_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="empty"):
        parse(text)


def unindent(block: str) -> str:
    """The lines of a block without the indent of its first."""
    lines = block.split("\n")[1:-1]
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH, id="parentheses"),
        pytest.param("not " * 200 + "a", id="not"),
        pytest.param("- " * 200 + "a", id="minus"),
        pytest.param("a" + " + a" * 200, id="a long sum"),
        pytest.param("abs(" * 200 + "a" + ")" * 200, id="calls"),
        pytest.param("a" + ".b" * 200, id="fields"),
        pytest.param("case when " * 200, id="cases"),
        pytest.param("a is null " + "is null " * 200, id="is null"),
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match=str(MAX_DEPTH)):
        parse(text)


def test_nesting_up_to_the_bound_is_taken() -> None:
    depth = MAX_DEPTH - 1  # the name inside is a level of its own
    assert parse("(" * depth + "a" + ")" * depth).columns == {"a"}


def test_long_chains_of_and_are_not_deep() -> None:
    expr = parse(" and ".join(f"a != {i}" for i in range(1000)))
    assert len(conjuncts(expr)) == 1000


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(ExpressionError, match=rf"{MAX_TEXT_CHARS}.*16385"):
        parse("a" * (MAX_TEXT_CHARS + 1))


def test_columns_are_collected() -> None:
    text = "a.x + \"b c\" > 1 and lower(d) in ('e', f) or case g when h then i end"
    assert parse(text).columns == {"a", "b c", "d", "f", "g", "h", "i"}


def test_an_expression_travels_to_another_process() -> None:
    expr = parse("a > 1 and date '2026-01-01' < b")
    copy = pickle.loads(pickle.dumps(expr))
    assert (copy, copy.root) == (expr, expr.root)
    assert isinstance(copy, Expression)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param("a", ["a"], id="nothing to split"),
        pytest.param("a and b", ["a", "b"], id="two"),
        pytest.param("(a and (b)) and c > 1", ["a", "b", "c > 1"], id="nested ones are flat"),
        pytest.param("(a or b) and c", ["a or b", "c"], id="or stays whole"),
        pytest.param("(a) + b > 1 and c", ["(a) + b > 1", "c"], id="inner parentheses stay"),
        pytest.param("not (a and b)", ["not (a and b)"], id="under not nothing splits"),
        pytest.param("a between 1 and 2 and b", ["a between 1 and 2", "b"], id="between's and"),
    ],
)
def test_conjuncts(text: str, parts: list[str]) -> None:
    assert [part.text for part in conjuncts(parse(text))] == parts


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        pytest.param("a > 1 and b = a", '"x""y" > 1 and "a" = "x""y"', id="at once, not in turn"),
        pytest.param("a.a = 'a'", '"x""y".a = \'a\'', id="fields and strings stay"),
        pytest.param("c > 1", "c > 1", id="others stay"),
    ],
)
def test_rename_columns(text: str, renamed: str) -> None:
    assert rename_columns(parse(text), {"a": 'x"y', "b": "a"}).text == renamed
