"""Whether it pays to share a request's columns is told by pieces; rows are the same either way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline, kernels
from pipeline_runtime.feed import work
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.maker import PieceMaker, Stream
from pipeline_runtime.feed.pieces import Header, Piece, StepCount
from pipeline_runtime.feed.trial import Trial
from pipeline_runtime.feed.work import read_group
from pipeline_runtime.plan import Group, build_plan, plan_groups
from pipeline_runtime.plan.model import StreamPlan

GROUP_ROWS, NUM_GROUPS = 60, 24


def piece_of(rows: int, read_seconds: float, step_seconds: float) -> Piece:
    counts = (
        StepCount(rows=rows, num_bytes=0, seconds=0.0),
        StepCount(rows=rows, num_bytes=0, seconds=step_seconds),
    )
    header = Header(
        epoch=0,
        group=0,
        piece=0,
        is_last=True,
        num_rows=rows,
        counts=counts,
        read_seconds=read_seconds,
    )
    return Piece(header=header, table=pa.table({}))


def go_on(trial: Trial, costs: dict[bool, float], groups: int) -> list[bool]:
    """Choose for so many groups, whose rows cost so many seconds each by way, half of them read."""
    ways = []
    for _ in range(groups):
        way = trial.choose()
        half = 100 * costs[way] / 2
        assert len(list(trial.watch(iter([piece_of(100, half, half)]), way))) == 1
        ways.append(way)
    return ways


@pytest.mark.parametrize("cheaper", [True, False])
def test_both_are_tried_and_the_cheaper_one_is_taken(cheaper: bool) -> None:
    trial = Trial()
    first = go_on(trial, {cheaper: 1.0, not cheaper: 1.2}, 8)
    assert first.count(cheaper) == 4
    later = go_on(trial, {cheaper: 1.0, not cheaper: 1.2}, 320)
    assert later.count(not cheaper) == 10


def test_one_that_becomes_dear_is_left() -> None:
    trial = Trial()
    go_on(trial, {True: 1.0, False: 1.2}, 100)
    go_on(trial, {True: 2.0, False: 1.2}, 20)
    assert go_on(trial, {True: 2.0, False: 1.2}, 32).count(True) == 1


def test_a_piece_without_rows_tells_nothing() -> None:
    trial = Trial()
    for _ in range(20):
        list(trial.watch(iter([piece_of(0, 0.1, 0.1)]), trial.choose()))
    assert go_on(trial, {True: 1.0, False: 2.0}, 8).count(True) == 4


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    assert kernels.warm()


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Requests of six rows, but for one in ten, which have one; several row groups."""
    path = tmp_path_factory.mktemp("requests") / "flat.parquet"
    rows: list[dict[str, Any]] = []
    request = 0
    while len(rows) < GROUP_ROWS * NUM_GROUPS:
        request += 1
        for _ in range(6 if request % 10 else 1):
            history = list(range(request % 4))
            rows.append({"id": len(rows), "request": request, "history": history})
    table = pa.Table.from_pylist(rows[: GROUP_ROWS * NUM_GROUPS])
    pq.write_table(table, path, row_group_size=GROUP_ROWS)
    return str(path)


def plan_of(uri: str, *, is_once: bool, deduplication: bool = True) -> StreamPlan:
    pipeline = (
        Pipeline.read_parquet(
            uri, row_key="id", request_key="request", request_columns=("history",)
        )
        .filter("id % 5 != 0")
        .pad_sequence("history", length=3)
        .with_options(deduplication=deduplication)
    )
    columns = ["id", "history"]
    shuffle = {"unit": "none", "windowRows": GROUP_ROWS}
    experiment = pipeline.experiment(
        "trial", columns=columns, shuffle=shuffle, deduplicated=is_once
    )
    return build_plan(experiment, "").training


def groups_of(plan: StreamPlan) -> list[Group]:
    return plan_groups(
        plan.scan.units, seed=0, epoch=0, shuffle=plan.shuffle, piece_rows=GROUP_ROWS
    )


def made(plan: StreamPlan) -> Iterator[pa.Table]:
    maker = PieceMaker(lambda role: Stream(plan=plan, piece_rows=GROUP_ROWS))
    for group in groups_of(plan):
        piece = maker.make("training", Task(position=group.index, group=group, piece=0))
        assert isinstance(piece, Piece)
        yield piece.table


def test_rows_are_the_same_whether_it_pays_or_not(uri: str) -> None:
    plan = plan_of(uri, is_once=False)
    plain = plan_of(uri, is_once=False, deduplication=False)
    assert plan.sharing.key == "request"
    assert plain.sharing.key is None
    wanted = [next(read_group(plain, group, GROUP_ROWS)).table for group in groups_of(plain)]
    for table, other in zip(made(plan), wanted, strict=True):
        assert table.equals(other)


def test_batches_that_carry_requests_once_are_the_same_whether_it_pays_or_not(uri: str) -> None:
    plan = plan_of(uri, is_once=True)
    assert plan.request_columns == ("history",)
    wanted = [next(read_group(plan, group, GROUP_ROWS)).table for group in groups_of(plan)]
    for table, other in zip(made(plan), wanted, strict=True):
        assert table.equals(other)


def test_requests_are_not_looked_for_where_that_costs_more(uri: str) -> None:
    calls = []

    def dear(*arguments: Any) -> None:
        calls.append(1)
        time.sleep(0.02)

    plan = plan_of(uri, is_once=False)
    with patch.object(work, "find_requests", dear):
        assert len(list(made(plan))) == NUM_GROUPS
    assert len(calls) == 4
