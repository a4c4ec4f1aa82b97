"""The plan as it lies beside a report: the models of `plan.json`.

Owned here: the shape that the report reads; the planner writes it. Runs before `view`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.files import read_regular

PLAN_FILE = "plan.json"


def _to_notes(value: object) -> object:
    if value is None or value == "":
        return ()
    return (value,) if isinstance(value, str) else value


class _PlanModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class PlanStep(_PlanModel):
    """One step of a stage; notes say what was pushed, fused, or why not."""

    kind: str
    label: str
    notes: Annotated[tuple[str, ...], BeforeValidator(_to_notes)] = ()


class PlanStage(_PlanModel):
    """Steps that run together as one task, and where."""

    name: str
    where: str = ""
    steps: tuple[PlanStep, ...] = ()


class PlanFile(_PlanModel):
    """The optimised plan; `text` is what `lastmile explain` prints."""

    stages: tuple[PlanStage, ...] = ()
    text: str = ""


def load_plan(directory: Path) -> PlanFile | None:
    """The plan of `directory`, or None when there is none.

    Raises:
        LastmileError: it is no plan.
    """
    path = directory / PLAN_FILE
    if not path.exists():
        return None
    try:
        return PlanFile.model_validate_json(read_regular(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the document"
        raise LastmileError(f"{path}: {field}: {first['msg']}; run again to rewrite it") from error
