"""Put a finished table in place, as atomically as its store can.

Local: the run's table folder, manifest included, takes the name of the output by one rename; an
existing table is exchanged with it by one system call where Linux offers that, else by two renames.

Object stores: the list of files is recorded in `_staging/`, the files are copied to the table's
folder, and the manifest, which is one object, is replaced. Readers that follow the manifest see
the old table or the new one. Others may see files of both until the old ones are removed.

Every step can be repeated: an attempt that finds a part of it done goes on from there.
"""

from __future__ import annotations

from pipeline_runtime.errors import OutputError
from pipeline_runtime.output import names
from pipeline_runtime.output.place import Mode, Place, check_table
from pipeline_runtime.output.records import CommitRecord, read_record, write_record
from pipeline_runtime.output.storage import Storage, each
from pipeline_runtime.sources.output_manifest import (
    MANIFEST_FILE,
    OutputManifest,
    read_output_manifest,
)


def commit(place: Place, manifest: OutputManifest, mode: Mode) -> None:
    """Replace the output by the staged table of a run.

    Raises OutputRefused if another table has appeared there since the run began, OutputError if a
    staged file is not what was recorded.
    """
    staged = place.run(manifest.run)
    existing = check_before(place, mode, manifest.run, manifest.id)
    if existing is None or existing.id != manifest.id:
        if place.table.is_local:
            _check_staged(staged, manifest)
            _rename(place, staged, manifest, mode)
        else:
            _copy(place, staged, manifest, existing)


def clean_up(place: Place, manifest: OutputManifest) -> None:
    """Remove what a committed run replaced and staged, and the folders that become empty."""
    staged = place.run(manifest.run)
    record = read_record(staged, names.COMMIT_FILE, CommitRecord)
    kept = {file.path for file in manifest.files}
    replaced = record.replaced if record else ()
    each(place.table.remove_file, [path for path in replaced if path not in kept])
    staged.remove()
    place.staging.remove_if_empty()
    place.staging.parent().remove_if_empty()


def check_before(place: Place, mode: Mode, run: str, own_id: str) -> OutputManifest | None:
    """Return the manifest of the table that a staged run would replace, or has replaced.

    Raises OutputRefused if the run may not write there.
    """
    has_begun = read_record(place.run(run), names.COMMIT_FILE, CommitRecord) is not None
    return check_table(place.table, mode, own_id, has_begun=has_begun)


def abandon(place: Place, run: str) -> None:
    """Remove all files of a run that is not continued; a table that it committed stays."""
    staged = place.run(run)
    record = read_record(staged, names.COMMIT_FILE, CommitRecord)
    if record is not None:
        existing = read_output_manifest(place.table.location)
        kept = {file.path for file in existing.files} if existing else set()
        files = [file.path for file in record.files]
        files += record.replaced if existing else ()  # they are kept if it had not committed
        each(place.table.remove_file, [path for path in files if path not in kept])
    staged.remove()


def is_committed(place: Place, own_id: str) -> bool:
    """Return whether the table in place is the one with this id."""
    manifest = read_output_manifest(place.table.location)
    return manifest is not None and manifest.id == own_id


def _check_staged(staged: Storage, manifest: OutputManifest) -> None:
    """Remove files that no record names. Raises OutputError if one that is named is damaged."""
    table = staged.below(names.TABLE_FOLDER)
    sizes = table.sizes()
    listed = {table.staged(file.path): file.bytes for file in manifest.files}
    for path in sizes.keys() - listed.keys():
        table.remove_file(path)
    broken = next((path for path, size in listed.items() if sizes.get(path) != size), None)
    if broken is not None:
        raise OutputError(
            f"{table.uri}/{broken}: must have {listed[broken]} bytes, as it was written, but has "
            f"{sizes.get(broken, 'gone')}. Run again without --resume, or apply the experiment "
            "under another name"
        )


def _rename(place: Place, staged: Storage, manifest: OutputManifest, mode: Mode) -> None:
    table, aside = staged.below(names.TABLE_FOLDER), staged.below(names.REPLACED_FOLDER)
    table.write(MANIFEST_FILE, manifest.to_json())
    table.sync_folders()
    if mode == "Overwrite" and place.table.exists():
        if table.exchange_with(place.table):
            return  # the old table is staged now, and is removed with the rest
        aside.remove()
        place.table.rename_to(aside)
    table.rename_to(place.table)


def _copy(
    place: Place, staged: Storage, manifest: OutputManifest, existing: OutputManifest | None
) -> None:
    record = read_record(staged, names.COMMIT_FILE, CommitRecord)
    if record is None:
        _check_staged(staged, manifest)
        replaced = tuple(file.path for file in existing.files) if existing else ()
        record = CommitRecord(files=manifest.files, replaced=replaced)
        write_record(staged, names.COMMIT_FILE, record)
    table = staged.below(names.TABLE_FOLDER)
    each(lambda path: table.put_in_place(path, place.table), [file.path for file in record.files])
    # An attempt may list other files than the one that began to commit.
    manifest = manifest.model_copy(update={"files": record.files})
    place.table.write(MANIFEST_FILE, manifest.to_json())
