"""A kind of source that only a test knows runs through planning and reading like any other."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from facts import assert_one_tells
from toy_source import BUCKETS, ToyDataset, ToySource, build_experiment

from pipeline_runtime.config import SourceChoice
from pipeline_runtime.config.steps import JoinStep
from pipeline_runtime.errors import ManifestError, SourceError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.maker import Stream
from pipeline_runtime.feed.pieces import Piece
from pipeline_runtime.feed.thread_readers import ThreadReaders
from pipeline_runtime.feed.work import read_group
from pipeline_runtime.pipeline import iter_tables
from pipeline_runtime.plan import Group, Plan, build_plan, explain, plan_document, plan_groups
from pipeline_runtime.plan.side_tables import open_side_table
from pipeline_runtime.sources import Opening, open_source
from pipeline_runtime.steps import BindContext, Join, SideTableRequest

ROWS, PIECE_ROWS = 1000, 250
OPENING = Opening(storage_root="")


class ToyJoinStep(JoinStep):
    toy: ToySource | None = None


def plan_of(pipeline: list[Any], dataset: dict[str, Any] | None = None, **spec: Any) -> Plan:
    toy = {"toy": {"rows": ROWS}} | (dataset or {})
    training = {"labelColumn": "score", "shuffle": {"unit": "none"}}
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
    stream = plan.training
    return plan_groups(
        stream.scan.units, seed=0, epoch=0, shuffle=stream.shuffle, piece_rows=PIECE_ROWS
    )


@pytest.mark.parametrize("where", ["id % 300 = 7", "half = 1 and items is not null"])
def test_reading_some_columns_late_changes_no_row(where: str) -> None:
    stream = plan_of([filter_by(where)]).training
    assert stream.first_look is not None
    for group in groups_of(plan_of([filter_by(where)])):
        [late] = read_group(stream, group, PIECE_ROWS, looks_first=True)
        [at_once] = read_group(stream, group, PIECE_ROWS)
        assert late.table.equals(at_once.table)


def test_threads_deliver_its_rows() -> None:
    plan = plan_of([filter_by("id % 3 = 0")])
    stream = Stream(plan=plan.training, piece_rows=PIECE_ROWS)
    readers = ThreadReaders(streams={"training": stream}, ranks_here=1)
    feed = readers.open("training", 0, groups_of(plan), in_order=True)
    tables = [piece.table for piece in feed.pieces(Waited()) if isinstance(piece, Piece)]
    assert pa.concat_tables(tables)["id"].to_pylist() == list(range(0, ROWS, 3))


def test_it_stands_as_a_side_table() -> None:
    step = ToyJoinStep(
        toy=ToySource(rows=30, unit_rows=7),
        on=("id",),
        how="inner",
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
            source=ToyJoinStep(toy=table, on=("id",)), columns=None, where=None, max_bytes=1 << 20
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
        build_experiment({"dataset": {"toy": {"rows": 1}, "parquet": {"uri": "t/"}}})


def test_a_source_refuses_in_its_own_words() -> None:
    with pytest.raises(SourceError, match="toy of 0: no rows"):
        plan_of([], {"toy": {"rows": 0}})


def test_columns_are_checked_against_its_schema() -> None:
    with pytest.raises(ManifestError, match=r"spec\.dataset\.rowKey"):
        plan_of([], {"rowKey": ["no_such_column"]})


def test_a_kind_without_a_reader_is_refused() -> None:
    table = {"catalog": {"name": "lake"}, "table": "db.clicks"}
    choice = SourceChoice.model_validate({"iceberg": table})
    with pytest.raises(SourceError, match="iceberg"):
        open_source(choice, OPENING)
