"""The cell about the step `materialize`: the next day of a window against a day of the first.

Costs are core seconds of this process and its children, which waiting for a busy machine does not
change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.dataloading.measuring.checksums import Sums, add_sums, proof_of
from benchmarks.harness.cells import Cell
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.rounds import check_agreement
from benchmarks.iceberg.lakes import MAIN_COLUMNS, SIDE_COLUMNS, Lake, make_lake
from benchmarks.iceberg.ours import BATCH_SIZE, JOIN, SOURCE, build_experiment, load
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.plan import build_plan
from pipeline_runtime.run.materializing import build_ready_plan
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.preceding import Preceding
from pipeline_runtime.sample_data.lake import CATALOG
from pipeline_runtime.sample_data.lake_tables import DAY, KEY, to_date

_KEPT: Final = "kept"  # the catalog of the cache table
_NAMESPACE: Final = "db"
_WINDOW_DAYS: Final = 30
_LABEL: Final = {"derive": {"columns": [{"name": "label", "expression": "cast(clicked as int32)"}]}}


def compare_next_day(data: Path, rows: int, rounds: int) -> Cell:
    """Compare the next day of a window with a day of the first, by core seconds."""
    lake = make_lake(data, rows, days=_WINDOW_DAYS + rounds)
    values = []
    with TemporaryDirectory(dir=lake.folder) as name:
        place = _Place(lake=lake, folder=Path(name))
        with closing(SqlCatalog(_KEPT, **place.catalog)) as catalog:
            catalog.create_namespace(_NAMESPACE)
        place.keep(place.build(0, days=1))  # warms up
        seconds, days = place.keep(place.build(0))
        a_day = seconds / days
        for shift in range(1, rounds + 1):
            seconds, days = place.keep(place.build(shift))
            if days != 1:
                raise BenchmarkError(f"the next window must compute one day, but computes {days}")
            values.append(seconds / a_day)
        found = {
            "kept rows": place.prove(place.build(rounds)),
            "computed rows": place.prove(place.build(rounds, keeps=False)),
        }
        check_agreement("the last window", found)
    return Cell(
        name="next-day",
        base="",
        arms={"the next day of 30, with materialize": {"daysOfWork": values}},
        facts={"note": f"{a_day:.2f} core seconds a day; equal checksums"},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A lake, and a folder with the catalog of the cache table."""

    lake: Lake
    folder: Path

    @property
    def catalog(self) -> dict[str, str]:
        """The properties of the catalog."""
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/warehouse"
        return {"uri": uri, "warehouse": warehouse}

    def build(
        self, first: int, *, days: int = _WINDOW_DAYS, keeps: bool = True
    ) -> DatasetExperiment:
        """Return a training on a window of joined impressions, whose rows are kept."""
        begin, end = (to_date(0) + timedelta(day) for day in (first, first + days - 1))
        target = {"catalog": _KEPT, "table": f"{_NAMESPACE}.rows"}
        step = {"iceberg": target, "bucketBy": KEY, "buckets": 8, "sortBy": [KEY]}
        return build_experiment(
            self.lake,
            catalogs=[
                {"name": CATALOG, "type": "Sql", "uri": self.lake.uri},
                {"name": _KEPT, "type": "Sql", **self.catalog},
            ],
            dataset={
                **SOURCE,
                "where": f"{DAY} >= '{begin}' and {DAY} <= '{end}'",
                "rowKey": ["request_id", "position"],
            },
            pipeline=[{"join": JOIN}, _LABEL, *([{"materialize": step}] if keeps else [])],
            training={"batchSize": BATCH_SIZE, "columns": [*MAIN_COLUMNS, *SIDE_COLUMNS]},
        )

    def keep(self, experiment: DatasetExperiment) -> tuple[float, int]:
        """Keep the missing days; return the core seconds of that work, and the number of days.

        Planning the run is left out: it takes equally long with any number of missing days.
        """
        root, seconds = str(self.folder), 0.0
        build = partial(build_plan, storage_root=root, pins=Pins())
        found = build(experiment).materialization
        assert found is not None

        @contextmanager
        def watch(_: Any) -> Iterator[None]:
            nonlocal seconds
            began = _core_seconds()
            yield
            seconds = _core_seconds() - began

        preceding = Preceding(watch=watch)
        options = RunOptions(output=self.folder, storage_root=root, preceding=preceding)
        build_ready_plan(experiment, options, build)
        return seconds, len(found.missing)

    def prove(self, experiment: DatasetExperiment) -> Sums:
        """Read an epoch, and return the sums of every value."""
        sums: Sums = {}
        for batch in load(experiment, self.folder):
            sums = add_sums(sums, proof_of(batch))
        return sums


def _core_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
