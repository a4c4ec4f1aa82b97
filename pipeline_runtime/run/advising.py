"""Measures on a sample whether keeping the rows of a step `materialize` pays, for `explain`.

Some row groups are read three times in this process: as a run without the table reads them, as the
rows are computed and kept, into a table of a temporary catalog, and as a run reads that table. So
the measured code is that of the run. A first, short pass of each warms up kernels and caches.
"""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipeline_runtime import kernels
from pipeline_runtime.config import Catalog, DatasetExperiment
from pipeline_runtime.config.output import DEFAULT_FILE_BYTES
from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.making.work import run_group
from pipeline_runtime.formatting import format_duration
from pipeline_runtime.iceberg.catalogs import open_catalog
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.materialization.lookup import Materialization
from pipeline_runtime.output.cache_table import open_cache_table
from pipeline_runtime.output.job import Job, Progress, Writers
from pipeline_runtime.output.merge import MergeInThreads
from pipeline_runtime.plan import Group, Plan, StreamPlan, build_plan
from pipeline_runtime.run.materializing import (
    Build,
    Writing,
    build_writing,
    write_partitions,
)
from pipeline_runtime.run.partition_commits import cut_commits
from pipeline_runtime.sources import Unit, open_location
from pipeline_runtime.steps.materialize.model import CacheTarget

# Enough for a stable rate of cheap steps, which read so many rows in a fraction of a second.
SAMPLE_ROWS = 200_000
# Longest measurement of one way, beyond its first chunk.
SAMPLE_SECONDS = 2.0
# The costs of keeping are measured on this part of the sample too, to tell those of a commit apart.
_PART = 4
# A stream is read so often: the first pass is slower.
_PASSES = 3
# Rows of the shortest chunks: shorter ones would cost more per row.
MIN_BLOCK_ROWS = 1024
_NAMESPACE = "sample"
_CATALOG = "lastmile-sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The core seconds of an experiment with the table of its step `materialize`, and without.

    Attributes:
        without_seconds: of a run that computes the rows, for all its epochs.
        with_seconds: of a run that reads the table.
        keep_seconds: of computing and keeping the missing rows, once.
        epochs: passes of a run over the rows.
        sample_rows: rows of the source that were measured.
    """

    without_seconds: float
    with_seconds: float
    keep_seconds: float
    epochs: int
    sample_rows: int

    @property
    def pays_after_runs(self) -> int | None:
        """Return the number of runs from which keeping the rows costs less; None: it never does."""
        saved = self.without_seconds - self.with_seconds
        return max(1, math.ceil(self.keep_seconds / saved)) if saved > 0 else None

    def explain(self) -> Iterator[str]:
        """Yield lines about the costs, for people."""
        kept, saved = (
            format_duration(seconds)
            for seconds in (self.keep_seconds, self.without_seconds - self.with_seconds)
        )
        with_table, without = map(format_duration, (self.with_seconds, self.without_seconds))
        runs = f"a run of {self.epochs:,} epochs" if self.epochs > 1 else "a run"
        yield (
            f"core time: {kept} once to compute and keep the missing rows; {runs} takes "
            f"{with_table} with the table and {without} without"
        )
        after = self.pays_after_runs
        if after is None:
            yield "keeping the rows does not pay: reading them costs as much as computing them"
        elif after == 1:
            yield f"keeping the rows pays in the first run; each later one saves {saved}"
        else:
            yield f"keeping the rows pays after {after:,} runs; each one saves {saved}"
        yield (
            f"measured here on {self.sample_rows:,} rows; without the trainer, evaluations, the "
            "reading of side tables, and waiting for the store"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the figures for `explain --json`."""
        return {
            "withoutSeconds": self.without_seconds,
            "withSeconds": self.with_seconds,
            "keepSeconds": self.keep_seconds,
            "paysAfterRuns": self.pays_after_runs,
            "epochs": self.epochs,
            "sampleRows": self.sample_rows,
        }


