"""Step `rename`: give columns other names, all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import pyarrow as pa

from pipeline_runtime.steps.base import BindContext, BoundStep
from pipeline_runtime.steps.checks import Checks, find_field
from pipeline_runtime.steps.rename.model import RenameStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename(BoundStep):
    """Renames columns and keeps their places; two columns may swap names."""

    kind: ClassVar[str] = "rename"

    columns: tuple[tuple[str, str], ...]  # (old, new)

    @classmethod
    def bind(
        cls, config: RenameStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        new_names = {column.name: column.new_name for column in config.columns}
        kept = set(input_schema.names) - new_names.keys()
        for index, (old, new) in enumerate(new_names.items()):
            with checks.at(f"columns[{index}].name"):
                find_field(input_schema, old)
            if new in kept:
                checks.add(
                    f"columns[{index}].newName",
                    f"must be a name of no other column, got {new!r}; rename or drop that one",
                )
        checks.finish()
        names = [new_names.get(name, name) for name in input_schema.names]
        fields = [field.with_name(name) for field, name in zip(input_schema, names, strict=True)]
        return cls(
            columns=tuple(new_names.items()),
            inputs=frozenset(new_names),
            outputs=frozenset(new_names.values()),
            output_schema=pa.schema(fields),
        )

    def find_output(self, column: str) -> str | None:
        return dict(self.columns).get(column, column)

    def __call__(self, table: pa.Table) -> pa.Table:
        new_names = dict(self.columns)
        return table.rename_columns([new_names.get(name, name) for name in table.schema.names])
