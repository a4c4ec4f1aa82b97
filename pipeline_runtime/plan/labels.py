"""A step in one line, for the funnel, `explain` and error messages."""

from __future__ import annotations

from pipeline_runtime.config.base import SpecModel
from pipeline_runtime.config.steps import (
    DownsampleStep,
    FilterStep,
    HashBucketStep,
    MapStep,
    PadSequenceStep,
    SampleStep,
    SideTableStep,
    Step,
    TruncateStep,
    WeightStep,
)

# What fits beside the numbers on a terminal of 100 columns.
MAX_LABEL_CHARS = 60


def describe_step(step: Step) -> str:
    """Return a step's name, if it has one, and what it does, without its kind:
    `country in ('US','CA')`, `spam: spam_users/ on user_id`.
    """
    name = f"{step.name}: " if step.name else ""
    text = name + " ".join(_describe(step).split())
    return text if len(text) <= MAX_LABEL_CHARS else text[: MAX_LABEL_CHARS - 1] + "…"


def _describe(step: Step) -> str:
    match step.config:
        case FilterStep(where=where):
            return where
        case SideTableStep() as config:
            source = config.parquet.locations[0] if config.parquet else "iceberg"
            return f"{source} on {', '.join(config.left_keys)}"
        case DownsampleStep(keep_percent=percent, where=where):
            return f"{percent} % of rows" + (f" where {where}" if where else "")
        case SampleStep(keep_percent=percent, by=by):
            return f"{percent} % of " + (", ".join(by) if by else "rows")
        case WeightStep(column=column, by=by):
            return f"{column} × {by}"
        case (
            PadSequenceStep(columns=columns, length=length)
            | TruncateStep(columns=columns, length=length)
        ):
            return f"{', '.join(columns)} to {length}"
        case HashBucketStep(columns=columns, buckets=buckets):
            return f"{', '.join(columns)} into {buckets}"
        case MapStep(function=function):
            return function
        case config:
            return ", ".join(map(_describe_column, getattr(config, "columns", ())))


def _describe_column(column: object) -> str:
    """Return a column's name, with the other field of its model if it has one."""
    if isinstance(column, SpecModel):
        name, value = column.model_dump().values()
        return f"{name}: {value}"
    return str(column)
