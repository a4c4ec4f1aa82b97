"""The benchmark of data-worker nodes: the steady part of a pass, and what its passes say."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
from benchmark_environment import ENVIRONMENT

from benchmarks.harness.cells import Cell, Document
from benchmarks.harness.report import build_results, judge
from benchmarks.scaling.comparison import (
    BENCHMARK,
    NORMAL,
    READER_ROWS_PER_SECOND,
    count_groups,
    derive,
    order_nodes,
)
from benchmarks.scaling.passes import CPU, RATE, Meter


@dataclass
class FakeChunk:
    """A chunk of ten rows."""

    num_rows: int = 10

    @property
    def header(self) -> "FakeChunk":
        return self


def measure_cells(*, share: float = 1.0, cpu: float = 1.0, rounds: int = 5) -> Document:
    """Return results of readers with a share of their rate; with more nodes a row costs `cpu`."""
    cells = []
    for nodes in (1, 2, 4, 8):
        rates = [nodes * READER_ROWS_PER_SECOND * share] * rounds
        values = {RATE: rates, CPU: [cpu if nodes > 1 else 1.0] * rounds}
        cells.append(Cell(name=f"{nodes}", base="", arms={NORMAL: values}, x=nodes))
    derive(cells)
    return build_results(BENCHMARK, ENVIRONMENT, {}, cells)


def met(results: Document, target: str) -> list[bool | None]:
    rows = judge(BENCHMARK, results)
    return [row["met"] for row in rows if row["target"].startswith(target)]


def test_the_steady_part_is_between_every_readers_first_and_last_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, cpu = iter([1.0, 11.0]), iter([6.0, 8.5])
    meter = Meter(look=lambda: next(cpu), skipped=2, num_chunks=6)
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    chunks = cast(Any, [FakeChunk() for _ in range(6)])
    assert list(meter.watch(chunks)) == chunks
    assert meter.values() == {RATE: 2.0, CPU: 125_000}


def test_rounds_go_down_and_up() -> None:
    assert order_nodes((1, 2, 4), 2) == [4, 2, 1, 1, 2, 4]


def test_a_pass_is_long_enough_with_chunks_of_each_reader() -> None:
    chunk_rows = int(1.5 * READER_ROWS_PER_SECOND)
    assert count_groups(8, 20.0, chunk_rows) == 8 * (14 + 4)
    assert count_groups(8, 1.0, chunk_rows) == 8 * (4 + 4)


def test_targets_are_met_by_bounds() -> None:
    good = measure_cells(share=0.95, cpu=1.05)
    assert met(good, "share") == [True] * 4
    assert met(good, "CPU") == [True] * 3
    bad = measure_cells(share=0.85, cpu=1.2)
    assert met(bad, "share") == [False] * 4
    assert met(bad, "CPU") == [False] * 3


def test_one_round_has_no_bounds() -> None:
    assert met(measure_cells(rounds=1), "share") == [None] * 4
