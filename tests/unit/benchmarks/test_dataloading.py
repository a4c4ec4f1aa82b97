"""The benchmark of loaders: steady state, bounds, rounds and bars from measured epochs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from facts import assert_all_told

from benchmarks.dataloading import peers
from benchmarks.dataloading.command import main, write_results
from benchmarks.dataloading.errors import BenchmarkError, DisagreementError
from benchmarks.dataloading.jobs import Job, Tuning
from benchmarks.dataloading.measuring.epochs import Epoch, Steady, find_steady
from benchmarks.dataloading.measuring.rounds import Round, measure_rounds
from benchmarks.dataloading.peers import COMPARED, SUBJECT, Contender, Peer
from benchmarks.dataloading.reporting import bars
from benchmarks.dataloading.reporting.comparisons import build_comparisons
from benchmarks.dataloading.reporting.merging import merge_results
from benchmarks.dataloading.reporting.ratios import pair_ratios
from benchmarks.dataloading.reporting.report import build_markdown
from benchmarks.dataloading.reporting.results import build_results
from benchmarks.dataloading.schedule import run_schedule
from benchmarks.dataloading.settings import ALL_ON, NESTED_ALL_ON, SWITCHES, Settings, base_of
from benchmarks.dataloading.tables import Table, make_table
from benchmarks.dataloading.tuning import tune
from benchmarks.dataloading.workloads import Workload, build_experiment
from pipeline_runtime.plan import build_plan

ROWS = 4
FLOOR = Contender(loader=peers.FLOOR, layout="flat", form="expanded")


def make_epoch(job: Job, seconds: float = 1.0, rows: int = ROWS) -> Epoch:
    return Epoch(
        job=job,
        seconds=seconds,
        first_batch_seconds=0.1,
        first_batch_at=0.0,
        steady=Steady(seconds=seconds, rows=rows),
        batches=1,
        num_bytes=1,
        cpu_seconds=None,
        sums={"rows": rows, "identities": rows},
        profile={},
    )


def make_job(loader: str = SUBJECT) -> Job:
    return Job(loader=loader, workload=Workload(level="heavy", root="r"), consumer="take")


class StandIn:
    """Measures nothing: each loader takes the seconds that it is given, and one may lose a row."""

    def __init__(self, seconds: Mapping[str, float] | None = None, corrupt: str = "") -> None:
        self._seconds = seconds or {}
        self._corrupt = corrupt
        self.jobs: list[Job] = []

    def run(self, job: Job) -> Epoch:
        self.jobs.append(job)
        rows = ROWS - 1 if job.loader == self._corrupt else ROWS
        return make_epoch(job, self._seconds.get(job.loader, 1.0), rows)

    def run_fresh(self, job: Job) -> Epoch:
        return replace(self.run(job), cold_seconds=2.0, peak_bytes=7)


def make_settings(loaders: Sequence[str] = COMPARED, rounds: int = 1) -> Settings:
    table = Table(roots={"flat": "flat", "nested": "nested"}, rows=ROWS)
    return Settings(
        table=table,
        tuning_table=table,
        small=table,
        loaders=tuple(loaders),
        layouts=("flat", "nested"),
        forms=("expanded", "deduplicated"),
        levels=("heavy",),
        rounds=rounds,
        keeps_all_rounds=False,
        finals=1,
        starters=tuple(loaders),
        starts=1,
        fresh_proofs=True,
        trained=(SUBJECT, peers.ROOFLINE),
        train_levels=("heavy",),
        ablations=("all on",),
        quick=True,
    )


def be_silent(line: str) -> None:
    del line


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


# --- ratios ---------------------------------------------------------------------------------------


def test_a_ratio_is_bounded_by_student_t_over_logarithms() -> None:
    ratio = pair_ratios([2.0, 4.0, 8.0], [1.0, 1.0, 1.0])
    # ln 2, ln 4, ln 8: mean ln 4, deviation ln 2, and t(0.95, 2) = 2.920.
    margin = 2.0 ** (2.920 / 3**0.5)
    assert ratio.median == pytest.approx(4.0)
    assert ratio.low == pytest.approx(4.0 / margin)
    assert ratio.high == pytest.approx(4.0 * margin)


def test_pairing_keeps_a_disturbed_round_from_widening_the_bounds() -> None:
    ratio = pair_ratios([10.0, 5.0, 10.0], [8.0, 4.0, 8.0])
    assert (ratio.low, ratio.high) == (pytest.approx(1.25), pytest.approx(1.25))


def test_a_single_round_has_no_bounds() -> None:
    assert pair_ratios([3.0], [2.0]).low is None


# --- rounds ---------------------------------------------------------------------------------------


def measure(calibrations: Sequence[float], index: int) -> Round:
    epoch = make_epoch(make_job(peers.FLOOR), calibrations[index])
    return Round(level="heavy", calibration={FLOOR: epoch}, epochs={})


def test_a_round_after_a_calibration_far_off_is_repeated_and_counted() -> None:
    seconds = [1.0, 1.0, 1.2, 1.0, 1.1]  # 1.2 is 20 % off the median, 1.1 is 10 %
    found = measure_rounds(partial(measure, seconds), 4)
    assert [r.calibration[FLOOR].seconds for r in found.kept] == [1.0, 1.0, 1.0, 1.1]
    assert [r.calibration[FLOOR].seconds for r in found.set_aside] == [1.2]


def test_a_machine_that_is_hardly_ever_calm_ends_the_rounds() -> None:
    found = measure_rounds(partial(measure, [1.0, 2.0, 4.2, 4.0, 8.0, 16.0]), 2)
    assert [r.calibration[FLOOR].seconds for r in found.kept] == [4.2, 4.0]


def test_all_rounds_count_if_they_shall() -> None:
    found = measure_rounds(partial(measure, [1.0, 2.0, 4.0]), 2, keeps_all=True)
    assert (len(found.kept), found.set_aside) == (2, [])


def test_a_machine_that_is_never_calm_is_refused() -> None:
    with pytest.raises(BenchmarkError, match=r"\b6\b"):
        measure_rounds(partial(measure, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]), 2)


# --- tuning ---------------------------------------------------------------------------------------


def test_the_setting_that_is_faster_in_the_median_is_chosen() -> None:
    slow, steady, lucky = Tuning(workers=1), Tuning(workers=2), Tuning(workers=3)
    seconds = {slow: [9.0] * 4, steady: [2.0] * 3, lucky: [1.0, 8.0, 8.0]}

    def run(tuning: Tuning) -> Epoch:
        return make_epoch(make_job(), seconds[tuning].pop(0))

    tuned = tune(run, run, list(seconds), 2)
    assert tuned.best == steady
    assert (len(tuned.tried), len(tuned.finals)) == (3, 6)


def test_who_has_most_of_few_rows_in_flight_is_not_taken_for_fast() -> None:
    ahead, plain = Tuning(workers=4), Tuning()
    slower = [Tuning(workers=n) for n in (1, 2, 3)]

    def run(tuning: Tuning) -> Epoch:
        steady = Steady(seconds=0.1 if tuning == ahead else 0.3, rows=100)
        return replace(make_epoch(make_job(), 1.0 if tuning == plain else 2.0), steady=steady)

    def run_whole(tuning: Tuning) -> Epoch:
        return make_epoch(make_job(), 1.0 if tuning == plain else 3.0)

    assert tune(run, run_whole, [*slower, ahead, plain], 1).best == plain
    assert tune(run, run_whole, [*slower, ahead, plain], 0).best == ahead


# --- the command line -----------------------------------------------------------------------------


def test_a_peer_that_is_not_installed_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = Peer(host="x", opens=("x", "X"), needs=("duckdb", "no_such_module"))
    monkeypatch.setattr(peers, "LOADERS", {**peers.LOADERS, "duckdb": missing})
    chosen = peers.choose_installed(["duckdb", "threads"])
    assert chosen == (SUBJECT, "threads")
    absent = peers.describe_absent(chosen)
    assert "pip install duckdb" in absent["duckdb"]
    assert "pip install" not in absent["ray-stock"]  # it is there, and was not asked for


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--peers", "spark"], "--peers: ", id="unknown"),
        pytest.param(["--peers", "tf.data"], "TensorFlow", id="unable"),
        pytest.param(["--peers", "torchdata"], "dataloader", id="untuned"),
    ],
)
def test_an_option_that_cannot_be_met_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--quick", *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["none,huge", ""])
def test_an_unknown_level_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--work", text])
    assert "none, light, heavy" in capsys.readouterr().err


# --- the subject ----------------------------------------------------------------------------------


def test_ray_is_up_for_just_those_variants_that_it_feeds(tmp_path: Path) -> None:
    table = make_table(tmp_path, 2000)
    for variant in (ALL_ON, *SWITCHES):
        options = SWITCHES.get(variant, ())
        workload = Workload(level="heavy", root=table.roots["flat"], options=options)
        feed = build_plan(build_experiment(workload), workload.root).feed
        assert workload.needs_ray == (feed.engine == "RayData"), variant
        assert workload.needs_ray != feed.may_be_threads, variant


# --- the schedule ---------------------------------------------------------------------------------


def test_variants_of_nested_files_are_compared_with_all_on_of_their_own() -> None:
    host = StandIn()
    variants = (ALL_ON, "kernels off", NESTED_ALL_ON, "nested, deduplication off")
    run_schedule(replace(make_settings(), ablations=variants), host, be_silent)
    jobs = host.jobs[-len(variants) :]
    assert [job.workload.layout for job in jobs] == ["flat", "flat", "nested", "nested"]
    assert [job.workload.form for job in jobs] == [*["expanded"] * 2, *["deduplicated"] * 2]
    assert jobs[-1].workload.options == (("deduplication", False),)
    assert [base_of(name) for name in variants] == [*[ALL_ON] * 2, *[NESTED_ALL_ON] * 2]


@pytest.mark.parametrize("loader", COMPARED)
def test_a_benchmark_with_a_loader_that_loses_rows_is_refused(loader: str) -> None:
    match = r"'rows'.*(4.*3|3.*4)"
    with pytest.raises(DisagreementError, match=match):
        run_schedule(make_settings(), StandIn(corrupt=loader), be_silent)


def test_every_contender_goes_on_with_the_setting_that_was_best_for_it() -> None:
    host = StandIn()
    measured = run_schedule(make_settings(["lastmile", "dataloader", "torchdata"]), host, be_silent)
    best = measured.best["heavy", Contender(loader="dataloader", layout="flat", form="expanded")]
    jobs = [job for job in host.jobs if job.loader != SUBJECT and job.asks_again]
    cell = ("flat", "expanded")
    timed = [job for job in jobs if (job.workload.layout, job.workload.form) == cell]
    assert [job.loader for job in timed] == ["dataloader", "torchdata"]
    assert {job.tuning for job in timed} == {best}


def test_further_cells_are_rounds_and_comparisons_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = (("flat", "expanded"), ("nested", "deduplicated"))
    loaders = {name: replace(peer, cells=cells) for name, peer in peers.LOADERS.items()}
    monkeypatch.setattr(peers, "LOADERS", {**loaders, **floors()})
    host = StandIn({SUBJECT: 0.5})
    measured = run_schedule(make_settings(["lastmile", "dataloader"], rounds=2), host, be_silent)
    comparisons = build_comparisons(measured)
    found = {(c["layout"], c["form"], c["peer"]) for c in comparisons}
    assert ("nested", "deduplicated", "dataloader") in found
    assert ("nested", "deduplicated", "dataloader (flat, expanded)") in found
    assert ("flat", "expanded", "dataloader") in found
    assert {c["ratio_median"] for c in comparisons} == {2.0}
    assert {c["peak_memory_bytes"] for c in comparisons} == {7}
    judged = {(row["bar"], row["work"]): row["met"] for row in bars.judge(comparisons, {})}
    assert judged["nested files against the best DataLoader on nested files", "heavy"] is True
    assert judged["nested files against the best DataLoader on flat files", "heavy"] is False
    assert judged["nested files against the best DataLoader on flat files", "none"] is None


@pytest.mark.parametrize(("seconds", "share"), [(1.0, 1.0), (2.0, 0.5)])
def test_the_bar_of_the_loader_is_its_share_of_the_speed(seconds: float, share: float) -> None:
    host = StandIn({SUBJECT: 1.0, peers.LOADER: seconds})
    measured = run_schedule(make_settings([SUBJECT, peers.LOADER], rounds=2), host, be_silent)
    rows = bars.judge(build_comparisons(measured), {})
    [row] = [row for row in rows if "Pipeline.loader" in row["bar"] and row["work"] == "heavy"]
    assert row["measured"] == pytest.approx(share)
    assert row["low"] == pytest.approx(share)
    assert row["met"] is (share == 1.0)


def floors() -> dict[str, Peer]:
    return {name: peers.LOADERS[name] for name in peers.FLOORS}


# --- what is written ------------------------------------------------------------------------------


def test_results_are_written_as_json_table_and_picture(tmp_path: Path) -> None:
    measured = run_schedule(make_settings(rounds=3), StandIn({SUBJECT: 0.5}), be_silent)
    machine = {"processor": "p", "cores": 2, "memoryGiB": 1, "system": "s"}
    environment = {"machine": machine, "command": "c", "commit": "d", "versions": {"ray": "1"}}
    environment |= {"loadAverage": [3.5, 0], "finishedAt": "now", "minutes": 1.0}
    results = build_results(measured, environment)
    text = write_results(results, tmp_path)
    found = json.loads((tmp_path / "dataloading.json").read_text())
    assert (found["rows"], found["rounds"], found["machine"]["cores"]) == (ROWS, 3, 2)
    assert {row["ratio_low"] for row in found["comparisons"]} == {2.0}
    reasons = ["… quick", "… 4 … 10,000,000", "heavy: … 3 … 7", "… 3.5"]
    assert_all_told(found["indicative"], reasons)
    assert " | heavy | ≥ 8 × | 2.00 × | 2.00 × | **no** |" in text
    assert " | heavy | ≥ 0.9 × | 2.00 × |" in text
    assert "<svg" in (tmp_path / "dataloading.svg").read_text()


# --- several runs ---------------------------------------------------------------------------------

ENVIRONMENT = {
    "machine": {"processor": "p", "cores": 2, "memoryGiB": 1, "system": "s"},
    "command": "c",
    "commit": "d",
    "finishedAt": "now",
    "minutes": 1.0,
    "versions": {"ray": "1"},
    "loadAverage": [0.0, 0.0],
}


def results_of(loaders: Sequence[str], seconds: float = 0.5, **environment: Any) -> dict[str, Any]:
    settings = make_settings([SUBJECT, *loaders], rounds=2)
    measured = run_schedule(settings, StandIn({SUBJECT: seconds}), be_silent)
    return build_results(measured, ENVIRONMENT | environment)


def test_cells_of_a_later_run_take_their_place_among_the_others() -> None:
    before, now = results_of(["dataloader", "threads"]), results_of(["threads", "duckdb"], 0.25)
    merged = merge_results(before, now, SUBJECT)
    found = {(c["peer"], c["run"]): c["ratio_median"] for c in merged["comparisons"]}
    assert found["dataloader", 0] == 2.0
    assert found["threads", 1] == found["duckdb", 1] == 4.0
    assert ("threads", 0) not in found
    keys = [(c["layout"], c["form"], c["peer"]) for c in merged["comparisons"]]
    assert len(keys) == len(set(keys))
    assert len(merged["runs"]) == 2
    assert not {"dataloader", "threads", "duckdb"} & set(merged["absent"])
    [judged] = [
        row
        for row in merged["bars"]
        if (row["bar"], row["work"]) == ("flat files against two threads in one process", "heavy")
    ]
    assert judged["measured"] == 4.0
    assert "threads (flat, expanded)" in merged["proof"]["heavy"]["agreed"]
    build_markdown(merged)


def test_runs_of_two_machines_each_keep_their_rates() -> None:
    other = {**ENVIRONMENT["machine"], "processor": "q"}
    before, now = results_of(["threads"]), results_of(["duckdb"], 0.25, machine=other)
    merged = merge_results(before, now, SUBJECT)
    assert merged["machine"]["processor"] == "p"
    assert [run["machine"]["processor"] for run in merged["runs"]] == ["p", "q"]
    flat = {
        row["run"]: row["steadyRowsPerSecond"]["median"]
        for row in merged["throughput"]
        if (row["loader"], row["layout"], row["form"]) == (SUBJECT, "flat", "expanded")
        and row["consumer"] == "take"
    }
    assert flat[1] == pytest.approx(2 * flat[0])
    found = {(c["peer"], c["run"]): c["ratio_median"] for c in merged["comparisons"]}
    assert found["threads", 0] == 2.0
    assert found["duckdb", 1] == 4.0
    assert merged["bars"][-1]["measured"] == before["bars"][-1]["measured"]  # seconds
    assert "rounds, q; load average" in build_markdown(merged)


def test_the_ablation_of_one_layout_takes_the_place_of_that_alone() -> None:
    before, now = results_of(["threads"]), results_of(["threads"])
    variants = [ALL_ON, "kernels off", NESTED_ALL_ON, "nested, deduplication off"]
    before["ablation"] = [{"variant": name, "run": 0} for name in variants]
    now["ablation"] = [{"variant": NESTED_ALL_ON, "run": 0}]
    merged = merge_results(before, now, SUBJECT)
    found = [(row["variant"], row["run"]) for row in merged["ablation"]]
    assert found == [(ALL_ON, 0), ("kernels off", 0), (NESTED_ALL_ON, 1)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 5}, r"rows.*\b4\b.*\b5\b"),
        ({"indicative": []}, "quick"),
        ({"proof": {"heavy": {"rows": 1, "checksums": {}, "agreed": []}}}, "rows"),
    ],
)
def test_runs_that_do_not_belong_together_are_not_mixed(
    change: dict[str, Any], message: str
) -> None:
    before = results_of(["dataloader"])
    with pytest.raises(BenchmarkError, match=message):
        merge_results(before, results_of(["threads"]) | change, SUBJECT)
