"""Pins: the snapshot and the schema of each Iceberg table that a run reads, and its models.

A table is pinned when a run first opens it. All tables of a run share one `Pins`, so a table that
is read twice has the same rows both times. A model that a step calls is pinned likewise. The run
records its pins in its folder before it reads a row, and its retries and resumes begin with them,
although the tables have moved on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pipeline_runtime.errors import SourceError

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

MAIN = "main"
# In the folder of a run on the artifacts store.
PINS_FILE = "snapshots.json"


class Reference(NamedTuple):
    """The table of a manifest, and the state of it that the manifest asks for.

    At most one of the last three is set. Without them, it is the newest snapshot of `main`.
    """

    catalog: str
    table: str
    snapshot_id: str | None = None
    branch: str | None = None
    tag: str | None = None

    def __str__(self) -> str:
        return f"{self.catalog}.{self.table}"

    @property
    def wanted(self) -> str:
        """The state of the table that the manifest asks for, for people."""
        if self.snapshot_id:
            return f"snapshot {self.snapshot_id}"
        return f"tag {self.tag}" if self.tag else f"branch {self.branch or MAIN}"


class Pin(BaseModel):
    """The state of a table that a run reads."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    catalog: str = Field(description="The catalog, by its name in `spec.catalogs`.")
    table: str = Field(description="The table, as `namespace.table`.")
    branch: str | None = Field(default=None, description="The branch that the manifest names.")
    tag: str | None = Field(default=None, description="The tag that the manifest names.")
    given: bool = Field(default=False, description="True if the manifest names the snapshot.")
    table_uuid: str = Field(description="The table's identity; a new table has another one.")
    snapshot_id: str | None = Field(description="The snapshot; null: the table had none.")
    schema_id: int = Field(description="The schema that the columns' names and types are from.")
    committed_at: int | None = Field(
        default=None, description="Milliseconds since 1970 at which the snapshot was committed."
    )
    keep_days: int | None = Field(
        default=None,
        description="Days after the run for which a tag keeps the snapshot; null: no tag keeps it.",
    )
    kept_by: str | None = Field(default=None, description="The tag of the run.")

    @property
    def reference(self) -> Reference:
        """The table of the manifest that this is the pin of."""
        given = self.snapshot_id if self.given else None
        return Reference(self.catalog, self.table, given, self.branch, self.tag)

    def describe(self) -> str:
        """Return the table and its state, for people."""
        state = f"snapshot {self.snapshot_id}" if self.snapshot_id else "no snapshot yet"
        wanted = "" if self.given else f" ({self.reference.wanted})"
        return f"{self.reference} at {state}{wanted}"


