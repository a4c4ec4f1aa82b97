"""The table that a manifest's `output` names, as an output job takes it."""

from __future__ import annotations

from pipeline_runtime.config import ExperimentSpec, ParquetTarget
from pipeline_runtime.output.folder import Folder, name_types
from pipeline_runtime.output.job import Target
from pipeline_runtime.output.merge import FileFormat
from pipeline_runtime.output.partitions import SplitByFolder
from pipeline_runtime.output.place import open_place
from pipeline_runtime.output.spool import spool_schema
from pipeline_runtime.plan import Plan
from pipeline_runtime.sources import open_location


def open_target(spec: ExperimentSpec, plan: Plan, storage_root: str) -> Target:
    """Open the table to write.

    Raises OutputRefused if it cannot be written, SourceError or StoreError if it cannot be found.
    """
    output = spec.output
    assert output is not None
    return _open_folder(spec, output.parquet, plan, storage_root)


def _open_folder(spec: ExperimentSpec, target: ParquetTarget, plan: Plan, root: str) -> Target:
    output, schema = spec.output, plan.main.output_schema
    assert output is not None
    columns = output.partition_by or ()
    return Target(
        name=target.uri,
        destination=Folder(
            place=open_place(open_location(target.uri, root, target.s3)),
            mode=output.mode,
            partition_by=name_types(schema, columns),
        ),
        form=FileFormat(
            schema=spool_schema(plan.main, columns),
            full_schema=schema,
            compression=target.compression.lower(),
            target_bytes=target.target_file_size_bytes,
        ),
        split=SplitByFolder(columns),
    )
