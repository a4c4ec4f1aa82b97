"""Keeps the pins of a run, its tables' states and its models, in `snapshots.json`.

The file is in the run's folder on the artifacts store. It is written after the run is claimed and
before its work reads a row. Then the snapshots that the manifest asks to keep are tagged. An
attempt that resumes, or that begins anew after one that had no checkpoint yet, plans with the pins,
and the tags, of the earlier attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyarrow import fs as pafs

from pipeline_runtime.iceberg.pins import PINS_FILE, Pins, PinsFile
from pipeline_runtime.iceberg.tags import create_tags, name_tags
from pipeline_runtime.run.consumers import RunBasis
from pipeline_runtime.runs.tables import read_pins_file
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import list_folder, write_files


def keep_pins(basis: RunBasis) -> RunBasis:
    """Write the pins of a run into its folder on the artifacts store; nothing if there are none.

    Returns the run with the names of the tags that `tag_pins` is to make: a tag that no file names
    could not be removed.

    Raises StoreError if the store refuses: a retry could not find the same rows.
    """
    run = basis.run_location
    name = run.path.rstrip("/").rpartition("/")[2]
    pins = name_tags(basis.plan.pins, basis.experiment.metadata.name, name)
    if pins or basis.plan.models:
        file = PinsFile(tables=pins, models=basis.plan.models)
        text = file.model_dump_json(by_alias=True, indent=2) + "\n"
        write_files(run, {PINS_FILE: text.encode()}, "record the snapshots that the run reads")
    return replace(basis, plan=replace(basis.plan, pins=pins))


def tag_pins(basis: RunBasis) -> None:
    """Tag the snapshots that the manifest asks to keep, once the manifest is in the run's folder.

    Raises SourceError if one cannot be tagged, StoreError if the catalog does not answer.
    """
    create_tags(basis.experiment.spec.catalogs, basis.plan.pins)


def find_pins(artifacts: Location, run: str | None, may_continue: Callable[[str], bool]) -> Pins:
    """Return the pins with which an attempt that resumes begins.

    Args:
        artifacts: the experiment's folder on the artifacts store.
        run: name of the run that it goes on from a checkpoint of; None: it has none.
        may_continue: whether the attempt is one of the run of this name. The newest such run that
            has pins counts if `run` is None.

    Raises SourceError if the file is damaged, and StoreError if the store does not answer.
    """
    pins = Pins()
    if run is not None:
        found = read_pins_file(artifacts.join(run))
        if found is not None:
            pins.restore(found.tables, found.models)
        return pins
    infos = list_folder(artifacts, "look for earlier attempts")
    names = [info.base_name for info in infos if info.type == pafs.FileType.Directory]
    for name in sorted(filter(may_continue, names), reverse=True):
        found = read_pins_file(artifacts.join(name))
        if found is not None:
            pins.restore(found.tables, found.models)
            break
    return pins
