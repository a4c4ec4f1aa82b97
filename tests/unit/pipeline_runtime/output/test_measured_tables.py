"""Rows of a written table are measured once each, whatever is killed and however chunks are cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from failing_store import store_in_memory
from written_tables import InlineFeed, Killed, KillingStorage, Written, staged_names

from pipeline_runtime import Pipeline
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.making.work import run_group
from pipeline_runtime.feed.transport.wire import pack, unpack
from pipeline_runtime.output.job import Writers
from pipeline_runtime.output.merge import MergeInThreads
from pipeline_runtime.output.observed import merge_observed
from pipeline_runtime.output.records import ChunkRecord
from pipeline_runtime.output.spool import Spooler
from pipeline_runtime.plan import StreamPlan, build_plan, plan_groups
from pipeline_runtime.steps.measure.transform import Measure

ROWS = pa.table(
    {
        "id": range(24),
        "request": np.repeat(np.arange(8), 3),
        "score": np.arange(24) * 7 % 24 / 24,
        "label": np.arange(24) % 3 == 0,
        "words": [[f"w{i // 3}"] * 3 for i in range(24)],
    }
)
METRICS = (
    {"name": "mean", "mean": {"column": "id"}},
    {"name": "auc", "auc": {"score": "score", "label": "label"}, "groupBy": ["request"]},
    {"name": "gauc", "auc": {"score": "score", "label": "label"}, "per": "request"},
)
AFTER = ({"name": "left", "distinct": {"column": "id"}},)


@pytest.fixture(params=["local", pytest.param("store", marks=pytest.mark.slow)])
def uri(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.setenv("LASTMILE_STORAGE_SCHEMES", "away")
    with store_in_memory():
        yield "away://lake/out" if request.param == "store" else str(tmp_path / "out")


def plan(folder: Path, pipeline: Pipeline | None = None, **options: Any) -> StreamPlan:
    pq.write_table(ROWS, folder / "in.parquet", row_group_size=5)
    base = Pipeline.read_parquet(
        "in.parquet", row_key="id", request_key="request", request_columns=["words"]
    ).with_options(**options)
    steps = pipeline.steps if pipeline else ()
    if not steps:
        measured = base.measure(*METRICS).filter("id >= 12").measure(*AFTER)
        steps = measured.steps
    document = replace(base, steps=steps).document("m")
    document["spec"]["output"] = {"parquet": {"uri": "out/"}}
    return build_plan(parse_experiment(document), str(folder)).main


@dataclass(frozen=True, kw_only=True)
class Measured(Written):
    """A job whose chunks are measured."""

    found: list[Any] = field(default_factory=list)

    def write_measured(self, *, resume: bool = False) -> None:
        """Write the table, and put what was measured into `found`."""
        stream, job = self.stream, self.open(resume=resume)
        groups = plan_groups(
            stream.scan.units, seed=0, epoch=0, shuffle=stream.shuffle, chunk_rows=self.chunk_rows
        )
        spooler = Spooler(
            storage=job.spool,
            columns=tuple(stream.output_schema.names),
            split=job.target.split,
        )
        writers = Writers(
            feed=InlineFeed(stream, self.chunk_rows, spooler), merge=MergeInThreads(1)
        )

        def measure(chunks: Sequence[ChunkRecord]) -> None:
            steps = {s.path: s.transform for s in stream.steps if isinstance(s.transform, Measure)}
            self.found[:] = merge_observed(job.spool, chunks, steps)

        job.write(lambda: nullcontext(writers), groups, lambda progress: None, measure)


def measure_whole(stream: StreamPlan) -> list[Any]:
    """Return what the steps find in all rows at once."""
    before, _, after = (step.transform for step in stream.steps)
    assert isinstance(before, Measure)
    assert isinstance(after, Measure)
    return [
        list(before.finish(before.load(before.observe(ROWS)[1]))),
        list(after.finish(after.load(after.observe(ROWS.slice(12))[1]))),
    ]


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_anywhere_measures_each_row_once(uri: str, tmp_path: Path, after: bool) -> None:
    stream = plan(tmp_path)
    expected = measure_whole(stream)
    for at in itertools.count(0, 3):
        settings = Measured(stream=stream, uri=uri, chunk_rows=5, storage=KillingStorage)
        place = settings.place()
        place.table.remove()
        place.staging.remove()
        with KillingStorage.killing(at, after=after):
            try:
                settings.write_measured()
                break
            except Killed:
                pass
        settings.write_measured(resume=True)
        assert settings.found == expected
        assert staged_names(place) == []
    assert settings.found == expected
    assert at > 10


def test_chunks_without_rows_are_measured(tmp_path: Path) -> None:
    stream = plan(tmp_path)
    settings = Measured(stream=stream, uri=str(tmp_path / "out"), chunk_rows=5)
    settings.write_measured()
    assert settings.found[0][0]["rows"] == 24
    assert settings.found[1][0]["value"] == 12


def observe(stream: StreamPlan, chunk_rows: int) -> list[Any]:
    """Return the results of the first step, from chunks that have crossed a wire."""
    groups = plan_groups(
        stream.scan.units, seed=0, epoch=0, shuffle=stream.shuffle, chunk_rows=chunk_rows
    )
    chunks: list[Chunk] = []
    for group in groups:
        for chunk in run_group(stream, group, chunk_rows):
            chunks += unpack(pack(chunk))
    steps = [step.transform for step in stream.steps if isinstance(step.transform, Measure)]
    assert all(len(chunk.header.observed) == len(steps) for chunk in chunks)
    step = steps[0]
    states = [step.load(chunk.header.observed[0]) for chunk in chunks]
    return list(step.finish(step.merge(states)))


NO_PIPELINE = Pipeline.read_parquet("in.parquet")
EVERY = ({"name": "n", "mean": {"column": "id"}}, METRICS[1], METRICS[2])


@pytest.mark.parametrize("chunk_rows", [2, 5, 7, 100])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fusion": False},
        {"late_materialization": False},
        {"deduplication": False},
        {"kernels": False},
    ],
    ids=str,
)
def test_each_row_is_observed_once_with_any_optimisation(
    tmp_path: Path, options: dict[str, bool], chunk_rows: int
) -> None:
    """The measured rows come after a filter, and steps on columns of requests stand beside."""
    pipeline = (
        NO_PIPELINE.filter("id != 3")
        .measure(*EVERY)
        .truncate("words", length=2)
        .filter("id > 5")
        .drop("score")
    )
    stream = plan(tmp_path, pipeline, **options)
    found = observe(stream, chunk_rows)
    step = next(s.transform for s in stream.steps if isinstance(s.transform, Measure))
    rows = ROWS.filter(pa.array(np.arange(24) != 3))
    assert found == list(step.finish(step.load(step.observe(rows)[1])))


def test_a_step_in_tasks_of_its_own_keeps_what_was_observed(tmp_path: Path) -> None:
    stream = plan(tmp_path, NO_PIPELINE.measure(*EVERY).filter("id > 3"), fusion=False)
    assert len(stream.stages) > 1
    assert observe(stream, 5)[0]["rows"] == 24
