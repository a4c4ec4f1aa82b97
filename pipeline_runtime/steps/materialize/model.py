"""The fields of the step `materialize`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field

from pipeline_runtime.config.base import Column, Columns, Label, SpecModel
from pipeline_runtime.config.dataset import ICEBERG_TABLE_PATTERN
from pipeline_runtime.config.step_model import Arguments, Names, StepModel, to_list

# A name of 128 characters leaves room for the hash in the catalogs that allow 255.
MAX_TABLE_CHARS = 128
# Each bucket is a file per partition of the source.
MAX_BUCKETS = 65_536


class CacheTarget(SpecModel):
    """The place of the cache tables."""

    catalog: Label
    """The catalog, by its name in `spec.catalogs`."""
    table: Annotated[str, Field(pattern=ICEBERG_TABLE_PATTERN, max_length=MAX_TABLE_CHARS)]
    """The beginning of the tables' names, as `namespace.table`; the hash of the recipe follows."""


class MaterializeStep(StepModel):
    """Keep the rows in an Iceberg table, from which a later run reads them."""

    unhashed_fields: ClassVar[tuple[str, ...]] = ("iceberg",)

    iceberg: CacheTarget
    bucket_by: Column
    """Column by whose hash rows are put into buckets."""
    buckets: Annotated[int, Field(ge=1, le=MAX_BUCKETS)]
    """Number of buckets."""
    sort_by: Columns | None = None
    """Columns by which the rows of a file are sorted; as in the source if absent."""

    @classmethod
    def from_python(
        cls,
        catalog: str,
        table: str,
        *,
        bucket_by: str,
        buckets: int,
        sort_by: Names | None = None,
    ) -> Arguments:
        """Return the fields.

        Args:
            catalog: The catalog, by its name in `spec.catalogs`.
            table: The beginning of the tables' names, as `namespace.table`.
            bucket_by: Column by whose hash rows are put into buckets.
            buckets: Number of buckets.
            sort_by: Columns by which the rows of a file are sorted.
        """
        return {
            "iceberg": {"catalog": catalog, "table": table},
            "bucket_by": bucket_by,
            "buckets": buckets,
            "sort_by": to_list(sort_by),
        }

    def describe(self) -> str:
        order = f", sorted by {', '.join(self.sort_by)}" if self.sort_by else ""
        return f"{self.iceberg.table}, {self.buckets} buckets by {self.bucket_by}{order}"

    def find_inputs(self) -> Iterable[str]:
        return (self.bucket_by, *(self.sort_by or ()))

    def find_catalog(self) -> str | None:
        return self.iceberg.catalog
