"""Tags that keep the snapshots of a run from expiring, where the manifest asks for them.

`keepDays` of a table needs permission to change it, so nothing is tagged without. The tag of a run
has no maximum age while the run may go on. When the run is complete, the tag gets one, so that
expiring snapshots removes it too, or goes at once; deleting the run removes it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pipeline_runtime.config import Catalog as CatalogModel
from pipeline_runtime.errors import SourceError, StoreError
from pipeline_runtime.iceberg.catalogs import ask_catalog, describe, find_catalog, open_catalog
from pipeline_runtime.iceberg.commits import Retrying, load_or_none
from pipeline_runtime.iceberg.pins import Pin, check_pin

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update.snapshot import ManageSnapshots

PREFIX = "lastmile-run-"
# Commits of other writers may be in between; each attempt takes a request or two.
_MAX_ATTEMPTS = 20
_DAY_MS = 24 * 60 * 60 * 1000
# A tag without an age of its own gets the table's `history.expire.max-ref-age-ms`.
_FOREVER_MS = (1 << 63) - 1

# Stages a change of a table's tags; returns False if there is nothing to change.
_Stage = Callable[["Table", "ManageSnapshots"], bool]


def name_tags(pins: Iterable[Pin], experiment: str, run: str) -> tuple[Pin, ...]:
    """Return the pins with the tags that are to keep them; a resumed run's keep theirs."""
    return tuple(
        pin.model_copy(update={"kept_by": pin.kept_by or f"{PREFIX}{experiment}-{run}"})
        if pin.keep_days is not None and pin.snapshot_id
        else pin
        for pin in pins
    )


def create_tags(catalogs: Sequence[CatalogModel], pins: Iterable[Pin]) -> None:
    """Tag the snapshots of pins that name a tag.

    Raises:
        SourceError: a snapshot is gone, or the catalog refuses.
        StoreError: the catalog does not answer.
    """
    for pin in pins:
        if pin.kept_by and pin.keep_days is not None:
            try:
                _change(catalogs, pin, _create(pin, _FOREVER_MS))
            except SourceError as error:  # or StoreError, which is one
                raise type(error)(
                    f"{pin.reference}: keepDays: snapshot {pin.snapshot_id} cannot be tagged: "
                    f"{error}. Without permission to change the table, leave keepDays out"
                ) from error


def release_tags(catalogs: Sequence[CatalogModel], pins: Iterable[Pin]) -> list[str]:
    """Let the tags of a complete run end after `keepDays`; return a warning for each that stays."""
    return [
        f"{pin.reference}: the tag {pin.kept_by} stays, and keeps its snapshot: {problem}"
        for pin in pins
        if pin.kept_by and (problem := _release(catalogs, pin))
    ]


def _release(catalogs: Sequence[CatalogModel], pin: Pin) -> str | None:
    # Iceberg counts the age of a tag from the commit of its snapshot.
    age_ms = int(time.time() * 1000) - (pin.committed_at or 0)
    stage = _create(pin, age_ms + pin.keep_days * _DAY_MS) if pin.keep_days else _remove(pin)
    try:
        _change(catalogs, pin, stage)
    except SourceError as error:
        return str(error)
    return None


def remove_tags(catalogs: Sequence[CatalogModel], pins: Iterable[Pin]) -> None:
    """Remove the tags of a run that is deleted; a table that is gone has none.

    Raises SourceError or StoreError if a catalog refuses or does not answer.
    """
    for pin in pins:
        if pin.kept_by and pin.kept_by.startswith(PREFIX):
            _change(catalogs, pin, _remove(pin))


def _create(pin: Pin, max_age_ms: int) -> _Stage:
    def stage(table: Table, manager: ManageSnapshots) -> bool:
        assert pin.kept_by is not None
        assert pin.snapshot_id is not None
        check_pin(pin, table.metadata)
        manager.create_tag(int(pin.snapshot_id), pin.kept_by, max_age_ms)
        return True

    return stage


def _remove(pin: Pin) -> _Stage:
    def stage(table: Table, manager: ManageSnapshots) -> bool:
        assert pin.kept_by is not None
        is_there = pin.kept_by in table.metadata.refs
        if is_there:
            manager.remove_tag(pin.kept_by)
        return is_there

    return stage


def _change(catalogs: Sequence[CatalogModel], pin: Pin, stage: _Stage) -> None:
    """Change the tags of a table, if it exists; again, if another writer was faster."""
    from pyiceberg.exceptions import CommitFailedException

    what = describe(pin.catalog, f"change the tags of {pin.table!r}")
    catalog = open_catalog(find_catalog(catalogs, pin.catalog))
    for attempt in itertools.count(1):
        table = ask_catalog(what, lambda: load_or_none(catalog, pin.table))
        if table is None:
            return
        manager = table.manage_snapshots()
        if not stage(table, manager):
            return
        try:
            ask_catalog(what, manager.commit, passes=(CommitFailedException,))
            return
        except CommitFailedException as error:
            if attempt == _MAX_ATTEMPTS:
                raise StoreError(
                    f"{what}: other writers were faster in {attempt} attempts. Try again"
                ) from error
            Retrying().wait(attempt)