def measure_advice(
    experiment: DatasetExperiment,
    plan: Plan,
    storage_root: str,
    *,
    rows: int = SAMPLE_ROWS,
    seconds: float = SAMPLE_SECONDS,
) -> Advice | None:
    """Measure whether keeping the rows pays.

    Args:
        plan: of the experiment.
        rows: most rows of the source to measure.
        seconds: longest duration of each measurement; one chunk may exceed it.

    Returns:
        None if there is nothing to advise: no row is to be kept, or all are.

    Raises SourceError, StepError or another LastmileError, as a run would.
    """
    found = plan.materialization
    if found is None or not sum(found.partitions[key].rows for key in found.missing):
        return None
    with (
        tempfile.TemporaryDirectory(prefix="lastmile-sample-") as folder,
        contextlib.redirect_stdout(sys.stderr),  # user code may print
    ):
        if plan.main.kernels:
            kernels.warm()
        return _Trial(experiment, plan, found, storage_root, folder).run(rows, seconds)


@dataclass(slots=True, kw_only=True)
class _Spent:
    """Core seconds of this process, and rows of the source that were read in them."""

    seconds: float
    rows: int

    @property
    def per_row(self) -> float:
        return self.seconds / max(1, self.rows)


class _Trial:
    """The three measurements, with a table in a folder."""

    def __init__(
        self,
        experiment: DatasetExperiment,
        plan: Plan,
        found: Materialization,
        storage_root: str,
        folder: str,
    ) -> None:
        self._found, self._folder = found, folder
        self._experiment = experiment
        pins = Pins()
        pins.restore(plan.pins)
        self._build: Build = partial(build_plan, storage_root=storage_root, pins=pins)
        self._catalog = Catalog(
            name=_CATALOG,
            type="Sql",
            uri=f"sqlite:///{folder}/catalog.db",
            warehouse=f"file://{folder}/lake",
        )
        open_catalog(self._catalog, creates=True).create_namespace(_NAMESPACE)

    def run(self, rows: int, seconds: float) -> Advice | None:
        """Measure, and scale the figures to all rows; None if no row of the sample is kept."""
        found = self._found
        keys, num_rows = self._choose_partitions(rows)
        scan, planning_seconds = self._plan(build_writing(self._experiment, found))
        units = _choose_units(scan.scan.units, self._list_places(keys), rows)
        sampled_rows = sum(unit.num_rows for unit in units)
        buckets = max(1, round(found.step.buckets * min(1.0, sampled_rows / max(1, num_rows))))
        computing, computing_planning = self._plan(_leave_out(self._experiment, found.place))
        stream = _restrict(computing, units)
        block_rows = _choose_block_rows(stream, seconds)
        without = _measure(replace(stream, max_rows_per_block=block_rows), rows, seconds)
        part = _Limits(rows=rows // _PART, seconds=seconds / _PART)
        self._keep("warm", buckets, units, _Limits(rows=1, seconds=0.0), block_rows)
        before = self._keep("part", buckets, units, part, block_rows)
        kept = self._keep("all", buckets, units, _Limits(rows=rows, seconds=seconds), block_rows)
        keep_per_row, commit_seconds = _fit(before, kept)
        reading, reading_planning = self._plan(self._move("all", buckets))
        if not reading.scan.units:
            return None
        reads = _measure(reading, rows, seconds)
        # Of the source's rows: those that a run without the table reads, and those in the table.
        scanned = _count_rows(stream.scan.units) / max(1, sampled_rows)
        share = _count_rows(reading.scan.units) / max(1, kept.rows)
        all_rows = sum(partition.rows for partition in found.partitions.values())
        missing_rows = sum(found.partitions[key].rows for key in found.missing)
        spec = self._experiment.spec
        epochs = 1 if spec.output is not None else spec.training.epochs
        num_commits = len(list(cut_commits(found.missing, found.partitions)))
        return Advice(
            without_seconds=computing_planning + epochs * all_rows * scanned * without.per_row,
            with_seconds=reading_planning + epochs * all_rows * share * reads.per_row,
            # The run is planned once more, and so are the rows to keep.
            keep_seconds=2 * planning_seconds
            + missing_rows * keep_per_row
            + num_commits * commit_seconds,
            epochs=epochs,
            sample_rows=kept.rows,
        )

    def _plan(self, experiment: DatasetExperiment) -> tuple[StreamPlan, float]:
        """Return the plan of the main stream, and the core seconds that the plan took."""
        began = time.process_time()
        plan = self._build(experiment)
        return plan.main, time.process_time() - began

    def _list_places(self, keys: Collection[str]) -> frozenset[str]:
        """Return the files of partitions."""
        return frozenset().union(*(self._found.partitions[key].places for key in keys))

    def _choose_partitions(self, rows: int) -> tuple[frozenset[str], int]:
        """Return missing partitions with enough rows, if there are such, and their rows.

        Those of middle size come first: they are like most.
        """
        partitions = self._found.partitions
        keys = sorted(self._found.missing, key=lambda key: partitions[key].rows)
        middle = len(keys) // 2
        chosen, num_rows = [], 0
        for key in [*keys[middle:], *keys[:middle][::-1]]:
            chosen.append(key)
            num_rows += partitions[key].rows
            if num_rows >= rows:
                break
        return frozenset(chosen), num_rows

    def _move(self, table: str, buckets: int) -> DatasetExperiment:
        """Return the experiment with a table in the temporary catalog.

        Args:
            buckets: so many that files have as many rows as those of the real table.
        """
        spec, place = self._experiment.spec, self._found.place
        target = CacheTarget(catalog=_CATALOG, table=f"{_NAMESPACE}.{table}")
        step = self._found.step.model_copy(update={"iceberg": target, "buckets": buckets})
        steps = list(spec.pipeline)
        steps[place] = steps[place].model_copy(update={"materialize": step})
        changes = {"pipeline": tuple(steps), "catalogs": (*(spec.catalogs or ()), self._catalog)}
        return self._experiment.model_copy(update={"spec": spec.model_copy(update=changes)})

    def _keep(
        self,
        table: str,
        buckets: int,
        units: Sequence[Unit],
        limits: _Limits,
        block_rows: int | None,
    ) -> _Spent:
        """Keep the sample's rows, and return the cost."""
        experiment = self._move(table, buckets)
        found = self._build(experiment).materialization
        assert found is not None
        plan = self._build(build_writing(experiment, found))
        stream = replace(_restrict(plan.main, units), max_rows_per_block=block_rows)
        plan = replace(plan, streams={stream.role: stream})
        keys = frozenset(found.wanted)  # a plan finds the table complete, as after a real run
        staged = open_location(f"{self._folder}/staged")
        cache = open_cache_table(
            found, keys, stream.output_schema, self._catalog, staged, DEFAULT_FILE_BYTES
        )
        sampler = _Sampler(limits=limits)

        @contextlib.contextmanager
        def open_writers(plan: Plan, stream: Stream, job: Job) -> Iterator[Writers]:
            sampler.stream = stream
            yield Writers(feed=sampler, merge=MergeInThreads(1))

        began = time.process_time()
        writing = Writing(plan=plan, found=found, keys=keys, table=cache)
        write_partitions(writing, open_writers, _Unwatched())
        return _Spent(seconds=time.process_time() - began, rows=sampler.num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """Ends of a measurement: it stops after the chunk that reaches one."""

    rows: int
    seconds: float


@dataclass(slots=True, kw_only=True)
class _Sampler:
    """Makes chunks in this thread, until a limit is reached; a FeedSource and its Feed.

    Attributes:
        num_rows: rows of the source that were read.
    """

    limits: _Limits
    stream: Stream | None = None
    groups: Sequence[Group] = ()
    num_rows: int = 0

    def open(self, role: str, rank: int, groups: Sequence[Group], *, in_order: bool) -> _Sampler:
        """See FeedSource."""
        self.groups = groups
        return self

    def chunks(self, waited: Waited, usage: WorkerUsage | None = None) -> Iterator[Chunk]:
        """See Feed."""
        stream, ends = self.stream, time.process_time() + self.limits.seconds
        assert stream is not None
        for group in self.groups:
            for chunk in run_group(stream.plan, group, stream.chunk_rows):
                self.num_rows += chunk.header.counts[0].rows
                yield stream.finish(chunk) if stream.finish else chunk
                if self.num_rows >= self.limits.rows or time.process_time() > ends:
                    return


class _Unwatched:
    """Ignores the progress of a job."""

    def begin(self, job: Job) -> None:
        """Ignore the job."""

    def __call__(self, progress: Progress) -> None:
        """Ignore its progress."""


def _fit(part: _Spent, whole: _Spent) -> tuple[float, float]:
    """Return the seconds per row and those of a commit, by measurements of two sizes."""
    rows = whole.rows - part.rows
    if rows <= part.rows // 2 or whole.seconds <= part.seconds:  # no second size
        return whole.per_row, 0.0
    per_row = (whole.seconds - part.seconds) / rows
    return per_row, max(0.0, part.seconds - part.rows * per_row)


def _leave_out(experiment: DatasetExperiment, place: int) -> DatasetExperiment:
    """Return the experiment without a step."""
    steps = experiment.spec.pipeline
    spec = experiment.spec.model_copy(update={"pipeline": (*steps[:place], *steps[place + 1 :])})
    return experiment.model_copy(update={"spec": spec})


def _choose_units(units: Sequence[Unit], places: Collection[str], rows: int) -> list[Unit]:
    """Return row groups of these files, until there are enough rows."""
    chosen: list[Unit] = []
    for unit in units:
        if unit.place in places and _count_rows(chosen) < rows:
            chosen.append(unit)
    return chosen


def _restrict(stream: StreamPlan, units: Sequence[Unit]) -> StreamPlan:
    """Return the stream with only those of its row groups that are among these."""
    wanted = {(unit.place, unit.index) for unit in units}
    kept = tuple(unit for unit in stream.scan.units if (unit.place, unit.index) in wanted)
    return replace(stream, scan=replace(stream.scan, units=kept))


def _count_rows(units: Sequence[Unit]) -> int:
    return sum(unit.num_rows for unit in units)


def _measure(stream: StreamPlan, rows: int, seconds: float) -> _Spent:
    """Read a stream a few times, and return the cost of the fastest pass."""
    limits = _Limits(rows=rows, seconds=seconds / _PASSES)
    passes = [_read(stream, limits) for _ in range(_PASSES)]
    return min(passes, key=lambda spent: spent.per_row)


def _read(stream: StreamPlan, limits: _Limits) -> _Spent:
    chunk_rows = stream.chunk_rows
    sampler = _Sampler(
        limits=limits,
        stream=Stream(plan=stream, chunk_rows=chunk_rows),
        groups=stream.groups(0, chunk_rows),
    )
    began = time.process_time()
    for chunk in sampler.chunks(Waited()):
        del chunk  # a reader holds one at a time
    return _Spent(seconds=time.process_time() - began, rows=sampler.num_rows)


def _choose_block_rows(stream: StreamPlan, seconds: float) -> int | None:
    """Return the most rows of a chunk, so that one of expensive steps does not take minutes.

    None leaves the stream's own size.
    """
    short = replace(stream, max_rows_per_block=MIN_BLOCK_ROWS)
    per_row = [_read(short, _Limits(rows=1, seconds=0.0)).per_row for _ in range(2)][-1]
    if stream.chunk_rows * per_row <= seconds:
        return stream.max_rows_per_block
    return max(MIN_BLOCK_ROWS, int(seconds / per_row))
