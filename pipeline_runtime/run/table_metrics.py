"""The `lastmile_*` metrics about the Iceberg tables and models of a run, which the operator reads.

Ids of snapshots are labels, since a sample's value is a float, which does not hold 64 bits. A run
has one series per table, so they are as few as the run's pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline_runtime.config import MAX_STATUS_MODELS, MAX_STATUS_SNAPSHOTS
from pipeline_runtime.report import Materialized
from pipeline_runtime.run.reported_tables import ReportedTables, name_model

_MODEL_LABELS = ("model_experiment", "model_run", "file", "sha256")


class TableCollector(Collector):
    """A Prometheus collector over the tables of a run."""

    def __init__(self, tables: ReportedTables) -> None:
        self._tables = tables

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client.registry.Collector."""
        yield from _collect_kept(self._tables.materialization)
        read = GaugeMetricFamily(
            "lastmile_read_snapshot_info",
            "1 for each snapshot of an Iceberg table that the run reads, up to 16.",
            labels=["catalog", "table", "snapshot_id"],
        )
        found = ((p.catalog, p.table, p.snapshot_id) for p in self._tables.pins if p.snapshot_id)
        for labels in islice(dict.fromkeys(found), MAX_STATUS_SNAPSHOTS):
            read.add_metric(labels, 1.0)
        yield read
        models = GaugeMetricFamily(
            "lastmile_model_info",
            "1 for each model that a step of the run calls, up to 16.",
            labels=_MODEL_LABELS,
        )
        named = [name_model(pin) for pin in self._tables.models]
        rows = dict.fromkeys(tuple(n.get(key, "") for key in _MODEL_LABELS) for n in named)
        for values in islice(rows, MAX_STATUS_MODELS):
            models.add_metric(values, 1.0)
        yield models


def _collect_kept(kept: Materialized | None) -> Iterator[Metric]:
    if kept is None:
        return
    info = GaugeMetricFamily(
        "lastmile_materialization_info",
        "1 for the cache table of the step materialize, and its state when the run began.",
        labels=["catalog", "table", "snapshot_id", "state"],
    )
    info.add_metric([kept.catalog, kept.table, kept.snapshot_id or "", kept.state], 1.0)
    yield info
    yield GaugeMetricFamily(
        "lastmile_materialization_partitions",
        "Partitions of the source whose rows the run needs.",
        value=kept.partitions,
    )
    yield GaugeMetricFamily(
        "lastmile_materialization_complete_partitions",
        "Partitions of these whose rows the cache table has.",
        value=kept.complete_partitions,
    )
