"""The settings of `output`: a Parquet table in place of a training."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from pipeline_runtime.config.base import (
    Column,
    Columns,
    ConsumerModel,
    SpecModel,
    StoreUri,
    check_unique,
)
from pipeline_runtime.config.dataset import S3Options

DEFAULT_FILE_BYTES = 256 << 20
# Each is a level of folders.
MAX_PARTITION_COLUMNS = 16
# A store copies objects of up to 5 GiB in one request.
MIN_FILE_BYTES, MAX_FILE_BYTES = 1 << 20, 2 << 30

PartitionColumns = Annotated[
    tuple[Column, ...],
    Field(min_length=1, max_length=MAX_PARTITION_COLUMNS),
    AfterValidator(check_unique),
]


class ParquetTarget(SpecModel):
    """A folder of Parquet files."""

    uri: StoreUri
    """Folder of the table; without a scheme, below the storage root."""
    target_file_size_bytes: Annotated[int, Field(ge=MIN_FILE_BYTES, le=MAX_FILE_BYTES)] = (
        DEFAULT_FILE_BYTES
    )
    """Size that files approach; the last file of a partition may be smaller."""
    compression: Literal["None", "snappy", "lz4", "gzip", "zstd"] = "zstd"
    """Codec of the files."""
    s3: S3Options | None = None


class Output(ConsumerModel):
    """The table that the experiment writes, instead of training a model."""

    module: ClassVar[str] = "pipeline_runtime.plan.consumers.output"
    unhashed_fields: ClassVar[tuple[str, ...]] = ("mode",)

    mode: Literal["Fail", "Overwrite"] = "Fail"
    """The treatment of a table of another run: it stays and the run fails, or it is replaced once
    the new table is complete."""
    columns: Columns | None = None
    """Columns of the table, beside those of `partitionBy`; all columns of the pipeline's output if
    absent."""
    layout: Literal["Columns"] = "Columns"
    """`Columns`: each row with all columns of the table."""
    partition_by: PartitionColumns | None = None
    """Columns whose values become names of folders, as in Hive: `day=2026-01-01/`."""
    parquet: ParquetTarget
