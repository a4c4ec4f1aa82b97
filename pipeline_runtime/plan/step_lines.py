"""A step in one line, for the funnel, `explain` and error messages."""

from __future__ import annotations

from pipeline_runtime.config.steps import Step

# What fits beside the numbers on a terminal of 100 columns.
MAX_LABEL_CHARS = 60


def describe_step(step: Step) -> str:
    """Return a step's name, if it has one, and what it does, without its kind:
    `country in ('US','CA')`, `spam: spam_users/ on user_id`.
    """
    name = f"{step.name}: " if step.name else ""
    text = name + " ".join(step.config.describe().split())
    return text if len(text) <= MAX_LABEL_CHARS else text[: MAX_LABEL_CHARS - 1] + "…"
