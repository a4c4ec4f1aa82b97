"""Collects the broken rules that a table's schema shows, for `build` and the consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from pipeline_runtime import hashing
from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.steps.checks import unknown_column

_T = TypeVar("_T")


class Problems:
    """Collects what is wrong, so that one look at a manifest shows all of it."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def collect(self, work: Callable[..., _T], *arguments: Any) -> _T | None:
        try:
            return work(*arguments)
        except ManifestError as error:
            self.found.extend(error.problems)
            return None

    def check_columns(
        self,
        path: str,
        names: Sequence[str] | None,
        schema: pa.Schema,
        what: str = "the table",
    ) -> None:
        self.found.extend(
            Problem(path=path, message=unknown_column(name, schema.names, what))
            for name in names or ()
            if name not in schema.names
        )

    def check_hashable(self, path: str, names: Sequence[str] | None, schema: pa.Schema) -> None:
        """Check that keys have a type that can be hashed."""
        for name in names or ():
            if name in schema.names:
                try:
                    hashing.check_hashable(schema.field(name).type)
                except TypeError as error:
                    self.found.append(Problem(path=path, message=f"column {name!r}: {error}"))

    def raise_if_any(self) -> None:
        if self.found:  # the two roles' split has its problems once
            raise ManifestError(list(dict.fromkeys(self.found)))
