"""Makes expressions out of expressions: splits conjunctions, renames columns.

Works on the text, guided by the places that nodes carry, so that the results read as the user wrote
them and carets of later errors point into them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline_runtime.expressions.expression import Expression, parse
from pipeline_runtime.grammar.syntax_tree import Column, IsNull, Logical, Node, Unary, walk


def conjuncts(expr: Expression) -> tuple[Expression, ...]:
    """The operands of the top-level `and`s, each with its own text; `expr` itself if there is none.

    A row passes `expr` exactly if it passes all of them.
    """
    if not _is_and(expr.root):
        return (expr,)
    return tuple(parse(_text_of(node, expr.text)) for node in _operands(expr.root))


def _is_and(node: Node) -> bool:
    return isinstance(node, Logical) and node.op == "and"


def _operands(node: Node) -> Iterator[Node]:
    if isinstance(node, Logical) and node.op == "and":
        for operand in node.operands:
            yield from _operands(operand)
    else:
        yield node


def _text_of(node: Node, text: str) -> str:
    return text[node.span.start : node.span.end]


def not_true(expr: Expression) -> Expression:
    """An expression that is true where `expr` is false or null, and that statistics can decide.

    Made of nodes, not of text, so that no bound on texts refuses it. Its own text is SQL's, which
    the grammar does not have: no expression that is parsed equals it.
    """
    span = expr.root.span
    nulls = (
        IsNull(span=span, operand=Column(span=span, name=name, quoted=True), negated=False)
        for name in sorted(expr.columns)
    )
    operands: tuple[Node, ...] = (Unary(span=span, op="not", operand=expr.root), *nulls)
    root = Logical(span=span, op="or", operands=operands)
    return Expression(text=f"({expr.text}) is not true", columns=expr.columns, root=root)


def rename_columns(expr: Expression, mapping: Mapping[str, str]) -> Expression:
    """Return `expr` with every column in `mapping` renamed, all at once; quoted."""
    nodes = [node for node, _ in walk(expr.root) if isinstance(node, Column)]
    text = expr.text
    for node in sorted(nodes, key=lambda node: node.span.start, reverse=True):
        if node.name in mapping:
            name = quote_name(mapping[node.name])
            text = text[: node.span.start] + name + text[node.span.end :]
    return parse(text)


def quote_name(name: str) -> str:
    """A column's name as the language spells it, whatever characters it has."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
