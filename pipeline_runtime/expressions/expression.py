"""The public calls of the package: parse, type, evaluate.

`Expression` is bound to nothing; what it means for a schema is worked out once and remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.expressions import binder
from pipeline_runtime.expressions import evaluate as evaluation
from pipeline_runtime.expressions.plan import Plan
from pipeline_runtime.grammar.parser import parse_tree
from pipeline_runtime.grammar.syntax_tree import Column, Node, walk

# Typed plans kept; a manifest has tens of expressions, each met with one or two schemas.
_NUM_PLANS_KEPT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A parsed expression.

    `text` is as written, `columns` the names of the columns it reads. Equal texts are equal.
    """

    text: str
    columns: frozenset[str]
    root: Node = field(repr=False, compare=False)


def parse(text: str) -> Expression:
    """Parse `text`; raises ExpressionError with the place where it breaks a rule of the grammar."""
    root = parse_tree(text)
    columns = frozenset(node.name for node, _ in walk(root) if isinstance(node, Column))
    return Expression(text=text, columns=columns, root=root)


def build_plan(expr: Expression, schema: pa.Schema) -> Plan:
    """The typed plan of `expr` against `schema`, from memory if both were met before."""
    names = sorted(expr.columns)
    positions = [schema.get_all_field_indices(name) for name in names]
    if all(len(position) == 1 for position in positions):
        columns = tuple(
            (name, schema.field(position[0]).type)
            for name, position in zip(names, positions, strict=True)
        )
        return _bind_columns(expr, columns)
    for name, position in zip(names, positions, strict=True):
        if len(position) > 1:
            raise _ambiguous(expr, name)
    # A column is missing: bind against all of them, for a message that knows their names.
    return binder.bind(expr.root, expr.text, dict(zip(schema.names, schema.types, strict=True)))


@lru_cache(maxsize=_NUM_PLANS_KEPT)
def _bind_columns(expr: Expression, columns: tuple[tuple[str, pa.DataType], ...]) -> Plan:
    return binder.bind(expr.root, expr.text, dict(columns))


def _ambiguous(expr: Expression, name: str) -> ExpressionError:
    node = next(
        node for node, _ in walk(expr.root) if isinstance(node, Column) and node.name == name
    )
    message = f"the table has more than one column {name!r}; rename or drop one before this"
    length = node.span.end - node.span.start
    return ExpressionError(message, text=expr.text, offset=node.span.start, length=length)


def infer_type(expr: Expression, schema: pa.Schema) -> pa.DataType:
    """The type of `expr` over a table of `schema`.

    Raises ExpressionError for an unknown column or function, a wrong number of arguments, or types
    that do not go together.
    """
    return build_plan(expr, schema).type


def check_boolean(expr: Expression, schema: pa.Schema) -> None:
    """Check that `expr` can filter a table of `schema`; raises ExpressionError if not."""
    dtype = infer_type(expr, schema)
    if not pa.types.is_boolean(dtype):
        message = f"a filter needs a boolean, got {dtype}; compare it, as in `x > 0`"
        span = expr.root.span
        length = span.end - span.start
        raise ExpressionError(message, text=expr.text, offset=span.start, length=length)


def evaluate(expr: Expression, table: pa.Table) -> pa.Array | pa.ChunkedArray:
    """The value of `expr` for every row of `table`, of exactly the type that `infer_type` gives.

    Raises ExpressionError as `infer_type` does, and where a value leaves its type's range or a cast
    has no result.
    """
    plan = build_plan(expr, table.schema)
    return evaluation.run(plan, sorted(expr.columns), table, expr.text)


def mask(expr: Expression, table: pa.Table) -> pa.BooleanArray | pa.ChunkedArray:
    """The rows that a filter keeps: true where `expr` is, false where it is false or null."""
    check_boolean(expr, table.schema)
    return pc.fill_null(evaluate(expr, table), False)
