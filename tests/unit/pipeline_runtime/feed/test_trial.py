"""Chunks show if request-level deduplication pays; rows are the same either way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline, kernels
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making import maker, work
from pipeline_runtime.feed.making.trial import Trial
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.feed.pieces import Header, Piece, StepCount
from pipeline_runtime.plan import Group, build_plan, plan_groups
from pipeline_runtime.plan.model import StreamPlan

GROUP_ROWS, NUM_GROUPS = 60, 24


def go_on(trial: Trial, costs: dict[bool, float], groups: int) -> list[bool]:
    """Choose for so many groups, whose rows cost so much by way."""
    ways = []
    for _ in range(groups):
        ways.append(trial.choose())
        trial.add(ways[-1], costs[ways[-1]])
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


def burn(seconds: float) -> None:
    started = time.thread_time()
    while time.thread_time() < started + seconds:
        pass


def piece_of(rows: int, *, is_last: bool, apart_seconds: float = 0.0) -> Piece:
    header = Header(
        epoch=0,
        group=0,
        piece=0,
        is_last=is_last,
        num_rows=rows,
        counts=(StepCount(rows=rows, num_bytes=0, seconds=0.0),),
        apart_seconds=apart_seconds,
    )
    return Piece(header=header, table=pa.table({}))


def group_of(seconds: float, rows: int = 50, apart_seconds: float = 0.0) -> Iterator[Piece]:
    """Two pieces; the second is read with the first."""
    burn(seconds)
    yield piece_of(rows, is_last=False, apart_seconds=apart_seconds)
    yield piece_of(rows, is_last=True)


def test_a_group_costs_what_all_its_pieces_do_wherever_they_are_read() -> None:
    trial = Trial()
    for way in (True, False) * 4:
        apart_seconds = 0.0 if way else 0.02
        for _ in trial.watch(group_of(0.01 if way else 0.0, apart_seconds=apart_seconds), way):
            burn(0.0 if way else 0.01)  # is not the pieces'
    assert [trial.choose() for _ in range(20)] == [True] * 20


def test_a_group_that_is_left_or_has_no_rows_tells_nothing() -> None:
    trial = Trial()
    for _ in range(20):
        next(trial.watch(group_of(0.0), trial.choose()))
        assert len(list(trial.watch(group_of(0.0, rows=0), trial.choose()))) == 2
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
    pieces = maker.PieceMaker(lambda role: maker.Stream(plan=plan, piece_rows=GROUP_ROWS))
    for group in groups_of(plan):
        piece = pieces.make("training", Task(position=group.index, group=group, piece=0))
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


def test_batches_that_carry_requests_once_are_not_tried_otherwise(uri: str) -> None:
    plan = plan_of(uri, is_once=True)
    assert plan.request_columns == ("history",)
    wanted = [next(read_group(plan, group, GROUP_ROWS)).table for group in groups_of(plan)]
    with patch.object(maker, "read_group", wraps=read_group) as reading:
        for table, other in zip(made(plan), wanted, strict=True):
            assert table.equals(other)
    assert {call.args[0].sharing.key for call in reading.call_args_list} == {"request"}


def test_columns_are_read_late_only_while_requests_are_not_looked_for(uri: str) -> None:
    assert plan_of(uri, is_once=False).first_look is not None
    assert plan_of(uri, is_once=True).first_look is None
    plan = plan_of(uri, is_once=False)
    [group, *_] = groups_of(plan)
    with patch.object(work, "_look_first") as looking:
        next(read_group(plan, group, GROUP_ROWS, looks_first=True))
        assert not looking.called
        plain = replace(plan, sharing=replace(plan.sharing, key=None))
        read_group(plain, group, GROUP_ROWS, looks_first=True)
        assert looking.called


@pytest.mark.parametrize("looks_first", [True, False])
def test_what_another_thread_reads_is_counted(uri: str, *, looks_first: bool) -> None:
    plan = plan_of(uri, is_once=False, deduplication=False)
    assert plan.first_look is not None
    [group, *_] = groups_of(plan)
    with ThreadPoolExecutor(1) as reading:
        [piece] = read_group(plan, group, GROUP_ROWS, looks_first=looks_first, reading=reading)
    assert piece.header.apart_seconds > 0


def test_requests_are_not_looked_for_where_that_costs_more(uri: str) -> None:
    calls = []

    def dear(*arguments: Any) -> None:
        calls.append(1)
        burn(0.02)

    plan = plan_of(uri, is_once=False)
    with patch.object(work, "find_requests", dear):
        assert len(list(made(plan))) == NUM_GROUPS
    assert len(calls) == 4
