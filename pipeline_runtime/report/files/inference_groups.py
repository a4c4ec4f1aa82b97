"""The work of a run's inference workers, as `summary.json` has it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pipeline_runtime.formatting import format_count, format_percent, format_rate

_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(ge=0)]


class InferenceGroup(BaseModel):
    """The work of a group of inference workers in this attempt."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    group: str = Field(description="Name of the group.")
    rows: _Count = Field(
        default=0,
        description="Rows that its workers scored, once for each model; again if a lost worker's "
        "requests were sent to another.",
    )
    batches: _Count = Field(default=0, description="Batches of these rows.")
    busy_seconds: _Seconds = Field(
        default=0, description="Time that its workers spent in their models."
    )
    ready_seconds: _Seconds = Field(
        default=0, description="Time of its workers since each had loaded its models."
    )

    def describe(self) -> str:
        """Return the work for people."""
        parts = [f"{self.group}: {format_count(self.rows)} rows"]
        if self.busy_seconds:
            parts.append(f"{format_rate(self.rows / self.busy_seconds)} of a busy worker")
        if self.ready_seconds:
            parts.append(f"busy {format_percent(self.busy_seconds / self.ready_seconds)}")
        return ", ".join(parts)