class ModelPin(BaseModel):
    """The model that a step of a run calls."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    source: str = Field(description="The model, as the manifest names it.")
    uri: str = Field(description="The folder of the checkpoint or model, or the file.")
    sha256: str = Field(description="SHA-256 of the checkpoint's state, or of the files.")
    experiment: str | None = Field(default=None, description="The experiment that trained it.")
    run: str | None = Field(default=None, description="The run that trained it.")
    run_hash: str | None = Field(default=None, description="The identity of that run.")
    step: int | None = Field(default=None, description="The step of the checkpoint.")

    def describe(self) -> str:
        """Return the model and its origin, for people."""
        place = self.uri.rstrip("/").rpartition("/")[2]
        origin = "/".join(part for part in (self.experiment, self.run, place) if part)
        return f"{origin}, sha256 {self.sha256[:12]}"


class PinsFile(BaseModel):
    """The content of `snapshots.json`."""

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    tables: tuple[Pin, ...]
    models: tuple[ModelPin, ...] = ()


@dataclass(slots=True)
class Pins:
    """The pins of one run."""

    _pins: dict[Reference, Pin] = field(default_factory=dict)
    _models: dict[str, ModelPin] = field(default_factory=dict)  # by their source

    def restore(self, pins: Iterable[Pin], models: Iterable[ModelPin] = ()) -> None:
        """Begin with the pins of an earlier attempt; this manifest decides about `keep_days`."""
        self._pins |= {pin.reference: pin.model_copy(update={"keep_days": None}) for pin in pins}
        self._models |= {pin.source: pin for pin in models}

    @property
    def found(self) -> tuple[Pin, ...]:
        """The pins, in the order in which the tables were first opened."""
        return tuple(self._pins.values())

    @property
    def models(self) -> tuple[ModelPin, ...]:
        """The models, in the order in which they were first opened."""
        return tuple(self._models.values())

    def find_model(self, source: str) -> ModelPin | None:
        """Return the pin of a model; None if it is not pinned yet."""
        return self._models.get(source)

    def pin_model(self, pin: ModelPin) -> None:
        """Pin a model."""
        self._models[pin.source] = pin

    def pin(
        self, reference: Reference, metadata: TableMetadata, keep_days: int | None = None
    ) -> Pin:
        """Return the pin of a table; pin it if that is new.

        Args:
            keep_days: see Pin; of several for one table, the longest counts.

        Raises SourceError if there is no such snapshot, branch or tag, or not any more.
        """
        pin = self._pins.get(reference)
        if pin is None:
            pin = find_pin(reference, metadata)
        check_pin(pin, metadata)
        if keep_days is not None:
            pin = pin.model_copy(update={"keep_days": max(keep_days, pin.keep_days or 0)})
        self._pins[reference] = pin
        return pin


def find_pin(reference: Reference, metadata: TableMetadata) -> Pin:
    """Return the pin of the state that a reference asks for.

    A branch has the table's current schema, a tag or a snapshot the schema that it was written
    with, as in Iceberg's own readers.

    Raises SourceError if there is no such snapshot, branch or tag.
    """
    snapshot = _find_snapshot(reference, metadata)
    follows = not reference.snapshot_id and not reference.tag
    schema_id = metadata.current_schema_id
    if snapshot is not None and not follows and snapshot.schema_id is not None:
        schema_id = snapshot.schema_id
    return Pin(
        catalog=reference.catalog,
        table=reference.table,
        branch=reference.branch,
        tag=reference.tag,
        given=reference.snapshot_id is not None,
        table_uuid=str(metadata.table_uuid),
        snapshot_id=None if snapshot is None else str(snapshot.snapshot_id),
        schema_id=schema_id,
        committed_at=None if snapshot is None else snapshot.timestamp_ms,
    )


def _find_snapshot(reference: Reference, metadata: TableMetadata) -> Snapshot | None:
    if reference.snapshot_id:
        snapshot = metadata.snapshot_by_id(int(reference.snapshot_id))
        if snapshot is None:
            raise SourceError(
                f"must be a snapshot of {reference}, but {reference.snapshot_id!r} is none: it "
                f"never was, or it has expired. {_list_snapshots(metadata)}",
                field="iceberg.snapshotId",
            )
        return snapshot
    name = reference.tag or reference.branch
    if name is None:
        number = metadata.current_snapshot_id
        return None if number is None else _find_named(reference, metadata, number)
    kind = "tag" if reference.tag else "branch"
    refs = {n: ref for n, ref in metadata.refs.items() if ref.snapshot_ref_type == kind}
    if name not in refs:
        raise SourceError(
            f"must be a {kind} of {reference} ({', '.join(sorted(refs)) or 'none'}), but is "
            f"{name!r}. Correct it",
            field=f"iceberg.{kind}",
        )
    return _find_named(reference, metadata, refs[name].snapshot_id)


def _find_named(reference: Reference, metadata: TableMetadata, number: int) -> Snapshot:
    """Return a snapshot that the metadata name. Raises SourceError if they lack it."""
    snapshot = metadata.snapshot_by_id(number)
    if snapshot is None:
        raise SourceError(
            f"{reference}: the table's metadata must have snapshot {number}, which is that of "
            f"{reference.wanted}, but lack it. Restore them from an earlier metadata file"
        )
    return snapshot


def _list_snapshots(metadata: TableMetadata) -> str:
    newest = sorted(metadata.snapshots, key=lambda each: each.timestamp_ms)[-3:]
    ids = ", ".join(str(each.snapshot_id) for each in reversed(newest))
    return f"The newest are {ids}" if ids else "The table has none"


def check_pin(pin: Pin, metadata: TableMetadata) -> None:
    """Raise SourceError if a table no longer has the state that a run reads."""
    if str(metadata.table_uuid) != pin.table_uuid:
        raise SourceError(
            f"{pin.reference}: must be the table that this run began with ({pin.table_uuid}), but "
            f"is another one of the same name ({metadata.table_uuid}). Start a new run"
        )
    if pin.snapshot_id and metadata.snapshot_by_id(int(pin.snapshot_id)) is None:
        raise SourceError(
            f"{pin.reference}: must still have snapshot {pin.snapshot_id}, which this run reads, "
            f"but it has expired. {_list_snapshots(metadata)}. Start a new run, and set keepDays "
            "of the table, or name a tag, to keep its snapshot from expiring"
        )
    if all(schema.schema_id != pin.schema_id for schema in metadata.schemas):
        raise SourceError(
            f"{pin.reference}: must still have schema {pin.schema_id}, which this run reads, but "
            "it was removed from the table's metadata. Start a new run"
        )
