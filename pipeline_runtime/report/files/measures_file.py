"""Results of the steps that measure rows: the models of `measures.json`, and their short form.

The run writes the file once all rows have been measured; `summary.json` has the value of each
metric, and the page draws the curves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.alias_generators import to_camel

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.files import read_regular

MEASURES_FILE = "measures.json"

Count = Annotated[int, Field(ge=0)]


class _MeasuresModel(BaseModel):
    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="strings"
    )


class Measure(_MeasuresModel):
    """The value of a metric."""

    step: str = Field(description="Place of the step: `pipeline[2]`.")
    name: str = Field(
        description="Name of the metric, of a group of inputs, of a model, or of a column."
    )
    kind: str = Field(
        description="Kind, such as `auc`, `importance`, `invalidRows` or `errorRows`."
    )
    value: float | None = Field(
        default=None,
        description="Value over all rows; null: unknown, as of one class, or not one number.",
    )
    interval: tuple[float, float] | None = Field(
        default=None,
        description="95 % interval of an importance over its repeats; null: none.",
    )
    rows: Count = Field(default=0, description="Rows that it was measured on.")
    left_out: dict[str, Count] = Field(
        default_factory=dict,
        description="Rows left out for a null or wrong value, by the column's role.",
    )


class GroupResult(_MeasuresModel):
    """The value of a metric for a group of rows; other fields are those of its kind."""

    model_config = ConfigDict(extra="allow")

    group: tuple[str | int | bool | None, ...] = ()
    value: float | None = None
    rows: Count = 0


class MeasureResult(Measure):
    """All that is known of a metric; fields that are not here depend on its kind."""

    model_config = ConfigDict(extra="allow")

    roc: tuple[tuple[float, float], ...] = ()
    bins: tuple[dict[str, float], ...] = ()
    thresholds: tuple[dict[str, float | None], ...] = ()
    quantiles: tuple[dict[str, float | None], ...] = ()
    top: tuple[dict[str, JsonValue], ...] = ()
    model: str = ""
    metric: str = ""
    columns: tuple[str, ...] = ()
    drops: tuple[float, ...] = ()
    group_by: tuple[str, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    other: GroupResult | None = None

    def shorten(self) -> Measure:
        """Return what a summary has of it."""
        return Measure(**{name: getattr(self, name) for name in Measure.model_fields})

    def list_numbers(self) -> dict[str, float]:
        """Return the numbers of its kind, such as the bounds of an AUC."""
        extra: dict[str, Any] = dict(self.model_extra or {})
        if isinstance(results := extra.pop("results", None), dict):
            extra |= results
        return {
            name: value
            for name, value in extra.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }


class MeasuresFile(_MeasuresModel):
    """All of `measures.json`."""

    version: Literal[1]
    measures: tuple[MeasureResult, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        text = self.model_dump_json(by_alias=True, exclude_unset=True)
        return f"{text}\n".encode()


def parse_measures(content: bytes, path: str) -> MeasuresFile:
    """Parse the content of a `measures.json`; `path` is its name in messages.

    Raises LastmileError if it is damaged, or of another version.
    """
    try:
        return MeasuresFile.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the document"
        raise LastmileError(f"{path}: {field}: {first['msg']}; run again to rewrite it") from error


def load_measures(directory: Path) -> MeasuresFile:
    """Return the measures of a run; none if it has no such file. Raises LastmileError."""
    path = directory / MEASURES_FILE
    return (
        parse_measures(read_regular(path), str(path)) if path.exists() else MeasuresFile(version=1)
    )
