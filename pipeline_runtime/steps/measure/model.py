"""The fields of the step `measure`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field
from pydantic.alias_generators import to_camel

from pipeline_runtime.config.base import (
    Column,
    Columns,
    Expression,
    ImportPath,
    Label,
    PositiveInt,
    SpecModel,
    check_one_of,
    check_unique_names,
)
from pipeline_runtime.config.decimals import KeepPercent, Number
from pipeline_runtime.config.step_model import Arguments, StepModel

MAX_METRICS = 64
# Lines of a table in a report, at most.
MAX_LINES = 100
# Groups of a result; a state has a few more (`measuring.grouping`).
MAX_GROUPS = 1000
# Values that are counted one by one: 100 MB in the driver's memory.
MAX_VALUES = 1_000_000


class ScoredMetric(SpecModel):
    """A metric of a score and a label."""

    score: Column
    """Column of the score."""
    label: Column
    """Column of the label: booleans, or 0 and 1."""
    weight: Column | None = None
    """Column of the rows' weights; 1 if absent."""


class CalibrationMetric(ScoredMetric):
    """A comparison of probabilities with labels."""

    bins: Annotated[int, Field(ge=1, le=MAX_LINES)] = 10
    """Number of equally wide ranges of the score in the reliability curve."""


class ConfusionMetric(ScoredMetric):
    """The rows that thresholds classify rightly and wrongly."""

    thresholds: Annotated[tuple[Number, ...], Field(min_length=1, max_length=MAX_LINES)]
    """Thresholds: a score at or above one counts as positive. Integers, or decimal numbers as
    texts, such as `"0.5"`."""


class NdcgMetric(SpecModel):
    """A metric of a ranking by a score."""

    score: Column
    """Column of the score."""
    label: Column
    """Column of the gain: a number that is not negative."""
    k: PositiveInt | None = None
    """Only the `k` highest scores of a group count; all if absent."""


class MeanMetric(SpecModel):
    """A mean."""

    column: Column
    """Column of numbers or booleans."""
    weight: Column | None = None
    """Column of the rows' weights; 1 if absent."""


class QuantilesMetric(SpecModel):
    """Quantiles."""

    column: Column
    """Column of numbers."""
    at_percent: Annotated[tuple[KeepPercent, ...], Field(min_length=1, max_length=MAX_LINES)]
    """Percentages of the rows, 0 to 100, such as `50` for the median, or `"99.9"`."""


class DistinctMetric(SpecModel):
    """A number of different values."""

    column: Column
    """Column of integers, texts, booleans, dates or times."""


class TopKMetric(SpecModel):
    """The most frequent values."""

    column: Column
    """Column of integers, texts, booleans, dates or times."""
    k: Annotated[int, Field(ge=1, le=MAX_LINES)]
    """Number of values."""
    max_values: Annotated[int, Field(ge=1, le=MAX_VALUES)] = 65_536
    """Number of different values that are counted. Of a column with more, only a random sample of
    its values is, and the result says so."""


class AccumulatorMetric(SpecModel):
    """A metric of the user's own."""

    function: ImportPath
    """`package.module:name` of a class, or of a function without parameters, that returns an
    object with `init`, `update`, `merge` and `finish`."""
    columns: Columns
    """Columns of the tables that `update` gets."""


