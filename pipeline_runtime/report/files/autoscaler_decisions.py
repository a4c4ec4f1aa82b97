"""The autoscaler's decisions about a run: one small file each, below the run's folder.

Owned here: the file's fields, its name, its reading. On a cluster the operator has them written
(`run.decisions`); a laptop has none. `scaling` shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.files import read_regular, write_atomically
from pipeline_runtime.report.files.summary import UtcTime

DECISIONS_FOLDER = "decisions"
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_WORD_CHARS = 1024  # of a text of the experiment's status, which it comes from
_Number = Annotated[int, Field(ge=0)]


class ScalingDecision(BaseModel):
    """One change of the number of data workers."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, allow_inf_nan=False
    )

    version: Literal[1]
    time: UtcTime
    """Time of the decision, by the operator's clock."""
    before: _Number
    after: _Number
    reason: Annotated[str, Field(max_length=_WORD_CHARS)] = ""
    message: Annotated[str, Field(max_length=_WORD_CHARS)] = ""
    attempt: _Number = 0
    inputs: dict[str, float] = Field(default_factory=dict)
    """Inputs of the decision, by name: shares from 0 to 1, rows per second, workers."""

    @property
    def file_name(self) -> str:
        """File name; it sorts by time, and is the same if the decision is written again."""
        return f"{self.time.strftime(_TIME_FORMAT)}-{self.before}-{self.after}.json"

    def to_json(self) -> str:
        """Return the content of the file."""
        return self.model_dump_json(indent=2) + "\n"


def parse_decisions(text: str) -> list[ScalingDecision]:
    """Decisions from a JSON list of them. Raises LastmileError."""
    try:
        listed = from_json(text)
        if not isinstance(listed, list):
            raise TypeError(f"got {type(listed).__name__}")
        return [ScalingDecision.model_validate(each) for each in listed]
    except (ValueError, TypeError) as error:
        raise LastmileError(f"must be a JSON list of decisions: {error}") from error


def write_decisions(directory: Path, decisions: Sequence[ScalingDecision]) -> None:
    """Write each into the folder of decisions below `directory`."""
    for decision in decisions:
        write_atomically(directory / DECISIONS_FOLDER / decision.file_name, decision.to_json())


def load_decisions(directory: Path) -> list[ScalingDecision]:
    """Load the decisions in a run's folder, oldest first; an empty list if it has none.

    Raises LastmileError for a file that holds something else.
    """
    paths = sorted((Path(directory) / DECISIONS_FOLDER).glob("*.json"))
    return sorted(map(_load, paths), key=lambda decision: decision.time)


def _load(path: Path) -> ScalingDecision:
    try:
        return ScalingDecision.model_validate_json(read_regular(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise LastmileError(
            f"{path}: must be a decision of the autoscaler, {place}: {first['msg']}; remove it"
        ) from error
