"""Facts of a run about its Iceberg tables and its models, for the metrics, the summary and the log.

`run.materializing` and the session fill it. The operator puts the same into the experiment's
status: it reads the metrics (`table_metrics`) while the driver runs, and these lines at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the options of a run are known before these are imported
    from pipeline_runtime.iceberg.pins import ModelPin, Pin
    from pipeline_runtime.materialization.lookup import Materialization
    from pipeline_runtime.report import Materialized


@dataclass(slots=True)
class ReportedTables:
    """The snapshots that a run reads, the models that it calls, and the rows that it keeps."""

    pins: tuple[Pin, ...] = ()
    models: tuple[ModelPin, ...] = ()
    materialization: Materialized | None = None

    def begin(self, found: Materialization, pins: tuple[Pin, ...]) -> None:
        """Take the state of the cache table when the run begins, and the known snapshots."""
        from pipeline_runtime.report import Materialized

        self.pins = pins
        self.materialization = Materialized(
            catalog=found.step.iceberg.catalog,
            table=found.table,
            state=found.state,
            partitions=len(found.wanted),
            complete_partitions=len(found.wanted) - len(found.missing),
            snapshot_id=_name_snapshot(found),
        )

    def add_complete(self, num_partitions: int) -> None:
        """Count partitions that were committed."""
        self._update(num_partitions, None)

    def complete(self, found: Materialization) -> None:
        """Take the snapshot that has all rows."""
        self._update(len(found.wanted), _name_snapshot(found))

    def _update(self, num_more: int, snapshot_id: str | None) -> None:
        before = self.materialization
        assert before is not None, "begin comes first"
        complete = min(before.partitions, before.complete_partitions + num_more)
        changes = {"complete_partitions": complete, "snapshot_id": snapshot_id}
        self.materialization = before.model_copy(update=changes)


def _name_snapshot(found: Materialization) -> str | None:
    return None if found.snapshot_id is None else str(found.snapshot_id)


def list_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each Iceberg table and model of a run, and for the rows that it kept.

    Args:
        summary: the document of `summary.json`, of this release or an older one.
    """
    for pin in summary.get("snapshots") or ():
        if pin["snapshotId"]:
            yield "read: catalog={catalog} table={table} snapshot_id={snapshotId}".format_map(pin)
    for model in summary.get("models") or ():
        yield "model: " + " ".join(f"{key}={value}" for key, value in _name_model(model).items())
    if (kept := summary.get("materialization")) and kept["snapshotId"]:
        yield (
            "materialized: catalog={catalog} table={table} snapshot_id={snapshotId} state={state} "
            "partitions={partitions} complete_partitions={completePartitions}".format_map(kept)
        )


def name_model(pin: ModelPin) -> dict[str, str]:
    """Return a model as metrics and log lines have it; see `config.ModelStatus`.

    A scrape gives each series the labels `experiment` and `run` of the run itself.
    """
    return _name_model(pin.model_dump(by_alias=True))


def _name_model(document: Mapping[str, Any]) -> dict[str, str]:
    found = {
        "model_experiment": document.get("experiment"),
        "model_run": document.get("run"),
        "file": document["uri"].rstrip("/").rpartition("/")[2],
        "sha256": document["sha256"],
    }
    return {key: value for key, value in found.items() if value}
