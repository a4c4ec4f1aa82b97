"""`lastmile materializations`: lists, describes and deletes tables of kept rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline_runtime.cli.options import FileOption, JsonOption, SetOption, load_one, make_console
from pipeline_runtime.cli.times import parse_age
from pipeline_runtime.importing import importing

if TYPE_CHECKING:  # these import Arrow, which --help does without
    from pyiceberg.catalog import Catalog

    from pipeline_runtime.config import (
        ExperimentSpec,
        IcebergSource,
        IcebergTarget,
        LoadedManifest,
    )
    from pipeline_runtime.materialization.tables import CacheTable, Files

materializations = typer.Typer(
    help="List, show and delete the tables of a manifest's step materialize.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


@materializations.command("list")
def list_command(
    file: FileOption, overrides: SetOption = None, as_json: JsonOption = False
) -> None:
    """List the tables of all recipes, the newest commit first."""
    _, found = _find(load_one(file, overrides))
    if as_json:
        print(json.dumps([_describe(table) for table in found], indent=2))
        return
    _print_tables("Materializations", found)


@materializations.command("show")
def show(
    file: FileOption,
    name: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="A table; the newest if absent.")
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a table's recipe, and the partitions of the source that it has."""
    _, found = _find(load_one(file, overrides))
    table = _choose(found, [name] if name else [])[:1]
    if not table:
        raise typer.BadParameter("there is no table yet; run the manifest first", param_hint="-f")
    document = {
        **_describe(table[0]),
        "recipe": table[0].recipe.parts,
        "coverage": {
            key: {
                "window": covered.window,
                "inputs": [
                    {
                        "table": each.table,
                        "fingerprint": each.fingerprint,
                        "snapshotId": each.snapshot_id and str(each.snapshot_id),
                    }
                    for each in covered.inputs
                ],
            }
            for key, covered in sorted(table[0].coverage.items())
        },
    }
    if as_json:
        print(json.dumps(document, indent=2))
        return
    _print_tables(table[0].name, table)
    print(json.dumps({"recipe": document["recipe"]}, indent=2))
    for key, covered in sorted(table[0].coverage.items()):
        print(f"{key}  {covered.inputs[0].fingerprint}  {covered.window}".rstrip())


@materializations.command("prune")
def prune(
    file: FileOption,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Tables to delete.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Delete tables without a commit for so long: 12h, 30d."),
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(min=0, help="Delete all but the newest N tables.")
    ] = None,
    orphans_older_than: Annotated[
        str,
        typer.Option(metavar="AGE", help="Delete files of this age that no snapshot names."),
    ] = "1d",
    snapshots_older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Drop snapshots of this age, of rows that were computed again."
        ),
    ] = "30d",
    orphans_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE",
            help="Another Iceberg table of the manifest whose orphan files are deleted, such as "
            "that of a killed backfill or promotion (repeatable).",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted.")
    ] = False,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete tables that meet all given conditions, and orphan files of the others.

    Without a condition, no table is deleted but those whose deletion was interrupted. A run that
    reads a table must not be running: its files are gone at once.
    """
    age = parse_age(older_than)
    orphan_age, snapshot_age = parse_age(orphans_older_than), parse_age(snapshots_older_than)
    assert orphan_age is not None
    assert snapshot_age is not None
    manifest = load_one(file, overrides)
    others = _find_others(manifest, orphans_of or [])
    has_step = any(step.kind == "materialize" for step in manifest.experiment.spec.pipeline)
    catalog, found = _find(manifest) if has_step or not others else (None, [])
    chosen = _choose(found, names or [])
    if age is not None:
        chosen = [t for t in chosen if datetime.now(UTC) - t.committed_at >= age]
    if keep_last is not None:
        chosen = [table for table in chosen if table in found[keep_last:]]
    if not names and age is None and keep_last is None:
        chosen = [table for table in found if table.is_deleting]
    left = [table.name for table in found if table not in chosen]
    if catalog is not None:
        for name in left if not dry_run else ():
            _expire(catalog, name, snapshot_age)
        others.update(dict.fromkeys(left, catalog))
        for table in chosen if not dry_run else ():
            _delete(catalog, table.name)
    orphans = {
        name: _delete_orphans(owner, name, orphan_age, dry_run=dry_run)
        for name, owner in others.items()
    }
    document = {
        "dryRun": dry_run,
        "deleted": [_describe(table) for table in chosen],
        "orphans": {
            name: {"files": len(files.paths), "bytes": files.num_bytes}
            for name, files in orphans.items()
            if files.paths
        },
    }
    if as_json:
        print(json.dumps(document, indent=2))
        return
    _print_tables("Would be deleted" if dry_run else "Deleted", chosen)
    verb = "would be deleted" if dry_run else "deleted"
    for name, files in orphans.items():
        if files.paths:
            print(f"{name}: {len(files.paths):,} orphan files {verb}, {files.num_bytes:,} bytes")


def _find(manifest: LoadedManifest) -> tuple[Catalog, list[CacheTable]]:
    """Return the catalog of a manifest's tables, and the tables. Raises BadParameter."""
    with importing():
        from pipeline_runtime.iceberg.catalogs import find_catalog, open_catalog
        from pipeline_runtime.materialization.tables import list_tables
        from pipeline_runtime.plan.materialized import find_step

    spec = manifest.experiment.spec
    step = find_step(spec)
    if step is None:
        raise typer.BadParameter(
            "must have a step materialize, but has none", param_hint="--filename"
        )
    catalog = open_catalog(find_catalog(spec.catalogs, step.iceberg.catalog))
    return catalog, list_tables(catalog, step.iceberg.table)