class Metric(SpecModel):
    """A metric: its name, exactly one kind, and the rows that it is measured on."""

    name: Label
    """Name of the metric in the results."""
    auc: ScoredMetric | None = None
    """Area under the ROC curve. With `per`, the mean over groups, weighted by rows (GAUC)."""
    log_loss: ScoredMetric | None = None
    """Mean negative logarithm of the probability of the label."""
    normalized_entropy: ScoredMetric | None = None
    """Log-loss divided by the entropy of the mean label."""
    calibration: CalibrationMetric | None = None
    """Mean score divided by the mean label, and the reliability curve."""
    confusion: ConfusionMetric | None = None
    """True and false positives and negatives at thresholds."""
    ndcg: NdcgMetric | None = None
    """Normalized discounted cumulative gain: the mean over the groups of `per`."""
    mean: MeanMetric | None = None
    """Mean, or weighted mean, of a column."""
    quantiles: QuantilesMetric | None = None
    """Quantiles of a column."""
    distinct: DistinctMetric | None = None
    """Number of different values of a column."""
    top_k: TopKMetric | None = None
    """Most frequent values of a column."""
    accumulator: AccumulatorMetric | None = None
    """The user's own metric, in Python."""
    where: Expression | None = None
    """A boolean expression: only rows for which it is true are measured."""
    group_by: Columns | None = None
    """Measure each group of rows with equal values in these columns too."""
    max_groups: Annotated[int, Field(ge=1, le=MAX_GROUPS)] = 100
    """Number of groups, those with the most rows; the others are together in `other`."""
    per: Column | None = None
    """Column of a user or a request, whose rows lie together in the table: `auc` and `ndcg` are
    measured for each of its values, and averaged."""

    KINDS: ClassVar[tuple[str, ...]] = (
        "auc",
        "log_loss",
        "normalized_entropy",
        "calibration",
        "confusion",
        "ndcg",
        "mean",
        "quantiles",
        "distinct",
        "top_k",
        "accumulator",
    )

    def rules(self) -> Iterator[tuple[str, str]]:
        given = [to_camel(name) for name in self.KINDS if getattr(self, name) is not None]
        if broken := check_one_of([to_camel(name) for name in self.KINDS], given):
            yield "", broken
        if self.per is not None and self.auc is None and self.ndcg is None:
            yield "per", "must come with auc or ndcg, got neither; remove it"
        if self.ndcg is not None and self.per is None:
            yield "per", "must come with ndcg, got none; name the column of a user or a request"
        if self.per is not None and self.auc is not None and self.auc.weight is not None:
            yield (
                "auc.weight",
                "must not come with per, which weighs groups by their rows; remove it",
            )

    @property
    def kind(self) -> str:
        """The kind as a manifest has it."""
        return next(to_camel(name) for name in self.KINDS if getattr(self, name) is not None)

    @property
    def config(self) -> SpecModel:
        """The fields of the kind."""
        found = (getattr(self, name) for name in self.KINDS)
        config: SpecModel = next(each for each in found if each is not None)
        return config


class MeasureStep(StepModel):
    """Measure the rows, which pass unchanged: metrics of scores, labels and other columns."""

    measures_training: ClassVar[bool] = True

    metrics: Annotated[
        tuple[Metric, ...],
        Field(min_length=1, max_length=MAX_METRICS),
        AfterValidator(check_unique_names),
    ]
    """Metrics, by name."""

    @classmethod
    def from_python(cls, *metrics: Mapping[str, Any]) -> Arguments:
        """Return the fields.

        Args:
            metrics: Each metric as a manifest has it, such as `{"name": "ctr", "mean": {"column":
                "click"}}`.
        """
        return {"metrics": [dict(metric) for metric in metrics]}

    def find_measured(self) -> str | None:
        return self.kind()

    def describe(self) -> str:
        return ", ".join(f"{metric.name}: {metric.kind}" for metric in self.metrics)

    def find_expressions(self) -> Iterator[tuple[str, str]]:
        for index, metric in enumerate(self.metrics):
            if metric.where is not None:
                yield f"metrics[{index}].where", metric.where

    def find_inputs(self) -> Iterable[str]:
        for metric in self.metrics:
            yield from metric.group_by or ()
            yield from (metric.per,) if metric.per is not None else ()
            yield from _list_columns(metric.config)


def _list_columns(config: SpecModel) -> Iterator[str]:
    """Yield the columns that the fields of a kind name."""
    for field in ("score", "label", "weight", "column"):
        if (name := getattr(config, field, None)) is not None:
            yield name
    if isinstance(config, AccumulatorMetric):
        yield from config.columns
