"""The benchmark of data-worker nodes: its figures of chunks that arrive, and of its passes."""

import os
import subprocess
import sys

import pytest
from benchmark_environment import ENVIRONMENT

from benchmarks.harness.cells import Document
from benchmarks.harness.report import build_results, judge
from benchmarks.scaling.comparison import (
    BENCHMARK,
    NORMAL,
    Measured,
    count_groups,
    describe,
    main,
    order_nodes,
    small_unit_rows,
)
from benchmarks.scaling.cpu_time import (
    COORDINATOR,
    KINDS,
    RAYLETS,
    TRAINER,
    cpu_seconds_by_kind,
)
from benchmarks.scaling.elastic import Elastic, Stages, count_by_second, first_arrivals
from benchmarks.scaling.one_pass import Arrival, Meter, Pass, Steady
from benchmarks.scaling.slow_readers import rest_seconds
from pipeline_runtime.feed.base import Waited

READER_RATE = 100.0


def make_pass(rate: float, *, cpu: float = 1.0, rows: int = 1000) -> Pass:
    seconds = dict.fromkeys(KINDS, 0.5) | {TRAINER: cpu, COORDINATOR: cpu / 10}
    steady = Steady(rows=rows, seconds=rows / rate, cpu_seconds=seconds)
    checksum = {"rows": rows, "sum": "a", "sumOfSquares": "b"}
    return Pass(steady=steady, num_bytes=8 * rows, checksum=checksum, waited=Waited())


def measure_cells(
    *, share: float = 1.0, cpu: float = 1.0, waited: float = 1.0, rounds: int = 5
) -> Document:
    """Return results of readers with a share of their rate; with more nodes a row costs `cpu`."""
    measured = Measured(
        nodes=(1, 2, 4, 8), intake=[], reader_rows_per_second=READER_RATE, seconds=20.0
    )
    for nodes in measured.nodes:
        found = make_pass(nodes * READER_RATE * share, cpu=cpu if nodes > 1 else 1.0)
        measured.passes[NORMAL, nodes] = [found] * rounds
    measured.elastic[NORMAL] = Elastic(
        joined_seconds=(1.0, 2.0),
        waited_seconds=(0.5, waited),
        left_seconds=9.0,
        chunks_after=3,
        rows_by_second=(100, 200, 50),
        disturbed=make_pass(READER_RATE),
        undisturbed=make_pass(READER_RATE),
    )
    cells = list(describe(measured, Stages(4, 8, 3)))
    return build_results(BENCHMARK, ENVIRONMENT, {}, cells)


def met(results: Document, target: str) -> list[bool | None]:
    rows = judge(BENCHMARK, results)
    return [row["met"] for row in rows if row["target"].startswith(target)]


@pytest.mark.parametrize(
    ("spent", "rest"),
    [
        pytest.param(0.5, 1.5, id="what the work left"),
        pytest.param(2.0, 0.0, id="nothing is left"),  # boundary
        pytest.param(9.0, 0.0, id="the work took longer"),
    ],
)
def test_a_slow_reader_sleeps_what_its_work_left(spent: float, rest: float) -> None:
    assert rest_seconds(200, READER_RATE, spent) == rest


def test_the_steady_part_is_between_every_readers_first_and_last_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([0.0, 1.0, 10.0, 11.0, 20.0, 21.0])
    cpu = iter([{TRAINER: 5.0, COORDINATOR: 1.0}, {TRAINER: 7.0, COORDINATOR: 1.5}])
    meter = Meter(look=lambda: next(cpu), skipped=2, num_chunks=6)
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    for index in range(6):
        meter.add(f"node-{index % 2}", rows=10)
    steady = meter.steady()
    assert (steady.rows, steady.seconds) == (20, 10.0)
    assert steady.cpu_seconds == {TRAINER: 2.0, COORDINATOR: 0.5}
    assert (steady.rows_per_second, steady.cpu_seconds_per_row) == (2.0, 0.125)


def test_cpu_seconds_are_counted_by_kind() -> None:
    name = "import os, sys, time; os.write(1, b'.'); time.sleep(60)"
    command = ["raylet/raylet", "-c", name]
    with subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE) as raylet:
        assert raylet.stdout is not None
        raylet.stdout.read(1)  # it has taken some time by now
        as_raylet = cpu_seconds_by_kind(coordinator=os.getppid())
        as_coordinator = cpu_seconds_by_kind(coordinator=raylet.pid)
        raylet.kill()
    assert as_raylet[RAYLETS] > 0
    assert as_raylet[TRAINER] > 0
    assert as_coordinator[RAYLETS] == 0
    assert as_coordinator[COORDINATOR] > 0


def test_arrivals_are_counted_by_node_and_by_second() -> None:
    arrivals = [Arrival(at=at, node=node, rows=5) for at, node in ((1, "a"), (1.9, "b"), (3, "a"))]
    assert first_arrivals(arrivals) == {"a": 1, "b": 1.9}
    assert count_by_second(arrivals, 1.0) == (10, 0, 5)


def test_rounds_go_down_and_up() -> None:
    assert [order_nodes((1, 2, 4), index) for index in (0, 1)] == [[4, 2, 1], [1, 2, 4]]


def test_a_pass_is_long_enough_with_chunks_of_each_reader() -> None:
    assert count_groups(8, seconds=20.0, unit_seconds=1.5) == 8 * (14 + 4)
    assert count_groups(8, seconds=1.0, unit_seconds=1.5) == 8 * (4 + 4)
    assert small_unit_rows(12_345.0) == 620  # 617.25 to two digits


def test_half_of_the_nodes_that_leave_are_drained_the_others_killed() -> None:
    assert [Stages(4, 8, last).num_drained for last in (3, 4, 7)] == [3, 2, 1]


def test_targets_are_met_by_bounds() -> None:
    good = measure_cells(share=0.95, cpu=1.05)
    assert met(good, "share") == [True] * 4
    assert met(good, "CPU") == [True] * 3
    assert met(good, "slowest") == [True]
    bad = measure_cells(share=0.85, cpu=1.2, waited=6.0)
    assert met(bad, "share") == [False] * 4
    assert met(bad, "CPU") == [False] * 3
    assert met(bad, "slowest") == [False]


def test_one_round_has_no_bounds() -> None:
    assert met(measure_cells(rounds=1), "share") == [None] * 4


@pytest.mark.parametrize("stages", ["4,8", "8,4,3", "4,8,8"])
def test_stages_that_do_not_grow_and_shrink_are_refused(stages: str) -> None:
    with pytest.raises(SystemExit):
        main(["--stages", stages])
