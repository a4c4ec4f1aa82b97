"""`lastmile promote`: adds the columns of staging tables to the main table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline_runtime.cli.options import FileOption, JsonOption, SetOption, load_one, make_console
from pipeline_runtime.errors import ManifestError, Problem, below_field
from pipeline_runtime.importing import importing

if TYPE_CHECKING:  # these import pyarrow, which --help does without
    from pipeline_runtime.config import IcebergSource, LoadedManifest
    from pipeline_runtime.promotion.promote import PromotionReport
    from pipeline_runtime.promotion.staging import StagingTable
    from pipeline_runtime.steps.join.model import JoinStep

PartitionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        metavar="NAME=VALUE,…",
        help="A partition of the main table, by its fields (repeatable); all if absent.",
    ),
]


def promote(
    filename: FileOption,
    staging: Annotated[
        list[str],
        typer.Option(
            "--staging",
            metavar="TABLE",
            help="A staging table, which a join of the manifest reads (repeatable).",
        ),
    ],
    partition: PartitionOption = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace values that the main table has already.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the report of a promotion.")
    ] = False,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add the columns of staging tables to the manifest's dataset, in one commit.

    The manifest is one that trained on the main table, joined with the staging tables: their joins
    give the keys and the columns. Rows without a match get nulls, whatever `how` says.
    """
    manifest = load_one(filename, overrides)
    main = find_main(manifest)
    joins = [_find_join(manifest, table) for table in dict.fromkeys(staging)]
    with importing():
        from pipeline_runtime.iceberg.catalogs import load_table
        from pipeline_runtime.promotion.partitions import PartitionChoice
        from pipeline_runtime.promotion.promote import promote as promote_tables

    catalogs = manifest.experiment.spec.catalogs
    with below_field("spec.dataset"):
        table = load_table(catalogs, main.catalog, main.table)
    report = promote_tables(
        table.catalog,
        main.table,
        PartitionChoice.parse(partition or ()),
        [_open_staging(manifest, place, join) for place, join in joins],
        replaces=replace,
        dry_run=dry_run,
    )
    if as_json:
        print(json.dumps(_to_document(report, dry_run=dry_run), indent=2))
    else:
        _print(report, dry_run=dry_run)


def find_main(manifest: LoadedManifest) -> IcebergSource:
    """Return the main table: the manifest's dataset.

    Raises ManifestError if it is no Iceberg table, or another branch than main.
    """
    found = manifest.experiment.spec.dataset.iceberg
    if found is None:
        kind = manifest.experiment.spec.dataset.source_kind
        message = f"must be an Iceberg table (iceberg), got {kind}; name the main table"
        raise ManifestError([manifest.place(Problem(path="spec.dataset", message=message))])
    if found.branch not in (None, "main"):
        message = f"must be main or absent, got {found.branch!r}: promotions change main alone"
        path = "spec.dataset.iceberg.branch"
        raise ManifestError([manifest.place(Problem(path=path, message=message))])
    return found


def _find_join(manifest: LoadedManifest, table: str) -> tuple[str, JoinStep]:
    """Return the path of the join that reads a staging table, and its fields."""
    from pipeline_runtime.steps.join.model import JoinStep

    tables = []
    for index, step in enumerate(manifest.experiment.spec.pipeline):
        config = step.config
        if not isinstance(config, JoinStep) or config.iceberg is None:
            continue
        tables.append(config.iceberg.table)
        if config.iceberg.table != table:
            continue
        path = f"spec.pipeline[{index}].join"
        if config.where:
            message = (
                f"must not choose rows of a table to promote, got {config.where!r}; write the "
                "staging table with these rows only"
            )
            raise ManifestError([manifest.place(Problem(path=f"{path}.where", message=message))])
        return path, config
    raise typer.BadParameter(
        f"must be the iceberg.table of a join in the manifest's pipeline "
        f"({', '.join(tables) or 'none'}), got {table!r}",
        param_hint="--staging",
    )


def _open_staging(manifest: LoadedManifest, place: str, join: JoinStep) -> StagingTable:
    from pipeline_runtime.iceberg.catalogs import load_table
    from pipeline_runtime.iceberg.pins import Reference
    from pipeline_runtime.promotion.staging import pin_staging

    source = join.iceberg
    assert source is not None
    with below_field(place):
        table = load_table(manifest.experiment.spec.catalogs, source.catalog, source.table)
        return pin_staging(
            Reference(source.catalog, source.table, source.snapshot_id, source.branch, source.tag),
            table,
            left_keys=join.left_keys,
            right_keys=join.right_keys,
            columns=join.columns or source.columns,
            max_bytes=join.max_bytes,
        )


def _to_document(report: PromotionReport, *, dry_run: bool) -> dict[str, object]:
    """Return the report with camelCase names; ids of snapshots are texts, as in manifests."""
    return {
        "dryRun": dry_run,
        "table": report.table,
        "snapshotId": _to_text(report.snapshot_id),
        "previousSnapshotId": _to_text(report.previous_snapshot_id),
        "isRepeated": report.is_repeated,
        "partitions": list(report.partitions),
        "rows": report.rows,
        "files": report.files,
        "staging": [
            {
                "table": each.table,
                "snapshotId": str(each.snapshot_id),
                "rows": each.rows,
                "unmatchedRows": each.unmatched,
                "nullKeys": each.null_keys,
                "missingRows": each.missing,
                "nulls": dict(each.nulls),
            }
            for each in report.staging
        ],
    }


def _to_text(snapshot_id: int | None) -> str | None:
    return None if snapshot_id is None else str(snapshot_id)


def _print(report: PromotionReport, *, dry_run: bool) -> None:
    from pipeline_runtime.report.drawing.painter import Painter

    painter = Painter(make_console(is_wide=True))
    for each in report.staging:
        table = painter.table(
            f"{each.table}, snapshot {each.snapshot_id}", ("rows", "left"), ("count", "right")
        )
        counts = {
            "read": each.rows,
            f"with a key that no row of {report.table} has": each.unmatched,
            "of these, with a null in the key": each.null_keys,
            f"of {report.table} without a match": each.missing,
            **{f"of {report.table} with a null {name}": n for name, n in each.nulls.items()},
        }
        for name, count in counts.items():
            table.add_row(painter.text(name), painter.text(f"{count:,}"))
        painter.print_table(table)
    what = f"{report.rows:,} rows in {len(report.partitions):,} partitions of {report.table}"
    if report.is_repeated:
        text = f"nothing to do: snapshot {report.snapshot_id} promoted {what} before"
    elif dry_run:
        text = f"would promote {what}"
    else:
        text = f"promoted {what}: snapshot {report.snapshot_id}"
    painter.print_line("", "", text)
    if not dry_run:
        painter.print_line(
            "", "", f"to undo it: lastmile rollback --to {report.previous_snapshot_id}"
        )
