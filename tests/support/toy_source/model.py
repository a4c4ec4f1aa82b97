"""The fields of the toy source in a manifest, as the operator and the CRD need them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from pipeline_runtime.config.source_model import SourceModel


class ToySource(SourceModel):
    """A table of the numbers from 0 to `rows` - 1."""

    rows: Annotated[int, Field(ge=0, le=1_000_000)]
    """Number of rows."""
    unit_rows: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Rows that are read as a whole."""
    revision: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Other revisions have other content."""

    module: ClassVar[str] = "toy_source.source"

    @property
    def label(self) -> str:
        return f"toy of {self.rows}"
