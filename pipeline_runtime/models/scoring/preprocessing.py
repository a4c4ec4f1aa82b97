"""The preprocessing of a run: the steps of its pipeline that make the columns of its model.

They are found backwards from the model's columns, reduced to what the model needs, and bound to the
columns of the table that is scored. The steps come from a checkpoint, which is not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from pipeline_runtime.config.step_model import StepModel
from pipeline_runtime.config.steps import Step
from pipeline_runtime.errors import CheckpointError
from pipeline_runtime.models.loading import check_users_function
from pipeline_runtime.steps.base import ModelRequest, Transform
from pipeline_runtime.steps.binding import bind_pipeline, mentioned_columns
from pipeline_runtime.steps.checks import broken
from pipeline_runtime.steps.map.model import MapStep
from pipeline_runtime.steps.rename.model import RenamedColumn


def bind_preprocessing(
    request: ModelRequest, config: Mapping[str, Any], inputs: frozenset[str], uri: str
) -> tuple[Transform, ...]:
    """Return the steps of a run's pipeline that make the model's inputs, bound to the input.

    Args:
        config: the run's config, of the checkpoint at `uri`.

    Raises ManifestError if one cannot be bound, or does not keep each row once; CheckpointError if
    the config has no steps that can be trusted.
    """
    schema = request.input_schema
    steps = _parse_steps(config)
    for function in (each for step in steps for each in step.find_functions()):
        check_users_function(uri, function)
    chosen = choose_steps(steps, inputs, frozenset(schema.names))
    # A column that a step makes anew may have the name of one of the table, which nothing reads.
    read, made = set(inputs), set[str]()
    for step in reversed(chosen):
        outputs = step.find_outputs() or frozenset()
        read = (read - outputs) | mentioned_columns(step)
        made |= outputs
    schema = pa.schema([field for field in schema if field.name not in made - read])
    return bind_pipeline(chosen, schema, request.context, "preprocessing: pipeline")


def _parse_steps(config: Mapping[str, Any]) -> list[StepModel]:
    """Return the steps of a run's config. Raises CheckpointError if they are none."""
    try:
        return [
            Step.model_validate_json(json.dumps(step)).config for step in config.get("pipeline", ())
        ]
    except (ValidationError, TypeError) as error:
        raise CheckpointError(
            "the pipeline in the checkpoint's header must be one that this release reads, but is "
            f"not: {error}; set preprocessing: None"
        ) from error


def choose_steps(
    steps: Sequence[StepModel], inputs: frozenset[str], known: frozenset[str]
) -> list[StepModel]:
    """Return the steps that make the columns of a model, in their order and without other columns.

    Args:
        inputs: columns of the model.
        known: columns of the table that is scored.

    Raises a broken rule if a step that makes one of them is no preprocessing.
    """
    before = [known]
    for step in steps:
        before.append(before[-1] | (step.find_outputs() or frozenset()))
    needed, takes_all, chosen = inputs, False, list[StepModel]()
    for step, there in zip(reversed(steps), reversed(before[:-1]), strict=True):
        found = step.find_outputs()
        made = _find_made(step, needed, there) if found is None else found
        wanted = made if takes_all and step.is_preprocessing else made & needed
        if not wanted:
            continue
        if not step.is_preprocessing or (isinstance(step, MapStep) and step.changes_rows):
            raise broken(
                f"must be None for this model: its column {', '.join(sorted(wanted))} comes from "
                f"{step.kind()}, which is not repeated here; add such a step before this one",
                "preprocessing",
            )
        chosen.append(_reduce(step, wanted))
        # Fields do not tell whether a step makes a column, so one before may make it too.
        needed = (needed - (found or frozenset())) | mentioned_columns(chosen[-1])
        takes_all |= isinstance(step, MapStep) and step.input_columns is None
    return chosen[::-1]


def _find_made(step: StepModel, needed: frozenset[str], there: frozenset[str]) -> frozenset[str]:
    """Return the needed columns that a step may make whose fields do not name its outputs.

    Args:
        there: columns that the table or a step before has.
    """
    changed = frozenset[str]()
    if isinstance(step, MapStep):  # a function may change whatever it is given
        changed = needed if step.input_columns is None else needed & set(step.input_columns)
    return (needed - there) | changed


def _reduce(step: StepModel, wanted: frozenset[str]) -> StepModel:
    """Return the step without the columns that the model does not need, such as a label."""
    columns = getattr(step, "columns", None)
    if columns is None:
        return step
    kept = tuple(column for column in columns if _name_output(column) in wanted)
    return step.model_copy(update={"columns": kept})


def _name_output(column: Any) -> str:
    if isinstance(column, str):
        return column
    return str(column.new_name if isinstance(column, RenamedColumn) else column.name)
