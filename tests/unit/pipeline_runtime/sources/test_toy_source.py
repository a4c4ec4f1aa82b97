"""A kind of source that only a test knows runs through planning and reading like any other."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from facts import assert_one_tells
from toy_source.model import ToySource
from toy_source.source import BUCKETS, ToyTable

from pipeline_runtime import Pipeline
from pipeline_runtime.config import Dataset, DatasetExperiment, SourceChoice, parse_experiment
from pipeline_runtime.errors import ManifestError, SourceError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.local.thread_readers import ThreadReaders
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.pipeline import iter_tables
from pipeline_runtime.plan import Group, Plan, build_plan, explain, plan_document
from pipeline_runtime.plan.side_table_loading import open_side_table
from pipeline_runtime.sources import Opening, open_source
from pipeline_runtime.steps.base import BindContext, SideTableRequest
from pipeline_runtime.steps.join.model import JoinStep
from pipeline_runtime.steps.join.transform import Join

ROWS, CHUNK_ROWS = 1000, 250
OPENING = Opening(storage_root="")


# In this process, subclasses have the field; `test_a_manifest_...` has it in a process of its own.
class ToyDataset(Dataset):
    toy: ToySource | None = None


class ToyJoinStep(JoinStep):
    toy: ToySource | None = None


def build_experiment(spec: dict[str, Any]) -> DatasetExperiment:
    """Build an experiment whose dataset may be a toy."""
    dataset = ToyDataset.model_validate(spec["dataset"], strict=False)
    document = Pipeline.read_parquet("none/").document("toy")
    document["spec"] |= spec | {"dataset": document["spec"]["dataset"]}
    experiment = parse_experiment(document)
    return experiment.model_copy(
        update={"spec": experiment.spec.model_copy(update={"dataset": dataset})}
    )


def plan_of(pipeline: list[Any], dataset: dict[str, Any] | None = None, **spec: Any) -> Plan:
    toy = {"toy": {"rows": ROWS}} | (dataset or {})
    training = {"labelColumn": "score", "shuffle": {"unit": "None"}}
    experiment = build_experiment(
        {"dataset": toy, "pipeline": pipeline, "training": training, **spec}
    )
    return build_plan(experiment, "")


def ids_of(plan: Plan) -> list[int]:
    return [number for table in iter_tables(plan.training) for number in table["id"].to_pylist()]


def filter_by(where: str) -> dict[str, Any]:
    return {"filter": {"where": where}}


def test_explain_shows_what_statistics_prune() -> None:
    plan = plan_of([filter_by("id >= 820")])
    lines = explain(plan).splitlines()
    assert_one_tells(lines, "… row groups … 2 … 10 … rows … 200 … 1,000")
    assert_one_tells(lines, "… pushed … id >= 820")
    assert_one_tells(lines, f"… computed … {BUCKETS} buckets")
    assert plan_document(plan)["table"] == "toy of 1000"
    assert ids_of(plan) == list(range(820, 1000))


def test_units_carry_partition_values_and_buckets_to_workers() -> None:
    units = pickle.loads(pickle.dumps(plan_of([]).training.scan.units))
    assert [unit.bucket for unit in units] == [index % BUCKETS for index in range(10)]
    assert [unit.partition for unit in units[4:6]] == [{"half": 0}, {"half": 1}]


def groups_of(plan: Plan) -> list[Group]:
    return plan.training.groups(0, CHUNK_ROWS)


@pytest.mark.parametrize("where", ["id % 300 = 7", "half = 1 and items is not null"])
def test_reading_some_columns_late_changes_no_row(where: str) -> None:
    stream = plan_of([filter_by(where)]).training
    assert stream.first_look is not None
    for group in groups_of(plan_of([filter_by(where)])):
        [late] = read_group(stream, group, CHUNK_ROWS, looks_first=True)
        [at_once] = read_group(stream, group, CHUNK_ROWS)
        assert late.table.equals(at_once.table)


def test_threads_deliver_its_rows() -> None:
    plan = plan_of([filter_by("id % 3 = 0")])
    stream = Stream(plan=plan.training, chunk_rows=CHUNK_ROWS)
    readers = ThreadReaders(streams={"training": stream}, num_threads=1)
    feed = readers.open("training", 0, groups_of(plan), in_order=True)
    tables = [chunk.table for chunk in feed.chunks(Waited())]
    assert pa.concat_tables(tables)["id"].to_pylist() == list(range(0, ROWS, 3))


def test_it_stands_as_a_side_table() -> None:
    step = ToyJoinStep(
        toy=ToySource(rows=30, unit_rows=7),
        keys=("id",),
        how="Inner",
        where="id >= 14",
        columns=("half",),
    )
    context = BindContext(open_side_table=lambda wanted: open_side_table(wanted, OPENING))
    rows = pa.table({"id": range(20, 40)})
    join = Join.bind(step, rows.schema, context)
    assert join.side_table.num_rows == 16  # statistics prune two of five units
    assert join(rows).to_pydict() == {"id": list(range(20, 30)), "half": [1] * 10}


def test_another_revision_of_a_side_table_is_another_index() -> None:
    def digest(revision: int) -> str:
        table = ToySource(rows=30, revision=revision)
        source = SideTableRequest(
            source=ToyJoinStep(toy=table, keys=("id",)), columns=None, where=None, max_bytes=1 << 20
        )
        return open_side_table(source, OPENING).digest

    assert digest(1) == digest(1) != digest(2)


def test_rows_are_sampled_by_key_or_else_by_place() -> None:
    sample = [{"sample": {"keepPercent": 30, "seed": 1}}]
    layouts = ({"toy": {"rows": ROWS, "unitRows": size}} for size in (100, 64))
    keyed = [ids_of(plan_of(sample, {**layout, "rowKey": ["id"]})) for layout in layouts]
    assert keyed[0] == keyed[1]
    placed = plan_of(sample)
    assert placed.training.identity.is_position
    assert ids_of(placed) == ids_of(plan_of(sample)) != keyed[0]


def test_the_digest_is_that_of_the_units_that_are_read() -> None:
    table = plan_of([]).training.table
    few, every = (plan_of(steps).training.scan.units for steps in ([filter_by("id < 9")], []))
    other = plan_of([], {"toy": {"rows": ROWS, "revision": 2}}).training.table
    assert len({table.digest(few), table.digest(every), other.digest(every)}) == 3


def test_a_dataset_has_exactly_one_source() -> None:
    assert list(ToyDataset.source_models()) == ["parquet", "iceberg", "toy"]
    with pytest.raises(ValueError, match="exactly one of parquet, iceberg, toy"):
        plan_of([], {"toy": {"rows": 1}, "parquet": {"uri": "t/"}})


def test_a_source_refuses_in_its_own_words() -> None:
    with pytest.raises(SourceError, match="toy of 0: no rows"):
        plan_of([], {"toy": {"rows": 0}})


def test_a_source_is_opened_with_the_catalogs_of_the_manifest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    openings: list[Opening] = []

    def open_toy(model: ToySource, opening: Opening) -> ToyTable:
        openings.append(opening)
        return ToyTable(model=model)

    monkeypatch.setattr("toy_source.source.open_source", open_toy)
    plan_of([], catalogs=[{"name": "lake"}])
    assert [catalog.name for opening in openings for catalog in opening.catalogs] == ["lake"]


def test_columns_are_checked_against_its_schema() -> None:
    with pytest.raises(ManifestError, match=r"spec\.dataset\.rowKey"):
        plan_of([], {"rowKey": ["no_such_column"]})


def test_a_kind_without_a_reader_is_refused() -> None:
    table = {"catalog": "lake", "table": "db.clicks"}
    choice = SourceChoice.model_validate({"iceberg": table})
    with pytest.raises(SourceError, match="iceberg"):
        open_source(choice, OPENING)


ROOT = Path(__file__).parents[4]
# Prints what a process finds whose environment adds the kind.
PROGRAM = """
import json, sys
from pipeline_runtime.config import ManifestError, parse_experiment, run_hash
from pipeline_runtime.pipeline import iter_tables
from pipeline_runtime.plan import build_plan, explain
from tools.crd import build_crd

