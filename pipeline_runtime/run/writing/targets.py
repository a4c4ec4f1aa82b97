"""The table that a manifest's `output` names, as an output job takes it."""

from __future__ import annotations

from pipeline_runtime.config import DatasetExperiment, IcebergTarget, Output, ParquetTarget
from pipeline_runtime.iceberg.catalogs import find_catalog
from pipeline_runtime.output.folder import Folder, name_types
from pipeline_runtime.output.job import Target
from pipeline_runtime.output.merge import FileFormat
from pipeline_runtime.output.partitions import SplitByFolder
from pipeline_runtime.output.place import Mode, open_place
from pipeline_runtime.output.spool import spool_schema
from pipeline_runtime.plan import Plan
from pipeline_runtime.plan.consumers.output import want_table
from pipeline_runtime.sources import open_location


def open_target(experiment: DatasetExperiment, plan: Plan, storage_root: str) -> Target:
    """Open the table to write.

    Raises OutputRefused if it cannot be written, SourceError or StoreError if it cannot be found.
    """
    output = experiment.spec.output
    assert output is not None
    if output.iceberg is not None:
        return _open_iceberg(experiment, output, output.iceberg, plan, storage_root)
    assert output.parquet is not None
    return _open_folder(output, output.parquet, plan, storage_root)


def _find_mode(output: Output) -> Mode:
    """Return the treatment of a table that has rows; `backfill_run` replaces some of its rows."""
    return "Fail" if output.mode == "Fail" else "Overwrite"


def _open_folder(output: Output, target: ParquetTarget, plan: Plan, root: str) -> Target:
    schema = plan.main.output_schema
    columns = output.partition_by or ()
    return Target(
        name=target.uri,
        destination=Folder(
            place=open_place(open_location(target.uri, root, target.s3)),
            mode=_find_mode(output),
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


def _open_iceberg(
    experiment: DatasetExperiment, output: Output, target: IcebergTarget, plan: Plan, root: str
) -> Target:
    from pipeline_runtime.output.iceberg import SplitByPartition, open_iceberg

    spec = experiment.spec
    table = open_iceberg(
        find_catalog(spec.catalogs, target.catalog),
        target.table,
        want_table(output, target, plan.main.output_schema),
        _find_mode(output),
        open_location(spec.artifacts.uri, root).join(experiment.metadata.name),
        compression=target.compression.lower(),
        target_bytes=target.target_file_size_bytes,
    )
    return Target(
        name=f"{target.table} (catalog {target.catalog})",
        destination=table,
        form=table.form,
        split=SplitByPartition(table.form.layout, spec.pipeline_options.debug.kernels),
        layout=table.form.layout.to_json(),
        staging_field="spec.artifacts.uri",
    )
