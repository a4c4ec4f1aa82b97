"""Step `measure`: let rows pass, and return what metrics need to know of them.

`observe` returns the state of the metrics for the rows of a chunk, as bytes. The feed takes it
along with the chunk's counts, and the consumer merges and finishes the states of all chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Self

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.expressions import Expression
from pipeline_runtime.hashing import check_hashable
from pipeline_runtime.measuring.base import Accumulator, Result
from pipeline_runtime.measuring.classification import Auc, Calibration, Confusion, LogLoss
from pipeline_runtime.measuring.columns import Distinct, Mean, Quantiles, TopK
from pipeline_runtime.measuring.custom import Custom
from pipeline_runtime.measuring.grouping import Grouped
from pipeline_runtime.measuring.groups_of_rows import GroupAuc, Ndcg
from pipeline_runtime.measuring.values import State
from pipeline_runtime.steps.base import BindContext, Transform
from pipeline_runtime.steps.checks import (
    Checks,
    broken,
    check_number,
    find_field,
    parse_condition,
)
from pipeline_runtime.steps.map.functions import load_function
from pipeline_runtime.steps.measure.model import MeasureStep, Metric
from pipeline_runtime.steps.observing import AccumulatingStep
from pipeline_runtime.steps.training_only import keep_for_evaluation

# Bits by which AUC tells scores apart; fewer in a group, since a state has up to 1,024 of them.
_BITS, _GROUP_BITS = 20, 16
_METHODS = ("init", "update", "merge", "finish")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundMetric:
    """A metric and its rows."""

    name: str
    kind: str
    accumulator: Accumulator
    where: Expression | None = None

    def update(self, table: pa.Table) -> State:
        """Return the state of these rows."""
        if self.where is not None:
            table = table.filter(expressions.mask(self.where, table))
        return self.accumulator.update(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(AccumulatingStep):
    """Returns the rows as they are, and the states of metrics."""

    kind: ClassVar[str] = "measure"

    metrics: tuple[BoundMetric, ...]

    @classmethod
    def bind(
        cls, config: MeasureStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        metrics = []
        for index, metric in enumerate(config.metrics):
            for field, check in _list_checks(metric, input_schema):
                with checks.at(f"metrics[{index}].{field}"):
                    check()
            where = None
            with checks.at(f"metrics[{index}].where"):
                if metric.where is not None:
                    where = parse_condition(metric.where, input_schema)
            accumulator = build_accumulator(metric)
            metrics.append(
                BoundMetric(
                    name=metric.name, kind=metric.kind, accumulator=accumulator, where=where
                )
            )
        checks.finish()
        read = [m.accumulator.columns | (m.where.columns if m.where else set()) for m in metrics]
        return cls(
            metrics=tuple(metrics), inputs=frozenset().union(*read), output_schema=input_schema
        )

    @property
    def calls_user_code(self) -> bool:
        return any(metric.kind == "accumulator" for metric in self.metrics)

    def __call__(self, table: pa.Table) -> pa.Table:
        return table

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(metric.accumulator for metric in self.metrics)

    @property
    def observes_all(self) -> bool:
        return True

    def for_evaluation(self) -> Transform:
        return keep_for_evaluation(self.output_schema)

    def observe(self, table: pa.Table) -> tuple[pa.Table, bytes]:
        """Return the rows as they are, and the state of the metrics for them."""
        return table, self.dump([metric.update(table) for metric in self.metrics])

    def finish(self, states: Sequence[State]) -> Iterator[Result]:
        """Yield the result of each metric, with its name and kind."""
        for metric, state in zip(self.metrics, states, strict=True):
            yield {"name": metric.name, "kind": metric.kind, **metric.accumulator.finish(state)}


def build_accumulator(metric: Metric) -> Accumulator:
    """Return the accumulator of a metric."""
    whole = _build(metric, metric.config, is_group=False)
    if metric.group_by is None:
        return whole
    inner = _build(metric, metric.config, is_group=True)
    return Grouped(
        whole=whole, inner=inner, by=tuple(metric.group_by), max_groups=metric.max_groups
    )


def _build(metric: Metric, config: Any, *, is_group: bool) -> Accumulator:
    if metric.per is not None and metric.kind == "auc":
        return GroupAuc(score=config.score, label=config.label, per=metric.per)
    builders: Mapping[str, Callable[[], Accumulator]] = {
        "auc": lambda: Auc(
            score=config.score,
            label=config.label,
            weight=config.weight,
            bits=_GROUP_BITS if is_group else _BITS,
            has_curve=not is_group,
        ),
        "logLoss": lambda: LogLoss(score=config.score, label=config.label, weight=config.weight),
        "normalizedEntropy": lambda: LogLoss(
            score=config.score, label=config.label, weight=config.weight, is_normalized=True
        ),
        "calibration": lambda: Calibration(
            score=config.score, label=config.label, weight=config.weight, bins=config.bins
        ),
        "confusion": lambda: Confusion(
            score=config.score,
            label=config.label,
            weight=config.weight,
            thresholds=tuple(sorted({float(Fraction(each)) for each in config.thresholds})),
        ),
        "ndcg": lambda: Ndcg(
            score=config.score, label=config.label, per=metric.per or "", k=config.k
        ),
        "mean": lambda: Mean(column=config.column, weight=config.weight),
        "quantiles": lambda: Quantiles(
            column=config.column,
            at=tuple(sorted({Fraction(each) / 100 for each in config.at_percent})),
        ),
        "distinct": lambda: Distinct(column=config.column),
        "topK": lambda: TopK(column=config.column, k=config.k, limit=config.max_values),
        "accumulator": lambda: Custom(function=config.function, read=tuple(config.columns)),
    }
    return builders[metric.kind]()


def _list_checks(metric: Metric, schema: pa.Schema) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the field and the check of each column and function that a metric names."""
    config: Any = metric.config
    for field in ("score", "label", "weight", "column"):
        name = getattr(config, field, None)
        if name is not None:
            is_value = metric.kind in ("distinct", "topK")
            check = _check_value if is_value else check_number
            yield f"{metric.kind}.{field}", partial(check, schema, name)
    if metric.kind == "accumulator":
        for index, name in enumerate(config.columns):
            yield f"accumulator.columns[{index}]", partial(find_field, schema, name)
        yield "accumulator.function", partial(_check_function, config.function)
    for index, name in enumerate(metric.group_by or ()):
        yield f"groupBy[{index}]", partial(_check_value, schema, name)
    if metric.per is not None:
        yield "per", partial(_check_value, schema, metric.per)


def _check_value(schema: pa.Schema, name: str) -> None:
    field = find_field(schema, name)
    try:
        check_hashable(field.type)
    except TypeError as error:
        raise broken(f"must be a column whose values can be told apart: {error}") from error


def _check_function(path: str) -> None:
    function = load_function(path, takes_class=True)
    try:
        accumulator = function()
    except Exception as error:  # whatever the user's function raises
        raise broken(
            f"must return an accumulator when it is called without arguments, but {path} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    missing = [name for name in _METHODS if not callable(getattr(accumulator, name, None))]
    if missing:
        raise broken(
            f"must return an object with the methods {', '.join(_METHODS)}, but that of {path} has "
            f"no {', '.join(missing)}; see docs/steps.md"
        )
