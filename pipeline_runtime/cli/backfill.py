"""`lastmile backfill`: writes the partitions of the source that a staging table lacks."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline_runtime.cli.options import (
    DEFAULT_STORAGE_ROOT,
    FileOption,
    JsonOption,
    SetOption,
    StorageRootOption,
    load_one,
)
from pipeline_runtime.cli.run import (
    AddressOption,
    OutputOption,
    PortOption,
    ResumeOption,
    RunFlags,
    RunIdOption,
    VerboseOption,
    start,
)
from pipeline_runtime.errors import ManifestError, Problem


def backfill(
    filename: FileOption,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            metavar="NAME=VALUE,…",
            help="A partition of the source, by its fields (repeatable); all if absent.",
        ),
    ] = None,
    overrides: SetOption = None,
    address: AddressOption = "local",
    storage_root: StorageRootOption = DEFAULT_STORAGE_ROOT,
    output: OutputOption = None,
    resume: ResumeOption = False,
    run_id: RunIdOption = None,
    metrics_port: PortOption = 9464,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write the partitions that the manifest's staging table lacks, or whose source changed.

    A few partitions at a time are committed. If the command is killed, it continues when it is
    called again; with --output, add --resume, or name another folder. Several may write different
    partitions of a table at a time. `lastmile run` of the same manifest writes all partitions.
    """
    manifest = load_one(filename, overrides)
    given = manifest.experiment.spec.output
    if given is None or not given.is_by_partition:
        found = "absent" if given is None else repr(given.mode)
        message = (
            f"must be OverwritePartitions for a backfill, but is {found}. Set it, with the staging "
            "table in output.iceberg"
        )
        raise ManifestError([manifest.place(Problem(path="spec.output.mode", message=message))])
    flags = RunFlags(
        overrides=overrides,
        address=address,
        storage_root=storage_root,
        output=output,
        resume=resume,
        run_id=run_id,
        metrics_port=metrics_port,
        as_json=as_json,
        verbose=verbose,
        partitions=tuple(partition or ()),
    )
    start(manifest, flags)
