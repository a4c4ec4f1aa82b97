"""Select the predicates that may prune files and row groups before reading.

A conjunct is pushed when it is true for every row that survives the pipeline: those of
`dataset.where`, of the split into training and evaluation, and of filters whose columns no earlier
step has changed. The filter itself stays in the plan: pruning only spares reading what it would
drop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.expressions import Expression
from pipeline_runtime.sources import Predicate
from pipeline_runtime.steps.base import Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushdown:
    """Predicates for the scan and their texts; `kept_back` says why others stayed above."""

    predicates: tuple[Predicate, ...]
    texts: tuple[str, ...]
    kept_back: tuple[tuple[str, str], ...]


def collect_conjuncts(
    filters: Sequence[tuple[Expression | None, Transform]],
) -> tuple[list[Expression], list[tuple[str, str]]]:
    """Conjuncts over source columns, from steps in order (expression None: not a filter)."""
    found: list[Expression] = []
    kept_back: list[tuple[str, str]] = []
    changed: set[str] = set()
    barrier = ""
    for expression, transform in filters:
        for conjunct in expressions.conjuncts(expression) if expression else ():
            touched = sorted(conjunct.columns & changed)
            if barrier:
                kept_back.append((conjunct.text, f"comes after a {barrier} step"))
            elif touched:
                kept_back.append(
                    (conjunct.text, f"column {touched[0]!r} is made by an earlier step")
                )
            else:
                found.append(conjunct)
        changed |= transform.outputs
        # A user's function may do anything, and its errors must not depend on pruning. Other steps
        # change columns by name only. (Pruning may spare a cast that fails on a row which a later
        # filter drops, as in SQL.) A step that measures rows must get those that a later one drops.
        if transform.calls_user_code or transform.observes_all:
            barrier = barrier or transform.kind
    return found, kept_back


def build_pushdown(
    filters: Sequence[tuple[Expression | None, Transform]], schema: pa.Schema
) -> Pushdown:
    """Translate what can be into dataset expressions over the source's schema."""
    found, kept_back = collect_conjuncts(filters)
    pushed: list[Predicate] = []
    for conjunct in found:
        dataset_filter = expressions.to_dataset_filter(conjunct, schema)
        if dataset_filter is None:
            kept_back.append((conjunct.text, "statistics cannot decide it"))
        else:
            pushed.append(Predicate(expression=conjunct, filter=dataset_filter))
    return Pushdown(
        predicates=tuple(pushed),
        texts=tuple(predicate.expression.text for predicate in pushed),
        kept_back=tuple(kept_back),
    )
