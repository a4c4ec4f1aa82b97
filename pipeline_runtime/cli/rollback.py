"""`lastmile rollback`: undoes promotions of partitions."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pipeline_runtime.cli.options import FileOption, JsonOption, SetOption, load_one
from pipeline_runtime.cli.promote import PartitionOption, find_main
from pipeline_runtime.errors import below_field
from pipeline_runtime.importing import importing


def rollback(
    filename: FileOption,
    to: Annotated[
        int,
        typer.Option("--to", min=1, metavar="SNAPSHOT", help="A snapshot before the promotion."),
    ],
    partition: PartitionOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo the promotions of partitions of the manifest's dataset since a snapshot, in one commit.

    A partition that nothing else has changed since gets its old files back. Any other is written
    again without the promoted columns, so that no row is lost, and none that was deleted returns.
    """
    manifest = load_one(filename, overrides)
    main = find_main(manifest)
    with importing():
        from pipeline_runtime.iceberg.catalogs import load_table
        from pipeline_runtime.promotion.partitions import PartitionChoice
        from pipeline_runtime.promotion.rollback import roll_back

    catalogs = manifest.experiment.spec.catalogs
    with below_field("spec.dataset"):
        table = load_table(catalogs, main.catalog, main.table)
    done = roll_back(
        table.catalog,
        main.table,
        PartitionChoice.parse(partition or ()),
        to,
    )
    if as_json:
        document = {
            "table": main.table,
            "snapshotId": str(done.snapshot_id),
            "toSnapshotId": str(done.to_snapshot_id),
            "columns": list(done.columns),
            "restored": list(done.restored),
            "rewritten": list(done.rewritten),
        }
        print(json.dumps(document, indent=2))
        return
    for verb, partitions in (("restored", done.restored), ("rewrote", done.rewritten)):
        for name in partitions:
            print(f"{verb} {name}")
    count = len(done.restored) + len(done.rewritten)
    print(
        f"rolled {count:,} {'partition' if count == 1 else 'partitions'} of {main.table} back: "
        f"snapshot {done.snapshot_id} is without {', '.join(done.columns)} there"
    )
