"""The fields of the step `map`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, JsonValue

from pipeline_runtime.config.base import (
    MAX_COLUMNS,
    Columns,
    ImportPath,
    PositiveInt,
    check_options,
    check_unique_names,
)
from pipeline_runtime.config.step_model import Arguments, MapResources, StepModel, TypedColumn
from pipeline_runtime.errors import StepError


class MapStep(StepModel):
    """Call the user's function on each table; a step with resources runs as tasks of its own."""

    is_preprocessing: ClassVar[bool] = True

    unhashed_fields: ClassVar[tuple[str, ...]] = ("resources", "concurrency")

    function: ImportPath
    """`package.module:function`."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments, checked against the function's signature; no credentials."""
    format: Literal["Arrow", "Numpy", "Torch"] = "Arrow"
    """Format of the function's input and output."""
    input_columns: Columns | None = None
    """Columns that the function reads; all if absent."""
    output_columns: (
        Annotated[
            tuple[TypedColumn, ...],
            Field(max_length=MAX_COLUMNS),
            AfterValidator(check_unique_names),
        ]
        | None
    ) = None
    """Columns that the function adds or changes, by name; if absent, found before the run by one
    call on an empty table."""
    changes_rows: bool = False
    """True if the function may drop or add rows."""
    resources: MapResources | None = None
    concurrency: PositiveInt | None = None
    """Largest number of concurrent calls."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from check_options("options", self.options)

    @classmethod
    def from_python(cls, function: str | Callable[..., Any], **options: Any) -> Arguments:
        """Return the fields.

        Args:
            function: A function of an importable module, or its `package.module:function`.
            options: The other fields of a manifest, such as `input_columns`, `output_columns`,
                `changes_rows`, and the function's arguments as `options`.
        """
        name = function if isinstance(function, str) else _find_import_path(function)
        return {"function": name, **options}

    def describe(self) -> str:
        return self.function

    def find_functions(self) -> Iterator[str]:
        yield self.function

    def find_inputs(self) -> Iterable[str]:
        return self.input_columns or ()

    def find_outputs(self) -> frozenset[str] | None:
        if self.output_columns is None:
            return None
        return frozenset(column.name for column in self.output_columns)


def _find_import_path(function: Callable[..., Any]) -> str:
    """Return `module:name`. Raises StepError for a function that workers could not import."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "<")
    if module in (None, "__main__") or "<" in name:  # <lambda>, <locals>
        raise StepError(
            f"map: must be a function of an importable module, got {function!r}; give it a name in "
            "a file beside the manifest, and its arguments as options"
        )
    return f"{module}:{name}"
