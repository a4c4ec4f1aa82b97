"""Makes transforms of the steps of a manifest, and reports all problems at once.

The planner calls `bind_pipeline` with the source's schema. Each step is bound to what the one
before it puts out. After a step with a problem the rest is still checked, against what is known: a
later problem that may only follow from an earlier one is not reported.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.config.step_model import StepModel
from pipeline_runtime.config.steps import Step
from pipeline_runtime.errors import ExpressionError, ManifestError, Problem
from pipeline_runtime.sources import Bucketing
from pipeline_runtime.steps.base import BindContext, Transform, public_schema


class TransformClass(Protocol):
    """The class of a step's transform."""

    @property
    def kind(self) -> str: ...

    def bind(
        self, config: Any, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Transform:
        """Return the step bound to its input. Raises ManifestError with every broken rule."""
        ...


def load_transform(model: type[StepModel]) -> TransformClass:
    """Import the transform of a step, which stands beside its model.

    Raises:
        TypeError: the module has no transform of the expected name and kind.
    """
    module = importlib.import_module(f"{model.__module__.rpartition('.')[0]}.transform")
    name = model.__name__.removesuffix("Step")
    transform: TransformClass | None = vars(module).get(name)
    if transform is None or transform.kind != model.kind():
        raise TypeError(f"{module.__name__}: must define {name} of kind {model.kind()!r}")
    return transform


def bind_step(
    step: Step | StepModel, input_schema: pa.Schema, context: BindContext, path: str = "pipeline[0]"
) -> Transform:
    """Return the step, a `Step` or the model of its kind, bound to its input.

    Raises:
        ManifestError: every rule that the step breaks, each under `path`.
    """
    config = step.config if isinstance(step, Step) else step
    try:
        bound = load_transform(type(config)).bind(config, public_schema(input_schema), context)
    except ManifestError as error:
        raise ManifestError(
            [dataclasses.replace(p, path=f"{path}.{p.path}") for p in error.problems]
        ) from error
    return bound


def bind_pipeline(
    steps: Sequence[Step | StepModel],
    schema: pa.Schema,
    context: BindContext,
    path: str = "spec.pipeline",
) -> tuple[Transform, ...]:
    """Return the steps, each bound to the output of the one before.

    Raises:
        ManifestError: every problem of every step that could still be checked.
    """
    transforms: list[Transform] = []
    problems: list[Problem] = []
    known = _Known(schema=public_schema(schema))
    for index, step in enumerate(steps):
        config = step.config if isinstance(step, Step) else step
        try:
            transform = bind_step(config, known.schema, context, f"{path}[{index}]")
        except ManifestError as error:
            problems.extend(known.unexplained(error.problems, config))
            known = known.after_failure(config)
            continue
        transforms.append(transform)
        known = dataclasses.replace(known, schema=transform.output_schema)
        context = dataclasses.replace(context, bucketing=_follow(context.bucketing, transform))
    if problems:
        raise ManifestError(problems)
    return number_draws(transforms)


def _follow(bucketing: Bucketing | None, transform: Transform) -> Bucketing | None:
    """Return the buckets of the rows after a step; None once it changes their column."""
    name = transform.find_output(bucketing.column) if bucketing is not None else None
    if bucketing is None or name is None:
        return None
    partitions = [
        dataclasses.replace(field, column=found)
        for field in bucketing.partitions
        if (found := transform.find_output(field.column)) is not None
    ]
    return dataclasses.replace(bucketing, column=name, partitions=tuple(partitions))


def number_draws(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Number the sampling steps that draw with the same seed over the same identity."""
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
    """The known columns at a place in the pipeline, after steps that may have failed."""

    schema: pa.Schema
    unsure: frozenset[str] = frozenset()  # columns that a failed step was to make or change
    is_open: bool = False  # a failed step may have made columns of any name

    def unexplained(self, problems: Sequence[Problem], config: StepModel) -> list[Problem]:
        """Return the step's problems that cannot follow from those of an earlier step."""
        if self.is_open and mentioned_columns(config) - set(self.schema.names):
            return []
        if not self.unsure:
            return list(problems)
        return [problem for problem in problems if not self._may_explain(problem)]

    def _may_explain(self, problem: Problem) -> bool:
        """Return whether the message quotes an unsure column, or an expression that names one."""
        headline, _, text = problem.message.partition("\n")
        return any(
            repr(name) in headline or re.search(rf"\b{re.escape(name)}\b", text)
            for name in self.unsure
        )

    def after_failure(self, config: StepModel) -> _Known:
        made = config.find_outputs()
        return _Known(
            schema=self.schema,
            unsure=self.unsure | (made or frozenset()),
            is_open=self.is_open or made is None,
        )


def mentioned_columns(config: StepModel) -> frozenset[str]:
    """Return the columns of its input that the step's model names."""
    names = set(config.find_inputs())
    for _, text in config.find_expressions():
        try:
            names |= expressions.parse(text).columns
        except ExpressionError:
            continue  # its own problem, whatever its columns are
    return frozenset(names)
