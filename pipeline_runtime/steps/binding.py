"""From the steps of a manifest to transforms: the kinds there are, and all problems at once.

The planner calls `bind_pipeline` with the source's schema. Each step is bound to what the one
before it puts out. After a step with a problem the rest is still checked, against what is known: a
later problem that may only follow from an earlier one is not reported.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.config import steps as models
from pipeline_runtime.config.base import SpecModel
from pipeline_runtime.errors import ExpressionError, ManifestError, Problem
from pipeline_runtime.steps.anti_join import AntiJoin
from pipeline_runtime.steps.base import BindContext, Transform, public_schema
from pipeline_runtime.steps.cast import Cast
from pipeline_runtime.steps.derive import Derive
from pipeline_runtime.steps.downsample import Downsample
from pipeline_runtime.steps.drop import Drop
from pipeline_runtime.steps.fill_null import FillNull
from pipeline_runtime.steps.filter import Filter
from pipeline_runtime.steps.hash_bucket import HashBucket
from pipeline_runtime.steps.join import Join
from pipeline_runtime.steps.map import Map
from pipeline_runtime.steps.pad_sequence import PadSequence
from pipeline_runtime.steps.rename import Rename
from pipeline_runtime.steps.sample import Sample
from pipeline_runtime.steps.select import Select
from pipeline_runtime.steps.truncate import Truncate
from pipeline_runtime.steps.weight import Weight

_TRANSFORMS: Mapping[type[SpecModel], Any] = {
    models.FilterStep: Filter,
    models.DeriveStep: Derive,
    models.AntiJoinStep: AntiJoin,
    models.JoinStep: Join,
    models.DownsampleStep: Downsample,
    models.SampleStep: Sample,
    models.WeightStep: Weight,
    models.RenameStep: Rename,
    models.SelectStep: Select,
    models.DropStep: Drop,
    models.CastStep: Cast,
    models.FillNullStep: FillNull,
    models.PadSequenceStep: PadSequence,
    models.TruncateStep: Truncate,
    models.HashBucketStep: HashBucket,
    models.MapStep: Map,
}


def bind_step(
    step: SpecModel, input_schema: pa.Schema, context: BindContext, path: str = "pipeline[0]"
) -> Transform:
    """The step, a `Step` or the model of its kind, bound to its input.

    Raises:
        ManifestError: every rule that the step breaks, each under `path`.
    """
    config = step.config if isinstance(step, models.Step) else step
    try:
        bound: Transform = _TRANSFORMS[type(config)].bind(
            config, public_schema(input_schema), context
        )
    except ManifestError as error:
        raise ManifestError(
            [dataclasses.replace(p, path=f"{path}.{p.path}") for p in error.problems]
        ) from error
    return bound


def bind_pipeline(
    steps: Sequence[SpecModel],
    schema: pa.Schema,
    context: BindContext,
    path: str = "spec.pipeline",
) -> tuple[Transform, ...]:
    """The steps bound one after another.

    Raises:
        ManifestError: every problem of every step that could still be checked.
    """
    transforms: list[Transform] = []
    problems: list[Problem] = []
    known = _Known(schema=public_schema(schema))
    for index, step in enumerate(steps):
        config = step.config if isinstance(step, models.Step) else step
        try:
            transform = bind_step(config, known.schema, context, f"{path}[{index}]")
        except ManifestError as error:
            problems.extend(known.unexplained(error.problems, config))
            known = known.after_failure(config)
            continue
        transforms.append(transform)
        known = dataclasses.replace(known, schema=transform.output_schema)
    if problems:
        raise ManifestError(problems)
    return number_draws(transforms)


def number_draws(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Tell each sampling step how many before it draw with its seed over the same identity."""
    seen: Counter[tuple[object, ...]] = Counter()
    numbered: list[Transform] = []
    for transform in transforms:
        if (key := transform.draws_by) is None:
            numbered.append(transform)
            continue
        numbered.append(transform.numbered(seen[key]))
        seen[key] += 1
    return tuple(numbered)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of the columns at a place in the pipeline, after steps that may have failed."""

    schema: pa.Schema
    unsure: frozenset[str] = frozenset()  # columns that a failed step was to make or change
    is_open: bool = False  # a failed step may have made columns of any name

    def unexplained(self, problems: Sequence[Problem], config: SpecModel) -> list[Problem]:
        """The step's problems that cannot follow from an earlier step's."""
        if self.is_open and mentioned_columns(config) - set(self.schema.names):
            return []
        if not self.unsure:
            return list(problems)
        return [problem for problem in problems if not self._may_explain(problem)]

    def _may_explain(self, problem: Problem) -> bool:
        """Whether the message quotes an unsure column, or shows an expression that names one."""
        headline, _, text = problem.message.partition("\n")
        return any(
            repr(name) in headline or re.search(rf"\b{re.escape(name)}\b", text)
            for name in self.unsure
        )

    def after_failure(self, config: SpecModel) -> _Known:
        made = declared_outputs(config)
        return _Known(
            schema=self.schema,
            unsure=self.unsure | (made or frozenset()),
            is_open=self.is_open or made is None,
        )


def declared_outputs(config: SpecModel) -> frozenset[str] | None:
    """The columns that the step makes or changes, by its model; None if it does not say."""
    match config:
        case models.DownsampleStep(weight_column=str(name)) | models.WeightStep(column=name):
            return frozenset([name])
        case models.RenameStep(columns=columns):
            return frozenset(column.new_name for column in columns)
        case models.JoinStep(columns=columns):
            return None if columns is None else frozenset(columns)
        case models.MapStep(output_columns=typed):
            return None if typed is None else frozenset(column.name for column in typed)
        case models.DeriveStep(columns=columns) | models.CastStep(columns=columns):
            return frozenset(column.name for column in columns)
        case models.PadSequenceStep(columns=columns) | models.HashBucketStep(columns=columns):
            return frozenset(columns)
    return frozenset()


def mentioned_columns(config: SpecModel) -> frozenset[str]:
    """The columns of its input that the step's model names."""
    names = set(_named_columns(config))
    for text in _expression_texts(config):
        try:
            names |= expressions.parse(text).columns
        except ExpressionError:
            continue  # its own problem, whatever its columns are
    return frozenset(names)


def _named_columns(config: SpecModel) -> Iterator[str]:
    match config:
        case models.SideTableStep():
            yield from config.left_keys
        case models.SampleStep(by=by):
            yield from by or ()
        case models.MapStep(input_columns=columns):
            yield from columns or ()
        case models.DownsampleStep(weight_column=str(name)) | models.WeightStep(column=name):
            yield name
        case models.DeriveStep():
            return
        case (
            models.RenameStep(columns=columns)
            | models.CastStep(columns=columns)
            | models.FillNullStep(columns=columns)
        ):
            yield from (column.name for column in columns)
        case (
            models.SelectStep(columns=columns)
            | models.DropStep(columns=columns)
            | models.PadSequenceStep(columns=columns)
            | models.TruncateStep(columns=columns)
            | models.HashBucketStep(columns=columns)
        ):
            yield from columns


def _expression_texts(config: SpecModel) -> Iterator[str]:
    match config:
        case models.DeriveStep(columns=columns):
            yield from (column.expression for column in columns)
        case models.FilterStep(where=text) | models.WeightStep(by=text):
            yield text
        case models.DownsampleStep(where=str(text)):
            yield text