def _find_others(manifest: LoadedManifest, names: list[str]) -> dict[str, Catalog]:
    """Return the catalogs of Iceberg tables that a manifest names. Raises BadParameter."""
    spec = manifest.experiment.spec
    known = {each.table: each.catalog for each in _list_tables(spec)}
    found: dict[str, Catalog] = {}
    for name in names:
        if name not in known:
            rule = f"must be one of {', '.join(known) or 'no tables'} (-f), got {name!r}"
            raise typer.BadParameter(rule, param_hint="--orphans-of")
        with importing():
            from pipeline_runtime.iceberg.catalogs import load_table
        found[name] = load_table(spec.catalogs, known[name], name).catalog
    return found


def _list_tables(spec: ExperimentSpec) -> Iterator[IcebergSource | IcebergTarget]:
    """Yield the tables that a manifest reads, joins and writes."""
    if spec.dataset.iceberg is not None:
        yield spec.dataset.iceberg
    for step in spec.pipeline:
        side = step.config.find_side_table()
        if side is not None and side.iceberg is not None:
            yield side.iceberg
    if spec.output is not None and spec.output.iceberg is not None:
        yield spec.output.iceberg


def _choose(found: list[CacheTable], names: list[str]) -> list[CacheTable]:
    """Return the tables of these names, or all without names. Raises BadParameter."""
    known = {table.name: table for table in found}
    for name in names:
        if name not in known:
            rule = f"must be one of {', '.join(known) or 'no tables'}, got {name!r}"
            raise typer.BadParameter(rule, param_hint="TABLE")
    return [table for table in found if not names or table.name in names]


def _delete(catalog: Catalog, name: str) -> None:
    from pipeline_runtime.materialization.tables import delete_table

    delete_table(catalog, name)


def _expire(catalog: Catalog, name: str, min_age: timedelta) -> None:
    from pipeline_runtime.materialization.tables import expire_snapshots

    expire_snapshots(catalog, name, min_age)


def _delete_orphans(catalog: Catalog, name: str, min_age: timedelta, *, dry_run: bool) -> Files:
    from pipeline_runtime.materialization.tables import find_orphans

    files = find_orphans(catalog, name, min_age)
    if not dry_run:
        files.delete()
    return files


def _describe(table: CacheTable) -> dict[str, Any]:
    return {
        "table": table.name,
        "snapshotId": table.snapshot_id and str(table.snapshot_id),
        "committedAt": table.committed_at.isoformat(),
        "partitions": len(table.coverage),
        "rows": table.rows,
        "files": table.num_files,
        "bytes": table.num_bytes,
        "isDeleting": table.is_deleting,
    }


def _print_tables(title: str, found: list[CacheTable]) -> None:
    from pipeline_runtime.formatting import format_bytes
    from pipeline_runtime.report.drawing.painter import Painter

    if not found:
        print(f"{title}: none")
        return
    painter = Painter(make_console(is_wide=True))
    table = painter.table(
        title,
        ("table", "left"),
        ("last commit", "left"),
        ("partitions", "right"),
        ("rows", "right"),
        ("files", "right"),
        ("size", "right"),
    )
    for column in table.columns:  # names are copied into other commands
        column.no_wrap = True
    for each in found:
        cells = (
            f"{each.name} (being deleted)" if each.is_deleting else each.name,
            each.committed_at.strftime("%Y-%m-%d %H:%M"),
            f"{len(each.coverage):,}",
            f"{each.rows:,}",
            f"{each.num_files:,}",
            format_bytes(each.num_bytes),
        )
        table.add_row(*(painter.text(cell) for cell in cells))
    painter.print_table(table)
