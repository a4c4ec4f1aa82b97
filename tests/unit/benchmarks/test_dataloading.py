"""The benchmark of loaders: steady state, cells and targets from measured epochs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.dataloading import __main__ as program
from benchmarks.dataloading.__main__ import (
    ALL_ON,
    COLD,
    FLAT,
    NESTED,
    STEADY,
    VARIANTS,
    WHOLE,
    compare_loaders,
    compare_options,
)
from benchmarks.dataloading.jobs import Job
from benchmarks.dataloading.measuring.epochs import Steady, find_steady
from benchmarks.dataloading.peers import DATALOADER, RAY_DATA, SUBJECT, THREADS
from benchmarks.dataloading.tables import Table, make_table
from benchmarks.dataloading.workloads import Workload, build_experiment
from benchmarks.harness.errors import DisagreementError
from benchmarks.harness.report import build_results, judge, write_results
from pipeline_runtime.plan import build_plan

ROWS = 4
TABLE = Table(roots={"flat": "flat", "nested": "nested"}, rows=ROWS)


class StandIn:
    """Measures nothing: each loader takes the given seconds, and one may lose a row."""

    def __init__(self, seconds: Mapping[str, float] | None = None, corrupt: str = "") -> None:
        self._seconds = seconds or {}
        self._corrupt = corrupt
        self.jobs: list[Job] = []

    def run(self, job: Job) -> dict[str, Any]:
        self.jobs.append(job)
        rows = ROWS - 1 if job.loader == self._corrupt else ROWS
        seconds = self._seconds.get(job.loader, 1.0)
        return {
            "steadySecondsPerRow": seconds / rows,
            "seconds": seconds,
            "cpuSeconds": seconds,
            "sums": {"rows": rows, "identities": rows},
        }

    def run_fresh(self, job: Job) -> dict[str, Any]:
        return self.run(job) | {COLD: 2.0}


# --- the steady state -----------------------------------------------------------------------------


def test_the_steady_state_is_the_middle_of_the_rows() -> None:
    arrivals = [(float(second), 100 * second) for second in range(1, 11)]
    # 100 of 1,000 rows have come after the first second, 900 after the ninth.
    assert find_steady(arrivals, 20.0) == Steady(seconds=8.0, rows=800)


@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param([], id="no batch"),
        pytest.param([(1.0, 100)], id="one batch"),
        pytest.param([(1.0, 95), (3.0, 100)], id="nearly all rows in the first"),
    ],
)
def test_an_epoch_without_a_middle_counts_whole(arrivals: list[tuple[float, int]]) -> None:
    rows = arrivals[-1][1] if arrivals else 0
    assert find_steady(arrivals, 4.0) == Steady(seconds=4.0, rows=rows)


# --- the cells ------------------------------------------------------------------------------------


def test_each_table_has_a_cell_with_its_peers() -> None:
    flat, nested = compare_loaders("heavy", TABLE, 3, StandIn({SUBJECT: 0.5}))
    assert list(flat.arms) == [SUBJECT, DATALOADER, THREADS, RAY_DATA]
    assert list(nested.arms) == [SUBJECT, f"{DATALOADER} ({FLAT})", f"{RAY_DATA} ({FLAT})"]
    ratio = nested.ratio(f"{RAY_DATA} ({FLAT})", STEADY)
    assert ratio is not None
    assert (ratio.median, ratio.low) == (2.0, pytest.approx(2.0))
    assert flat.arms[SUBJECT][COLD] == [2.0]
    assert flat.facts["rows"] == ROWS


@pytest.mark.parametrize("loader", [SUBJECT, DATALOADER, THREADS, RAY_DATA])
def test_a_loader_that_loses_rows_is_refused(loader: str) -> None:
    with pytest.raises(DisagreementError, match=r"(4.*3|3.*4)"):
        list(compare_loaders("heavy", TABLE, 1, StandIn(corrupt=loader)))


def test_each_variant_is_compared_with_all_on_of_its_table() -> None:
    for cell, variants in VARIANTS.items():
        processes = StandIn()
        found = compare_options(cell, TABLE, 1, processes)
        assert (found.base, len(found.arms)) == (ALL_ON, 1 + len(variants))
        assert all(found.ratio(arm, WHOLE) for arm in list(found.arms)[1:])
        workloads = [job.workload for job in processes.jobs]
        assert {f"{one.layout}, {one.form}" for one in workloads} == {cell}


def test_a_variant_is_planned_for_threads(tmp_path: Path) -> None:
    root = make_table(tmp_path, 2000).roots["flat"]
    for switch in VARIANTS[FLAT]:
        workload = Workload(level="heavy", root=root, options={switch: False})
        experiment = build_experiment(workload)
        assert getattr(experiment.spec.pipeline_options.debug, switch) is False
        assert build_plan(experiment, root).feed.may_be_threads


# --- results --------------------------------------------------------------------------------------

CIRCUMSTANCES = {
    "machine": {"processor": "p", "cores": 2, "memoryGiB": 1, "system": "s"},
    "command": "c",
    "commit": "d",
    "finishedAt": "now",
    "minutes": 1.0,
    "versions": {"ray": "1"},
    "loadAverage": [3.5, 0.0],
}


def test_results_are_judged_and_written(tmp_path: Path) -> None:
    cells = list(compare_loaders("heavy", TABLE, 3, StandIn({SUBJECT: 0.5})))
    results = build_results(program.BENCHMARK, CIRCUMSTANCES, {"rows": ROWS}, cells)
    rows = judge(program.BENCHMARK, results)
    judged = {(row["where"], row["target"]): row["met"] for row in rows}
    times = "time of a peer, at least {} times Lastmile's"
    assert judged[f"heavy, {FLAT}: ray-stock over lastmile", times.format(8)] is False
    assert judged[f"heavy, {FLAT}: threads over lastmile", times.format(0.95)] is True
    assert judged[f"heavy, {NESTED}: dataloader ({FLAT}) over lastmile", times.format(4)] is False
    start = "first batch of a fresh process, at most 1.5 s"
    assert judged[f"heavy, {FLAT}: lastmile", start] is False
    write_results(program.BENCHMARK, results, tmp_path)
    assert "<svg" in (tmp_path / "dataloading.svg").read_text()
