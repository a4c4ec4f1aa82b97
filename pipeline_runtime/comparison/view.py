"""The tables of a comparison as texts, which the terminal and the page show alike.

`comparing` runs before this, `terminal` and `page` after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline_runtime.comparison.judging import format_difference
from pipeline_runtime.comparison.model import (
    ComparedMetric,
    ComparedVariant,
    Comparison,
    Difference,
)
from pipeline_runtime.formatting import NOTHING, format_count, format_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table; all columns but the first `num_texts` hold numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_texts: int = 1


def build_tables(comparison: Comparison) -> list[TextTable]:
    """Return all tables that have rows, in the order in which they are shown."""
    labels = tuple(variant.label for variant in comparison.variants)
    tables = [
        TextTable(
            title="Variants",
            header=("", "run", "seeds", "evaluation rows"),
            rows=tuple(_list_variant(variant) for variant in comparison.variants),
            num_texts=3,
        ),
        TextTable(
            title="Manifests: fields that differ",
            header=("field", *labels),
            rows=tuple((each.path, *each.values) for each in comparison.settings),
            num_texts=1 + len(labels),
        ),
        *_build_shared(comparison, labels),
        TextTable(
            title="Data and software",
            header=("", *labels),
            rows=tuple((fact.name, *fact.values) for fact in comparison.data),
            num_texts=1 + len(labels),
        ),
        *_build_steps(comparison, labels),
        TextTable(
            title="Other metrics, each run on its own rows (mean ± deviation)",
            header=("metric", *labels),
            rows=tuple(
                (metric.name, *_list_means(metric))
                for metric in comparison.metrics
                if not metric.on_shared_rows
            ),
        ),
        TextTable(
            title="Time and cost (mean of a variant's runs)",
            header=("", *labels),
            rows=tuple((fact.name, *fact.values) for fact in comparison.cost),
        ),
    ]
    return [table for table in tables if table.rows]


def _list_variant(variant: ComparedVariant) -> tuple[str, ...]:
    seeds = ", ".join(NOTHING if run.seed is None else str(run.seed) for run in variant.runs)
    counts = sorted(
        {run.evaluation_rows for run in variant.runs if run.evaluation_rows is not None}
    )
    rows = " to ".join(format_count(count) for count in dict.fromkeys((*counts[:1], *counts[-1:])))
    return variant.label, variant.title, seeds, rows or NOTHING


def _build_steps(comparison: Comparison, labels: Sequence[str]) -> Iterator[TextTable]:
    for stream in ("Training", "Evaluation"):
        steps = [step for step in comparison.steps if step.stream == stream]
        yield TextTable(
            title=f"Rows that left each step, {stream.lower()}",
            header=("step", *labels),
            rows=tuple(
                (step.kind, *(NOTHING if n is None else format_count(n) for n in step.rows))
                for step in steps
            ),
        )


def _build_shared(comparison: Comparison, labels: Sequence[str]) -> Iterator[TextTable]:
    shared = [metric for metric in comparison.metrics if metric.on_shared_rows]
    if not shared or comparison.shared_rows is None:
        return
    num_rows, num_groups = comparison.shared_rows.rows, comparison.shared_rows.groups
    rows = f"{format_count(num_rows)} shared evaluation rows"
    if num_groups < num_rows:
        rows = f"{rows} of {format_count(num_groups)} groups"
    yield TextTable(
        title=f"Metrics on the {rows} (mean ± deviation)",
        header=("metric", *labels),
        rows=tuple((metric.name, *_list_means(metric)) for metric in shared),
    )
    interval = f"{100 * shared[0].differences[0].confidence:.3g} % interval"
    yield TextTable(
        title="Differences from A",
        header=("metric", "difference", interval, "detectable", "verdict"),
        rows=tuple(
            (f"{metric.name}, {difference.label}", *_list_difference(difference))
            for metric in shared
            for difference in metric.differences
        ),
    )


def _list_difference(difference: Difference) -> tuple[str, ...]:
    ends = [end for end in (difference.low, difference.high) if end is not None]
    return (
        format_difference(difference.value),
        " to ".join(map(format_difference, ends)) or "unknown",
        format_metric(difference.detectable) if difference.detectable else NOTHING,
        difference.verdict,
    )


def _list_means(metric: ComparedMetric) -> list[str]:
    return [
        NOTHING
        if mean is None
        else format_metric(mean)
        if deviation is None
        else f"{format_metric(mean)} ± {format_metric(deviation)}"
        for mean, deviation in zip(metric.means, metric.deviations, strict=True)
    ]
