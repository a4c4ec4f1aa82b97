"""A small, safe expression language over Arrow tables.

`filter`, `derive` and `weight` steps and the `where:` of a source are written in it. A text becomes
an `Expression` (by `grammar`), is typed against a schema (binder) and runs on Arrow's kernels
(evaluate); no Python of the user's is ever run. docs/expressions.md is the reference for users.

    expr = parse("price > 0 and country in ('de', 'fr')")
    check_boolean(expr, table.schema)
    kept = table.filter(mask(expr, table))
"""

from __future__ import annotations

from pipeline_runtime.expressions.expression import (
    Expression,
    check_boolean,
    evaluate,
    infer_type,
    mask,
    parse,
)
from pipeline_runtime.expressions.pushdown import to_dataset_filter, to_filter
from pipeline_runtime.expressions.rewrite import conjuncts, not_true, quote_name, rename_columns

__all__ = [
    "Expression",
    "check_boolean",
    "conjuncts",
    "evaluate",
    "infer_type",
    "mask",
    "not_true",
    "parse",
    "quote_name",
    "rename_columns",
    "to_dataset_filter",
    "to_filter",
]
