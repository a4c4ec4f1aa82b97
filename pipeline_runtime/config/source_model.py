"""The base class of the models of sources.

`dataset` has the models of the kinds that Lastmile ships; `extensions` finds others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic.alias_generators import to_snake

from pipeline_runtime.config.base import CelRule, SpecModel


class SourceModel(SpecModel):
    """A table in a store. Each kind of source has its own model, which is a field of SourceChoice.

    The module of a kind has the function `open_source(model, opening)`, see
    `pipeline_runtime.sources`, which imports the module when a manifest has such a source.
    """

    module: ClassVar[str] = ""  # empty: this release cannot read it
    # True if rows change their places when a table is rewritten with the same rows.
    needs_row_key: ClassVar[bool] = False
    cel_rules: ClassVar[tuple[CelRule, ...]] = ()

    @classmethod
    def field_name(cls) -> str:
        """Return the name of the kind's field, in snake_case: such as `hive` for `HiveSource`."""
        return to_snake(cls.__name__.removesuffix("Source"))

    @classmethod
    def shorten(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields, as JSON values, in the shortest of the spellings that mean the same.

        The identity of a run is made of it, so fields that change no row are left out.
        """
        return fields

    @property
    def label(self) -> str:
        """The table in a few characters, for people."""
        raise NotImplementedError

    @property
    def wanted_columns(self) -> tuple[str, ...] | None:
        """Columns to read, in this order; None for all."""
        return None
