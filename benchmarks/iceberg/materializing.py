"""Cells about the step `materialize`: its next day, its table's speed, and the advice of `explain`.

Costs are core seconds of this process and its children, which waiting for a busy machine does not
change.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles

from benchmarks.dataloading.measuring.checksums import Sums, add_sums, identities_of, proof_of
from benchmarks.harness.cells import Cell
from benchmarks.harness.errors import BenchmarkError
from benchmarks.iceberg.lakes import KEYS, MAIN_COLUMNS, SIDE_COLUMNS, Lake, make_lake
from benchmarks.iceberg.ours import BATCH_SIZE, build_experiment
from pipeline_runtime.batches import Batch
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.loader import open_loader, parse_options
from pipeline_runtime.plan import build_plan
from pipeline_runtime.run.advising import Advice, measure_advice
from pipeline_runtime.run.materializing import build_ready_plan
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.preceding import Preceding
from pipeline_runtime.sample_data.lake import CATALOG, NAMESPACE
from pipeline_runtime.sample_data.lake_tables import DAY, IMPRESSIONS, KEY, USER_ACTIONS

_KEPT: Final = "kept"  # the catalog of the cache tables
_SOURCE: Final = f"{NAMESPACE}.{IMPRESSIONS.name}"
_DAYS: Final = 4  # of the tables that are not about windows
_WINDOW_DAYS: Final = 30
_RUNS: Final = (1, 4, 16)
_NUM_SCORES: Final = 60
_EPOCHS: Final = 3  # of each kind, whose median counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """Core seconds of keeping rows, and how many of them planned the run."""

    seconds: float
    planning_seconds: float
    partitions: int

    @property
    def work_seconds(self) -> float:
        """Core seconds of computing, writing and committing the rows."""
        return self.seconds - self.planning_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A lake, and a folder with the catalog of cache tables."""

    lake: Lake
    folder: Path

    @property
    def catalogs(self) -> list[dict[str, str]]:
        """The catalogs of both, as a manifest has them."""
        return [
            {"name": CATALOG, "type": "Sql", "uri": self.lake.uri},
            {
                "name": _KEPT,
                "type": "Sql",
                "uri": f"sqlite:///{self.folder}/catalog.db",
                "warehouse": f"file://{self.folder}/warehouse",
            },
        ]

    def open(self) -> SqlCatalog:
        """Open the catalog of cache tables, and create it if there is none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        uri, warehouse = (self.catalogs[1][name] for name in ("uri", "warehouse"))
        catalog = SqlCatalog(_KEPT, uri=uri, warehouse=warehouse)
        catalog.create_namespace_if_not_exists("db")
        return catalog

    def build(
        self,
        steps: Sequence[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        keeps: bool = True,
        where: str | None = None,
    ) -> DatasetExperiment:
        """Return a training on the impressions after some steps, whose rows are kept."""
        step = {
            "iceberg": {"catalog": _KEPT, "table": "db.rows"},
            "bucketBy": KEY,
            "buckets": 8,
            "sortBy": [KEY],
        }
        dataset: dict[str, Any] = {"iceberg": {"catalog": CATALOG, "table": _SOURCE}}
        dataset["rowKey"] = ["request_id", "position"]
        return build_experiment(
            self.lake,
            catalogs=self.catalogs,
            dataset=dataset | ({"where": where} if where else {}),
            pipeline=[*steps, *([{"materialize": step}] if keeps else [])],
            training={"batchSize": BATCH_SIZE, "columns": list(columns)},
        )

    def keep(self, experiment: DatasetExperiment) -> _Kept:
        """Keep the missing rows."""
        root, work = str(self.folder), [0.0]
        build = partial(build_plan, storage_root=root, pins=Pins())
        found = build(experiment).materialization
        assert found is not None

        @contextmanager
        def watch(_: Any) -> Iterator[None]:
            began = _core_seconds()
            yield
            work[0] = _core_seconds() - began

        options = RunOptions(
            output=self.folder, storage_root=root, preceding=Preceding(watch=watch)
        )
        began = _core_seconds()
        build_ready_plan(experiment, options, build)
        seconds = _core_seconds() - began
        return _Kept(
            seconds=seconds, planning_seconds=seconds - work[0], partitions=len(found.missing)
        )

    def read(self, experiment: DatasetExperiment) -> tuple[float, Sums]:
        """Read an epoch; return core seconds, and the sums of its identities."""
        began = _core_seconds()
        sums: Sums = {}
        for batch in _load(experiment, self.folder):
            sums = add_sums(sums, identities_of(batch))
        return _core_seconds() - began, sums

    def prove(self, experiment: DatasetExperiment) -> Sums:
        """Read an epoch, and return the sums of every value."""
        sums: Sums = {}
        for batch in _load(experiment, self.folder):
            sums = add_sums(sums, proof_of(batch))
        return sums


def _core_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _load(experiment: DatasetExperiment, folder: Path) -> Iterator[Batch]:
    options = parse_options(last_batch=None, device=None, num_threads=None, distributed=False)
    return iter(open_loader(experiment, str(folder), options))


@contextmanager
def _new_place(lake: Lake) -> Iterator[_Place]:
    """Yield a place whose cache tables are deleted at the end."""
    with TemporaryDirectory(dir=lake.folder) as name:
        place = _Place(lake=lake, folder=Path(name))
        with closing(place.open()):
            yield place


_CHEAP: Final = [
    {"select": {"columns": list(MAIN_COLUMNS)}},
    {"derive": {"columns": [{"name": "twice", "expression": "dense_06 * 2"}]}},
]


def _find_kept(lake: Lake) -> tuple[_Place, DatasetExperiment]:
    """Return the place of kept rows of a lake, which the first call computes."""
    place = _Place(lake=lake, folder=lake.folder / "kept")
    experiment = place.build(_CHEAP, MAIN_COLUMNS)
    if not place.folder.exists():
        with closing(place.open()):
            place.keep(experiment)
    return place, experiment


def hit_stream(lake: Lake) -> Iterator[Batch]:
    """Read rows that are kept."""
    place, experiment = _find_kept(lake)
    return _load(experiment, place.folder)


def parquet_stream(lake: Lake) -> Iterator[Batch]:
    """Read the files of the kept rows as Parquet."""
    place, _ = _find_kept(lake)
    with closing(place.open()) as catalog:
        [name] = catalog.list_tables("db")
        tasks = catalog.load_table(name).scan().plan_files()
        files = sorted(task.file.file_path.removeprefix("file://") for task in tasks)
    experiment = build_experiment(
        lake,
        dataset={"parquet": {"uris": files}},
        training={"batchSize": BATCH_SIZE, "columns": list(MAIN_COLUMNS)},
    )
    return _load(experiment, place.folder)


def read_without_source(lake: Lake) -> None:
    """Read the kept rows while the original has no data files, since reading those would fail.

    Raises BenchmarkError if rows are missing.
    """
    place, experiment = _find_kept(lake)
    data = lake.folder / "warehouse" / NAMESPACE / IMPRESSIONS.name / "data"
    hidden = data.with_name("hidden")
    shutil.move(data, hidden)
    try:
        _, sums = place.read(experiment)
    finally:
        shutil.move(hidden, data)
    if sums["rows"] != lake.rows:
        raise BenchmarkError(f"without the original's files, {sums['rows']} rows were read")


_JOIN: Final = {
    "iceberg": {"catalog": CATALOG, "table": f"{NAMESPACE}.{USER_ACTIONS.name}"},
    "keys": list(KEYS),
    "columns": list(SIDE_COLUMNS),
}


def compare_window(data: Path, rows: int, rounds: int) -> Cell:
    """Compare the next day of a window with a day of the first, by core seconds."""
    lake = make_lake(data, rows, days=_WINDOW_DAYS + rounds)
    first = _find_first_day(lake)
    values, planning, again = [], [], 0
    with _new_place(lake) as place:
        place.keep(_build_window(place, first, days=1))  # warms up
        whole = place.keep(_build_window(place, first))
        a_day = whole.work_seconds / whole.partitions
        for shift in range(1, rounds + 1):
            _compact(lake, first + timedelta(shift))
            again += place.keep(_build_window(place, first + timedelta(shift - 1))).partitions
            window = _build_window(place, first + timedelta(shift))
            kept = place.keep(window)
            if kept.partitions != 1:
                raise BenchmarkError(f"the next window computes {kept.partitions} days, not one")
            values.append(kept.work_seconds / a_day)
            planning.append(kept.planning_seconds)
        plain = _build_window(place, first + timedelta(rounds), keeps=False)
        if place.prove(window) != place.prove(plain):
            raise BenchmarkError("the rows of the table differ from those of the steps")
    if again:
        raise BenchmarkError(f"compactions had {again} days computed again")
    note = (
        f"{a_day:.2f} core seconds a day; planning the run takes {statistics.median(planning):.2f} "
        "more, with any number of new days; equal checksums; after a compaction, no day is "
        "computed again"
    )
    return Cell(
        name="materialization-window",
        base="",
        arms={"the next day of 30, with materialize": {"daysOfWork": values}},
        facts={"note": note},
    )


def _build_window(
    place: _Place, first: date, *, days: int = _WINDOW_DAYS, keeps: bool = True
) -> DatasetExperiment:
    where = f"day >= '{first}' and day <= '{first + timedelta(days - 1)}'"
    return place.build(
        [{"join": _JOIN}, _LABEL],
        (*MAIN_COLUMNS, *SIDE_COLUMNS),
        keeps=keeps,
        where=where,
    )


_LABEL: Final = {"derive": {"columns": [{"name": "label", "expression": "cast(clicked as int32)"}]}}


def _find_first_day(lake: Lake) -> date:
    with closing(SqlCatalog(CATALOG, uri=lake.uri)) as catalog:
        tasks = catalog.load_table(_SOURCE).scan(selected_fields=(DAY,)).plan_files()
        return date(1970, 1, 1) + timedelta(min(task.file.partition[0] for task in tasks))


class _Replace(_OverwriteFiles):
    """Replaces files by others with the same rows, as a compaction does."""

    def _summary(self, *arguments: Any, **options: Any) -> Any:
        summary = super()._summary(*arguments, **options)
        return Summary(Operation.REPLACE, **summary.additional_properties)


def _compact(lake: Lake, day: date) -> None:
    """Write the files of a day again, by a snapshot that replaces them."""
    with closing(SqlCatalog(CATALOG, uri=lake.uri)) as catalog:
        table = catalog.load_table(_SOURCE)
        scan = table.scan(EqualTo(DAY, day.isoformat()))
        old, rows = [task.file for task in scan.plan_files()], scan.to_arrow()
        with table.transaction() as transaction:
            producer = _Replace(Operation.OVERWRITE, transaction, table.io)
            for file in old:
                producer.delete_data_file(file)
            for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
                producer.append_data_file(file)
            producer.commit()


# The steps before `materialize`, by their kind.
_SCORES: Final = [
    {"derive": {"columns": [{"name": "score", "expression": "log1p(exp(-abs(dense_06)))"}]}},
    *_NUM_SCORES
    * [{"derive": {"columns": [{"name": "score", "expression": "log1p(exp(-abs(score)))"}]}}],
]
_SETTINGS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "cheap": _CHEAP,
    "selective": [*_CHEAP, {"filter": {"where": "clicked"}}],
    "join": [{"select": {"columns": [*MAIN_COLUMNS, DAY]}}, {"join": _JOIN}],
    "expensive": [*_CHEAP[:1], *_SCORES],
}


def judge_advice(data: Path, lake: Lake) -> Cell:
    """Compare the advice with the better of keeping the rows always and never."""
    values, notes = [], []
    small = make_lake(data, 10_000, days=1)
    for name, steps in _SETTINGS.items():
        _measure_costs(small, steps)  # loads libraries, and compiles kernels
        costs, advice = _measure_costs(lake, steps)
        kept, hit, never = costs
        for runs in _RUNS:
            always, without = kept + runs * hit, runs * never
            after = advice.pays_after_runs
            chosen = always if after is not None and after <= runs else without
            values.append(chosen / min(always, without))
        notes.append(
            f"{name}: keep {kept:.2f} (advice {advice.keep_seconds:.2f}), read {hit:.2f} "
            f"({advice.with_seconds:.2f}), compute {never:.2f} ({advice.without_seconds:.2f})"
        )
    return Cell(
        name="advice",
        base="",
        arms={f"the worst of {len(values)} settings": {"ofBetter": [max(values)]}},
        facts={"note": "core seconds: " + "; ".join(notes)},
    )


def _measure_costs(
    lake: Lake, steps: Sequence[Mapping[str, Any]]
) -> tuple[tuple[float, float, float], Advice]:
    """Return the core seconds of keeping, and of an epoch with and without, and the advice."""
    with _new_place(lake) as place:
        columns = list(MAIN_COLUMNS)
        columns += ["score"] if steps[-1] == _SCORES[-1] else []
        columns += SIDE_COLUMNS if steps[-1] == {"join": _JOIN} else []
        experiment = place.build(steps, columns)
        plan = build_plan(experiment, str(place.folder))
        advice = measure_advice(experiment, plan, str(place.folder))
        if advice is None:
            raise BenchmarkError("explain gives no advice")
        kept = place.keep(experiment).seconds
        plain = place.build(steps, columns, keeps=False)
        reads = [(place.read(experiment), place.read(plain)) for _ in range(_EPOCHS)]
        hit, never = (statistics.median(pair[i][0] for pair in reads) for i in (0, 1))
        (_, sums), (_, same) = reads[-1]
        if sums != same:
            raise BenchmarkError("the rows with and without the table differ")
    return (kept, hit, never), advice
