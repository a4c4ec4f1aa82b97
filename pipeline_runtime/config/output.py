"""The settings of `output`: a table, of Parquet files or of Iceberg, in place of a training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from pipeline_runtime.config.base import (
    Column,
    Columns,
    ConsumerModel,
    Label,
    SpecModel,
    StoreUri,
    check_one_of,
    check_unique,
)
from pipeline_runtime.config.dataset import ICEBERG_TABLE_PATTERN, S3Options

DEFAULT_FILE_BYTES = 256 << 20
# Each is a level of folders.
MAX_PARTITION_COLUMNS = 16
# A store copies objects of up to 5 GiB in one request.
MIN_FILE_BYTES, MAX_FILE_BYTES = 1 << 20, 2 << 30

# Spark writes so many files at a time per task; far more than a bucket join needs.
MAX_BUCKETS = 10_000

TargetFileSize = Annotated[int, Field(ge=MIN_FILE_BYTES, le=MAX_FILE_BYTES)]
Compression = Literal["None", "snappy", "lz4", "gzip", "zstd"]
PartitionColumns = Annotated[
    tuple[Column, ...],
    Field(min_length=1, max_length=MAX_PARTITION_COLUMNS),
    AfterValidator(check_unique),
]


class ParquetTarget(SpecModel):
    """A folder of Parquet files."""

    uri: StoreUri
    """Folder of the table; without a scheme, below the storage root."""
    target_file_size_bytes: TargetFileSize = DEFAULT_FILE_BYTES
    """Size that files approach; the last file of a partition may be smaller."""
    compression: Compression = "zstd"
    """Codec of the files."""
    s3: S3Options | None = None


class IcebergTarget(SpecModel):
    """An Iceberg table, created by the commit if there is none."""

    catalog: Label
    """The catalog, by its name in `spec.catalogs`."""
    table: Annotated[str, Field(pattern=ICEBERG_TABLE_PATTERN, max_length=512)]
    """The table, as `namespace.table`. The namespace must exist."""
    bucket_by: Column | None = None
    """Column by whose hash rows are put into buckets, after `partitionBy`; needs `buckets`. A table
    that exists has its own partitions, which these fields must equal if they are given."""
    buckets: Annotated[int, Field(ge=1, le=MAX_BUCKETS)] | None = None
    """Number of buckets."""
    sort_by: PartitionColumns | None = None
    """Columns by which the rows of each file are sorted, ascending and nulls first."""
    target_file_size_bytes: TargetFileSize = DEFAULT_FILE_BYTES
    """Size that files approach; the last file of a partition may be smaller."""
    compression: Compression = "zstd"
    """Codec of the files."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if (self.bucket_by is None) != (self.buckets is None):
            given = "buckets" if self.bucket_by is None else "bucketBy"
            yield "bucketBy", f"must come together with buckets, got only {given}; add the other"


class Output(ConsumerModel):
    """The table that the experiment writes, instead of training a model."""

    module: ClassVar[str] = "pipeline_runtime.plan.consumers.output"
    unhashed_fields: ClassVar[tuple[str, ...]] = ("mode",)

    mode: Literal["Fail", "Overwrite", "OverwritePartitions"] = "Fail"
    """The treatment of a table of another run: it stays and the run fails, or it is replaced once
    the new table is complete. `OverwritePartitions`, for an Iceberg table, replaces the partitions
    that are missing or whose source changed, each by a commit (`lastmile backfill`)."""
    columns: Columns | None = None
    """Columns of the table, beside those of `partitionBy`; all columns of the pipeline's output if
    absent."""
    layout: Literal["Columns", "KeyAndScore"] = "Columns"
    """`Columns`: each row with the columns of the table. `KeyAndScore`: with `dataset.rowKey` and
    the columns that models made, so that no other column is read; a later `join` by the key brings
    them together."""
    partition_by: PartitionColumns | None = None
    """Columns whose values become names of folders, as in Hive: `day=2026-01-01/`. Partitions of
    an Iceberg table, by the values themselves."""
    parquet: ParquetTarget | None = None
    iceberg: IcebergTarget | None = None

    def rules(self) -> Iterator[tuple[str, str]]:
        names = ("parquet", "iceberg")
        if message := check_one_of(names, [n for n in names if getattr(self, n) is not None]):
            yield "", message
        if self.columns is not None and self.layout == "KeyAndScore":
            yield "columns", "must be absent with layout KeyAndScore, which names them; remove it"
        if self.is_by_partition and self.iceberg is None:
            yield (
                "mode",
                "must be Fail or Overwrite without iceberg, but is OverwritePartitions; write an "
                "Iceberg table, or choose another mode",
            )

    @property
    def is_by_partition(self) -> bool:
        """Return whether partitions are written one by one."""
        return self.mode == "OverwritePartitions"
