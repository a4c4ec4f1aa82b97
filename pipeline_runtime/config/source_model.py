"""The base class of the models of sources, and kinds of source from elsewhere.

`dataset` has the models of the kinds that Lastmile ships. To try another kind, set the environment
variable `LASTMILE_SOURCES` to the import paths of models, such as `my_source.model:HiveSource`: the
field in the manifest is the class's name without `Source`, here `hive`.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, ClassVar

from pipeline_runtime.config.base import CelRule, SpecModel

_VARIABLE = "LASTMILE_SOURCES"


class SourceModel(SpecModel):
    """A table in a store. Each kind of source has its own model, which is a field of SourceChoice.

    The module of a kind has the function `open_source(model, opening)`, see
    `pipeline_runtime.sources`, which imports the module when a manifest has such a source.
    """

    module: ClassVar[str] = ""  # empty: this release cannot read it
    cel_rules: ClassVar[tuple[CelRule, ...]] = ()

    @property
    def label(self) -> str:
        """The table in a few characters, for people."""
        raise NotImplementedError

    @property
    def wanted_columns(self) -> tuple[str, ...] | None:
        """Columns to read, in this order; None for all."""
        return None


def load_other_fields() -> dict[str, Any]:
    """Return a field for each kind of source that the environment adds, as `create_model` takes it.

    Raises ImportError or AttributeError if a model cannot be imported.
    """
    paths = filter(None, os.environ.get(_VARIABLE, "").split(","))
    models = [getattr(import_module(path.split(":")[0]), path.split(":")[1]) for path in paths]
    return {model.__name__.removesuffix("Source").lower(): (model | None, None) for model in models}
