"""Measures outlive the spooled rows: an attempt that finds the table in place reports them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.feed.making.work import run_group
from pipeline_runtime.output.observed import merge_observed
from pipeline_runtime.output.partitions import SplitByFolder
from pipeline_runtime.output.records import ChunkRecord
from pipeline_runtime.output.spool import Spooler
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.plan import StreamPlan, build_plan
from pipeline_runtime.report.files.measures_file import (
    MEASURES_FILE,
    MeasureResult,
    MeasuresFile,
)
from pipeline_runtime.run.keeping_measures import KeptMeasures
from pipeline_runtime.sources import Location, open_location

METRICS = (
    {"name": "gauc", "auc": {"score": "id", "label": "label"}, "per": "user"},
    {"name": "top", "topK": {"column": "id", "k": 1, "maxValues": 2}},
)


@pytest.fixture
def stream(tmp_path: Path) -> StreamPlan:
    """A plan whose users are each in two places of the table."""
    table = {"id": range(12), "label": [i % 2 for i in range(12)], "user": [0, 0, 1, 1, 2, 2] * 2}
    pq.write_table(pa.table(table), tmp_path / "in.parquet", row_group_size=6)
    document = Pipeline.read_parquet("in.parquet", row_key="id").measure(*METRICS).document("m")
    document["spec"]["output"] = {"parquet": {"uri": "out/"}}
    return build_plan(parse_experiment(document), str(tmp_path)).main


@pytest.fixture
def place(tmp_path: Path) -> Location:
    return open_location(str(tmp_path / "run"))


def spool(stream: StreamPlan, storage: Storage) -> list[ChunkRecord]:
    spooler = Spooler(storage=storage, columns=("id",), split=SplitByFolder(()))
    chunks = (chunk for group in stream.groups(0, 6) for chunk in run_group(stream, group, 6))
    return [ChunkRecord.of(spooler(chunk)) for chunk in chunks]


def test_a_later_attempt_reports_what_an_earlier_one_kept(
    stream: StreamPlan, place: Location, tmp_path: Path
) -> None:
    first, second = KeptMeasures(stream.steps, place), KeptMeasures(stream.steps, place)
    assert (tuple(second.report(tmp_path)), second.files) == ((), ())
    storage = Storage(place.join("spool"))
    first.keep(merge_observed(storage, spool(stream, storage), first.steps))
    storage.remove()
    found = second.report(tmp_path)
    assert found == first.report(tmp_path)
    assert [measure.rows for measure in found] == [12, 12]
    assert second.files == (MEASURES_FILE,)
    assert (tmp_path / MEASURES_FILE).read_bytes() == (tmp_path / "run/measures.json").read_bytes()


def test_results_that_are_not_exact_are_warned_about(
    stream: StreamPlan, place: Location, tmp_path: Path
) -> None:
    measures = KeptMeasures(stream.steps, place)
    storage = Storage(place.join("spool"))
    measures.keep(merge_observed(storage, spool(stream, storage), measures.steps))
    measures.report(tmp_path)
    assert ["gauc" in text for text in measures.warnings] == [True, False]
    assert ["top" in text for text in measures.warnings] == [False, True]


def test_damaged_measures_are_a_warning(
    stream: StreamPlan, place: Location, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / MEASURES_FILE).write_text("{")
    measures = KeptMeasures(stream.steps, place)
    assert measures.report(tmp_path) == ()
    assert len(measures.warnings) == 1


@pytest.mark.parametrize(("rows", "warned"), [(0.0, False), (99.0, True), (100.0, False)])
def test_permutations_of_few_rows_are_warned_about(
    stream: StreamPlan, place: Location, tmp_path: Path, rows: float, warned: bool
) -> None:
    importances = [
        MeasureResult.model_validate(
            {"step": "pipeline[0]", "name": name, "kind": "importance", "rowsPerPermutation": rows}
        )
        for name in ("ids", "others")
    ]
    found = MeasuresFile(version=1, measures=tuple(importances))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / MEASURES_FILE).write_bytes(found.to_bytes())
    measures = KeptMeasures(stream.steps, place)
    measures.report(tmp_path)
    assert ["pipeline[0]" in text for text in measures.warnings] == [True] * warned
