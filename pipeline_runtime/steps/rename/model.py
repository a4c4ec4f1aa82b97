"""The fields of the step `rename`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from pipeline_runtime.config.base import MAX_COLUMNS, Column, SpecModel, check_unique_names
from pipeline_runtime.config.step_model import Arguments, StepModel, describe_columns


class RenamedColumn(SpecModel):
    """A column and its new name."""

    name: Column
    """Present name of the column."""
    new_name: Column
    """New name of the column."""


class RenameStep(StepModel):
    """Rename columns, all at once."""

    is_preprocessing: ClassVar[bool] = True

    columns: Annotated[
        tuple[RenamedColumn, ...],
        Field(min_length=1, max_length=MAX_COLUMNS),
        AfterValidator(check_unique_names),
    ]
    """Columns to rename, by their present names; no two new names may be equal."""

    def rules(self) -> Iterator[tuple[str, str]]:
        counts = Counter(column.new_name for column in self.columns)
        for name in sorted(name for name, count in counts.items() if count > 1):
            yield "columns", f"must not give two columns one name, got {name!r} twice; rename one"

    @classmethod
    def from_python(cls, columns: Mapping[str, str]) -> Arguments:
        """Return the fields.

        Args:
            columns: New names by present names; no two new names may be equal.
        """
        return {"columns": dict(columns)}

    def describe(self) -> str:
        return describe_columns(self.columns)

    def find_inputs(self) -> Iterable[str]:
        return [column.name for column in self.columns]

    def find_outputs(self) -> frozenset[str]:
        return frozenset(column.new_name for column in self.columns)
