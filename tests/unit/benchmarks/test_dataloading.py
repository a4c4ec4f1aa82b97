"""The benchmark of loaders: steady state, tuning, cells and targets from measured epochs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.dataloading import __main__ as program
from benchmarks.dataloading import peers
from benchmarks.dataloading.jobs import PROVE, Job, Tuning
from benchmarks.dataloading.measuring.epochs import Epoch, Steady, find_steady
from benchmarks.dataloading.peers import COMPARED, FLOOR, SUBJECT, Contender, Peer
from benchmarks.dataloading.schedule import (
    ALL_ON,
    COLD,
    MEMORY,
    STEADY,
    VARIANTS,
    WHOLE,
    Schedule,
    Settings,
)
from benchmarks.dataloading.tables import Table, make_table
from benchmarks.dataloading.tuning import tune
from benchmarks.dataloading.workloads import Workload, build_experiment
from benchmarks.harness.cells import Cell
from benchmarks.harness.errors import DisagreementError
from benchmarks.harness.program import run
from benchmarks.harness.report import build_results, judge, write_results
from pipeline_runtime.plan import build_plan

ROWS = 4


def make_epoch(seconds: float = 1.0, rows: int = ROWS) -> Epoch:
    return Epoch(
        seconds=seconds,
        first_batch_at=0.0,
        steady_seconds_a_row=seconds / rows,
        cpu_seconds=None,
        sums={"rows": rows, "identities": rows},
    )


class StandIn:
    """Measures nothing: each loader takes the given seconds, and one may lose a row."""

    def __init__(self, seconds: Mapping[str, float] | None = None, corrupt: str = "") -> None:
        self._seconds = seconds or {}
        self._corrupt = corrupt
        self.jobs: list[Job] = []

    def run(self, job: Job) -> Epoch:
        self.jobs.append(job)
        rows = ROWS - 1 if job.loader == self._corrupt else ROWS
        return make_epoch(self._seconds.get(job.loader, 1.0), rows)

    def run_fresh(self, job: Job) -> Epoch:
        epoch = self.run(job)
        if job.until_first_batch:
            return replace(epoch, cold_seconds=2.0)
        return replace(epoch, peak_bytes=7)


def make_settings(loaders: Sequence[str] = COMPARED, rounds: int = 1) -> Settings:
    table = Table(roots={"flat": "flat", "nested": "nested"}, rows=ROWS)
    return Settings(
        table=table,
        tuning_table=table,
        loaders=tuple(loaders),
        layouts=("flat", "nested"),
        forms=("expanded", "deduplicated"),
        levels=("heavy",),
        rounds=rounds,
        keeps_all_rounds=False,
        finals=1,
        starters=tuple(loaders),
        starts=1,
        has_ablation=True,
        is_quick=False,
    )


def measure(settings: Settings, host: StandIn) -> dict[str, Cell]:
    return {cell.name: cell for cell in Schedule(settings, host).measure()}


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


# --- tuning ---------------------------------------------------------------------------------------


def test_the_setting_with_the_faster_median_is_chosen() -> None:
    slow, steady, lucky = Tuning(workers=1), Tuning(workers=2), Tuning(workers=3)
    seconds = {slow: [9.0] * 4, steady: [2.0] * 3, lucky: [1.0, 8.0, 8.0]}

    def run_once(tuning: Tuning) -> Epoch:
        return make_epoch(seconds[tuning].pop(0))

    assert tune(run_once, run_once, list(seconds), 2) == steady


def test_a_setting_that_prefetches_most_of_few_rows_is_not_chosen() -> None:
    ahead, plain = Tuning(workers=4), Tuning()
    slower = [Tuning(workers=n) for n in (1, 2, 3)]

    def run_few(tuning: Tuning) -> Epoch:
        steady = 0.001 if tuning == ahead else 0.003
        epoch = make_epoch(1.0 if tuning == plain else 2.0)
        return replace(epoch, steady_seconds_a_row=steady)

    def run_whole(tuning: Tuning) -> Epoch:
        return make_epoch(1.0 if tuning == plain else 3.0)

    assert tune(run_few, run_whole, [*slower, ahead, plain], 1) == plain
    assert tune(run_few, run_whole, [*slower, ahead, plain], 0) == ahead


# --- the command line -----------------------------------------------------------------------------


def test_a_peer_that_is_not_installed_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = Peer(host="x", opens=("x", "X"), needs="no_such_module")
    monkeypatch.setattr(peers, "LOADERS", {**peers.LOADERS, "duckdb": missing})
    assert peers.choose_installed(["duckdb", "threads"]) == (SUBJECT, "threads")
    assert "pip install" in peers.describe_missing(["duckdb", "threads"])["duckdb"]
    assert "TensorFlow" in peers.describe_missing(None)["tf.data"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--peers", "spark"], "--peers: ", id="unknown"),
        pytest.param(["--peers", "tf.data"], "TensorFlow", id="unable"),
        pytest.param(["--peers", "torchdata"], "dataloader", id="untuned"),
    ],
)
def test_a_peer_that_cannot_take_part_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", *options]
    assert run(program.BENCHMARK, program.parse(), program.compare, arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["none,huge", ""])
def test_an_unknown_level_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.parse().parse_args(["--work", text])
    assert "none, heavy" in capsys.readouterr().err


# --- jobs -----------------------------------------------------------------------------------------


def test_a_job_is_equal_after_its_way_to_another_process() -> None:
    workload = Workload(level="heavy", root="r", options=(("feed", "RayData"),))
    job = Job(loader="dataloader", workload=workload, consumer=PROVE, tuning=Tuning(workers=2))
    assert Job.from_json(json.loads(json.dumps(asdict(job)))) == job


def test_ray_runs_for_the_variants_that_it_feeds(tmp_path: Path) -> None:
    root = make_table(tmp_path, 2000).roots["flat"]
    for name, changes in VARIANTS["flat"].items():
        workload = Workload(level="heavy", root=root, **changes)
        feed = build_plan(build_experiment(workload), root).feed
        assert workload.needs_ray == (feed.engine == "RayData"), name
        assert workload.needs_ray != feed.may_be_threads, name


# --- the schedule ---------------------------------------------------------------------------------


def test_each_variant_is_compared_with_all_on_of_its_layout() -> None:
    host = StandIn()
    found = measure(make_settings([SUBJECT]), host)
    for layout, form in (("flat", "expanded"), ("nested", "deduplicated")):
        cell = found[f"options, heavy, {layout}, {form}"]
        assert (cell.base, set(cell.arms)) == (ALL_ON, set(VARIANTS[layout]))
        assert cell.ratio(next(iter(VARIANTS[layout])), WHOLE) is not None
    jobs = [job for job in host.jobs if ("deduplication", False) in job.workload.options]
    assert {(job.workload.layout, job.workload.form) for job in jobs} == {
        ("nested", "deduplicated")
    }
    assert {job.keeps_memory for job in host.jobs} == {True, False}


@pytest.mark.parametrize("loader", [*COMPARED, FLOOR])
def test_a_loader_that_loses_rows_is_refused(loader: str) -> None:
    with pytest.raises(DisagreementError, match=r"(4.*3|3.*4)"):
        measure(make_settings(), StandIn(corrupt=loader))


def test_every_contender_uses_the_best_setting() -> None:
    host = StandIn()
    schedule = Schedule(make_settings([SUBJECT, "dataloader", "torchdata"]), host)
    list(schedule.measure())
    best = schedule.best["heavy", Contender("dataloader")]
    timed = [job for job in host.jobs if job.loader != SUBJECT and job.asks_again]
    flat = [
        job for job in timed if (job.workload.layout, job.workload.form) == ("flat", "expanded")
    ]
    assert {job.loader for job in flat} == {"dataloader", "torchdata"}
    assert {job.tuning for job in flat} == {best}


def test_each_layout_and_form_has_a_cell_with_its_peers() -> None:
    found = measure(make_settings(rounds=3), StandIn({SUBJECT: 0.5}))
    flat, once = found["heavy, flat, expanded"], found["heavy, nested, deduplicated"]
    assert set(flat.arms) == {*COMPARED, FLOOR}
    assert set(once.arms) == {
        *(SUBJECT, peers.LOADER, "dataloader", "threads"),
        *("dataloader (flat, expanded)", "ray-stock (flat, expanded)"),
    }
    ratio = once.ratio("ray-stock (flat, expanded)", STEADY)
    assert ratio is not None
    assert (ratio.median, ratio.low) == (2.0, pytest.approx(2.0))
    assert (flat.arms[SUBJECT][MEMORY], flat.arms[SUBJECT][COLD]) == ([7], [2.0])
    assert flat.facts["rows"] == ROWS


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
    host = StandIn({SUBJECT: 0.5, peers.LOADER: 0.5})
    made = make_settings([SUBJECT, peers.LOADER, "ray-stock"], rounds=3)
    cells = list(Schedule(replace(made, layouts=("flat",), has_ablation=False), host).measure())
    settings = {"rows": ROWS, "rounds": 3}
    results = build_results(program.BENCHMARK, CIRCUMSTANCES, settings, cells)
    rows = judge(program.BENCHMARK, results)
    judged = {(row["where"], row["target"]): row["met"] for row in rows}
    times = "time of a peer, at least {} times Lastmile's"
    assert judged["heavy, flat, expanded: ray-stock over lastmile", times.format(8)] is False
    assert judged["heavy, flat, expanded: decode floor over lastmile", times.format(0.9)] is True
    start = "first batch of a fresh process, at most 1.5 s"
    assert judged["heavy, flat, expanded: lastmile", start] is False
    assert [met for (where, _), met in judged.items() if "loader over" in where] == [True]
    page = write_results(program.BENCHMARK, results, tmp_path)
    for doubt in ("4 rows of 10,000,000", "3 rounds of 7", "load average 3.5"):
        assert doubt in page
    assert "<svg" in (tmp_path / "dataloading.svg").read_text()


def test_a_quick_run_measures_few_rows_once(tmp_path: Path) -> None:
    options = program.parse().parse_args(["--quick", "--rows", "2000", "--data", str(tmp_path)])
    found = program.build_settings(options)
    assert (found.table.rows, found.rounds, found.levels) == (2000, 1, ("heavy",))
