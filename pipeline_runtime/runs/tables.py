"""Leftovers of runs in Iceberg tables: tags of the snapshots that they read, and uncommitted files.

`cleaning` releases both before it deletes the folders of a run, which alone name them. The manifest
in a folder on this machine says how to reach a catalog. Whoever may write to a store chooses the
one there, so the properties of its catalogs are those of the environment and of `.pyiceberg.yaml`
alone, and no data file that its records name is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyarrow import fs as pafs
from pydantic import ValidationError

from pipeline_runtime.config import Catalog
from pipeline_runtime.errors import SourceError
from pipeline_runtime.iceberg.catalogs import find_catalog
from pipeline_runtime.iceberg.pins import PINS_FILE, Pin, PinsFile
from pipeline_runtime.iceberg.tags import remove_tags
from pipeline_runtime.output import names
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.runs.listing import ListedRun
from pipeline_runtime.sources.filesystem import Location
from pipeline_runtime.sources.stores import list_folder, read_file

# A pin has some 300 bytes, the record of a run some 10 KiB.
_MAX_BYTES = 1 << 20


def read_pins(run: Location) -> tuple[Pin, ...] | None:
    """Return the pins of tables in a run's folder on the artifacts store; see `read_pins_file`."""
    found = read_pins_file(run)
    return None if found is None else found.tables


def read_pins_file(run: Location) -> PinsFile | None:
    """Return the pins in a run's folder on the artifacts store; None if it has none.

    Raises SourceError if the file is damaged, and StoreError if the store does not answer.
    """
    place = run.join(PINS_FILE)
    content = read_file(place, "read the snapshots of an earlier attempt", _MAX_BYTES)
    if content is None:
        return None
    try:
        return PinsFile.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the document"
        raise SourceError(
            f"{place.uri}: cannot be read: {field}: {first['msg']}. Restore the file, or start a "
            "new run without --resume"
        ) from error


def release_tables(run: ListedRun) -> str | None:
    """Remove the tags of a run, and the files that its output has not committed.

    Returns why the run has to be kept; None if nothing is left in its tables.

    Raises SourceError, StoreError or OutputError if a catalog or a store refuses.
    """
    catalogs = list(_find_catalogs(run))
    for folder in run.folders:
        kept = [pin for pin in read_pins(folder) or () if pin.kept_by]
        if kept:
            others = {
                pin.kept_by for other in _list_others(folder) for pin in read_pins(other) or ()
            }
            remove_tags(catalogs, [pin for pin in kept if pin.kept_by not in others])
        for staged in (folder, *list_commits(folder)):
            if reason := _abandon_output(run, staged, catalogs):
                return reason
    return None


def list_commits(folder: Location) -> Iterator[Location]:
    """Yield the folders beside that of a run in which it staged the commits of a backfill."""
    first = names.name_backfill(folder.path.rstrip("/").rpartition("/")[2])
    for other in _list_others(folder):
        if other.path.rpartition("/")[2].startswith(first):
            yield other


def _find_catalogs(run: ListedRun) -> Iterator[Catalog]:
    for given in _to_list(run.spec.get("catalogs")):
        try:
            catalog = Catalog.model_validate(given)
        except ValidationError:
            continue  # the manifest of another release
        yield catalog if _is_local(run.folders[0]) else Catalog(name=catalog.name)


def _list_others(folder: Location) -> Iterator[Location]:
    """Yield the folders beside a run's: an attempt shares the tags of the one that it repeats."""
    path, _, name = folder.path.rstrip("/").rpartition("/")
    parent = replace(folder, uri=folder.uri.rstrip("/").rpartition("/")[0], path=path)
    for info in list_folder(parent, "look for other attempts"):
        if info.type == pafs.FileType.Directory and info.base_name != name:
            yield parent.join(info.base_name)


def _abandon_output(run: ListedRun, folder: Location, catalogs: list[Catalog]) -> str | None:
    """Delete the uncommitted data files of an output; return why the run has to be kept."""
    output = run.spec.get("output")
    target = output.get("iceberg") if isinstance(output, dict) else None
    staged = Storage(folder.join(names.STAGING_FOLDER))
    if not isinstance(target, dict) or staged.read(names.RUN_FILE, _MAX_BYTES) is None:
        return None
    table = str(target.get("table"))
    if not _is_local(run.folders[0]):
        return (
            f"{table} has files of it that are not committed, which are deleted only on the "
            "machine that has its report, or by the next run without --resume"
        )
    from pipeline_runtime.output.abandoning import abandon_run  # imports PyIceberg

    if abandon_run(find_catalog(catalogs, str(target.get("catalog"))), table, folder):
        return None
    return f"its commit to {table} may yet be carried out"


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_local(place: Location) -> bool:
    return isinstance(place.filesystem, pafs.LocalFileSystem)
