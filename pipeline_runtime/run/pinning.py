"""Keeps the pins of a run, the states of the Iceberg tables that it reads, in `snapshots.json`.

The file is in the run's folder on the artifacts store. It is written after the run is claimed and
before its work reads a row. Then the snapshots are tagged for which the manifest asks for it. An
attempt that resumes, or that begins anew after one that had no checkpoint yet, plans with the pins,
and the tags, of the earlier attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pyarrow import fs as pafs
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline_runtime.errors import SourceError
from pipeline_runtime.iceberg.pins import Pin, Pins
from pipeline_runtime.iceberg.tags import create_tags, name_tags
from pipeline_runtime.run.consumers import RunBasis
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import list_folder, read_file, write_files

PINS_FILE = "snapshots.json"
# A pin has some 300 bytes.
_MAX_BYTES = 1 << 20


class PinsFile(BaseModel):
    """The content of `snapshots.json`."""

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    tables: tuple[Pin, ...]


def keep_pins(basis: RunBasis) -> RunBasis:
    """Write the pins of a run into its folder on the artifacts store, and tag their snapshots.

    Returns the run with the names of the tags. The file comes first: a tag that no file names could
    not be removed.

    Raises StoreError if the store or the catalog does not answer: a retry could not find the same
    rows; SourceError if a snapshot cannot be tagged.
    """
    run, spec = basis.run_location, basis.experiment.spec
    name = run.path.rstrip("/").rpartition("/")[2]
    pins = name_tags(basis.plan.pins, basis.experiment.metadata.name, name)
    if pins:
        text = PinsFile(tables=pins).model_dump_json(by_alias=True, indent=2) + "\n"
        write_files(run, {PINS_FILE: text.encode()}, "record the snapshots that the run reads")
        create_tags(spec.catalogs, pins)
    return replace(basis, plan=replace(basis.plan, pins=pins))


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
        pins.restore(_read(artifacts.join(run)) or ())
        return pins
    infos = list_folder(artifacts, "look for earlier attempts")
    names = [info.base_name for info in infos if info.type == pafs.FileType.Directory]
    for name in sorted(filter(may_continue, names), reverse=True):
        found = _read(artifacts.join(name))
        if found is not None:
            pins.restore(found)
            break
    return pins


def _read(run: Location) -> tuple[Pin, ...] | None:
    place = run.join(PINS_FILE)
    content = read_file(place, "read the snapshots of an earlier attempt", _MAX_BYTES)
    if content is None:
        return None
    try:
        return PinsFile.model_validate_json(content).tables
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the document"
        raise SourceError(
            f"{place.uri}: cannot be read: {field}: {first['msg']}. Restore the file, or start a "
            "new run without --resume"
        ) from error