def document(dataset):
    return {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "toy"},
        "spec": {"dataset": dataset, "pipeline": [json.loads(sys.argv[1])]},
    }

def find_problems(dataset):
    try:
        return parse_experiment(document(dataset)) and []
    except ManifestError as error:
        return [str(problem) for problem in error.problems]

experiment = parse_experiment(document({"toy": {"rows": 1000}, "where": "id < 60"}))
plan = build_plan(experiment, "")
spec = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
print(json.dumps({
    "hash": run_hash(experiment),
    "other": run_hash(parse_experiment(document({"toy": {"rows": 999}, "where": "id < 60"}))),
    "explain": explain(plan),
    "ids": [n for table in iter_tables(plan.training) for n in table["id"].to_pylist()],
    "crd": spec["properties"]["dataset"],
    "two": find_problems({"toy": {"rows": 1}, "parquet": {"uri": "t/"}}),
    "misspelt": find_problems({"tpy": {"rows": 1}}),
    "out of bounds": find_problems({"toy": {"rows": -1}}),
}))
"""


def test_a_manifest_names_a_kind_from_elsewhere() -> None:
    join = {"antiJoin": {"toy": {"rows": 50}, "keys": ["id"]}}
    added = {"LASTMILE_SOURCES": "toy_source.model:ToySource"}
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "support"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(join)],
        cwd=ROOT,
        env=os.environ | added | path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["hash"] != found["other"]
    assert sorted(found["ids"]) == list(range(50, 60))
    assert_one_tells(found["explain"].splitlines(), "… antiJoin toy of 50 on id")
    assert_one_tells(found["explain"].splitlines(), "… row groups … 1 … 10 … 1,000")
    toy = found["crd"]["properties"]["toy"]
    assert toy["required"] == ["rows"]
    assert toy["properties"]["unitRows"]["description"] == "Rows that are read as a whole."
    assert toy["x-kubernetes-map-type"] == "atomic"
    [one_kind, *_] = found["crd"]["x-kubernetes-validations"]
    assert "has(self.toy)" in one_kind["rule"]
    assert_one_tells(found["two"], "… exactly one … parquet, iceberg, toy …")
    assert "toy" in found["misspelt"][0]
    assert "spec.dataset.toy.rows" in found["out of bounds"][0]
