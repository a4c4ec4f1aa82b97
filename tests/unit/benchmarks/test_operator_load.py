"""The benchmark of the operator's load: its figures of runs, and its bars."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_environment import ENVIRONMENT as IDLE

from benchmarks import records
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.operator.command import parse_options, plan_runs
from benchmarks.operator.figure import draw
from benchmarks.operator.report import build_markdown
from benchmarks.operator.results import Document, build_results

# The benchmark itself causes the load at its end.
ENVIRONMENT = IDLE | {"loadAverage": [0.0, 9.0]}
PASSES = {
    "number": 10,
    "results": {"done": 10},
    "milliseconds": [20.0, 90.0],
    "withoutApiMilliseconds": [6.0, 30.0],
    "withoutWaitsMilliseconds": [5.0, 25.0],
    "requests": 4.0,
}


def window(size: int, *, kib_each: float = 60.0, writes: int = 7) -> Document:
    return {
        "seconds": 120.0,
        "rssBytes": int(100 * 2**20 + size * kib_each * 1024),
        "cpuSeconds": 0.06 * size,
        "requests": {"get rayclusters 200": 4 * size},
        "requestsPerSecond": size * 0.3,
        "requestsPerExperiment": 36.0,
        "writes": writes,
        "passes": PASSES | {"number": 8 * size},
    }


def run(arm: str, size: int, seconds: float, *, number: int = 1, **more: Any) -> Document:
    about: Document = {"arm": arm, "size": size, "round": number, "commit": "abc"}
    times = {"steadySeconds": seconds, "readySeconds": seconds - 1.0, "digest": f"d{size}"}
    windows: Document = {}
    if arm in ("operator", "forgetful"):
        windows = {"rise": window(size), "training": window(size)}
    if arm == "asleep":
        return about | {"windows": {"asleep": window(size, writes=0)}} | more
    return about | times | {"windows": windows} | more


def all_runs(*, ratio: float = 2.0, **of_training: Any) -> list[Document]:
    runs = [run("forgetful", 200, 120.0), run("asleep", 1000, 0.0)]
    for number in range(1, 6):
        runs.append(run("bare", 200, 50.0 + number, number=number))
        operator = run("operator", 200, ratio * (50.0 + number), number=number)
        operator["windows"]["training"] = window(200, **of_training)
        runs.append(operator)
    runs.append(run("bare", 1000, 300.0))
    largest = run("operator", 1000, 300.0 * ratio, edits=50, editSeconds=[0.5, 2.0])
    largest["windows"] |= {"changing": window(1000), "training": window(1000, **of_training)}
    return [*runs, largest]


def silent(*seconds: float) -> Document:
    windows = {"silent": window(400)}
    return run("silent", 400, 0.0, editSeconds=list(seconds), mostOpen=32) | {"windows": windows}


def bars(results: Document) -> dict[str, bool]:
    return {bar["bar"]: bar["met"] for bar in results["bars"]}


def test_ratios_are_of_one_round_and_slopes_of_all_runs() -> None:
    results = build_results(all_runs(), ENVIRONMENT)

    small, large = results["rises"]
    assert (small["rounds"], large["rounds"]) == (5, 1)
    assert small["ratio"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert small["bareSeconds"] == {"median": 53.0, "min": 51.0, "max": 55.0}
    assert results["slopes"]["kibEach"] == pytest.approx(60.0, rel=0.01)
    assert results["slopes"]["fixedMiB"] == pytest.approx(100.0, rel=0.01)
    assert results["slopes"]["coresPerThousand"] == 0.5
    assert results["indicative"] == []
    assert all(bars(results).values())


@pytest.mark.parametrize(
    ("runs", "missed"),
    [
        pytest.param(
            all_runs(ratio=3.1),
            [f"time to steady state of {size} over a bare client's" for size in (200, 1000)],
            id="slow",
        ),
        pytest.param(
            all_runs(kib_each=101.0), ["KiB of memory an experiment that trains"], id="large"
        ),
        pytest.param(
            [*all_runs(), run("asleep", 5, 0.0, windows={"asleep": window(5, writes=1)})],
            ["writes for 5 that do not run"],
            id="restless",
        ),
        pytest.param(
            [*all_runs(), silent(4.0, 5.5, 30.0)],
            ["median seconds of an edit while 400 heads of another tenant never answer"],
            id="unfair",
        ),
    ],
)
def test_a_bar_that_is_missed_is_said(runs: list[Document], missed: list[str]) -> None:
    results = build_results(runs, ENVIRONMENT)
    assert [name for name, met in bars(results).items() if not met] == missed
    assert build_markdown(results).count("**no**") == len(missed)


def test_an_operator_that_does_not_keep_up_is_not_in_the_slope_of_its_work() -> None:
    runs = all_runs()
    late = run("operator", 2000, 900.0)
    late["windows"]["training"] |= {"cpuSeconds": 1.0, "passes": PASSES | {"number": 4000}}
    slopes = build_results([*runs, late], ENVIRONMENT)["slopes"]
    assert (slopes["coresPerThousand"], slopes["abreastUpTo"]) == (0.5, 1000)
    assert slopes["kibEach"] == pytest.approx(60.0, rel=0.01)
    slopes = build_results([*runs[:-1], late], ENVIRONMENT)["slopes"]
    assert set(slopes) == {"fixedMiB", "kibEach"}


def test_arms_that_made_different_clusters_are_no_comparison() -> None:
    runs = [*all_runs(), run("bare", 200, 50.0, number=6, digest="another")]
    with pytest.raises(BenchmarkError, match="clusters"):
        build_results(runs, ENVIRONMENT)


@pytest.mark.parametrize(
    ("runs", "load", "why"),
    [
        pytest.param([run("bare", 5, 1.0), run("operator", 5, 2.0)], 0.0, "1 rounds", id="few"),
        pytest.param([run("bare", 5, 1.0), run("operator", 5, 2.0)], 0.0, "at most 5", id="small"),
        pytest.param(all_runs(), 3.0, "load average 3.0", id="a busy machine"),
        pytest.param([*all_runs(), run("bare", 9, 1.0, commit="old")], 0.0, "abc, old", id="mixed"),
    ],
)
def test_what_is_no_measurement_says_why(runs: list[Document], load: float, why: str) -> None:
    results = build_results(runs, ENVIRONMENT | {"loadAverage": [load, 0.0]})
    assert any(why in reason for reason in results["indicative"])
    assert "**Indicative" in build_markdown(results)


def test_arms_take_turns_and_the_other_begins_each_time() -> None:
    options = parse_options(["--rounds", "2", "--size", "10", "--sizes", "20"])
    runs = [(run.arm, run.size, run.round) for run in plan_runs(options)]
    assert runs == [
        ("forgetful", 10, 1),
        ("bare", 10, 1),
        ("operator", 10, 1),
        ("operator", 10, 2),
        ("bare", 10, 2),
        ("asleep", 20, 1),
        ("silent", 400, 1),
        ("bare", 20, 1),
        ("operator", 20, 1),
    ]


def test_arms_can_be_chosen() -> None:
    options = parse_options(["--arms", "silent", "--silent", "5"])
    assert [(run.arm, run.size) for run in plan_runs(options)] == [("silent", 5)]
    results = build_results([silent(0.1, 0.2, 0.9, 1.5, 4.0)], ENVIRONMENT)
    [row] = results["silent"]
    assert row["editSeconds"] == {"median": 0.9, "min": 0.1, "max": 4.0}
    assert all(bars(results).values())
    assert "0.9 [0.1–4]" in build_markdown(results)


def test_the_files_are_written_and_equal_results_give_equal_bytes(tmp_path: Path) -> None:
    results = build_results(all_runs(), ENVIRONMENT | {"commit": "of the report"})
    assert results["commit"] == "abc"  # of the runs
    for name in ("a", "b"):
        records.write_results(
            "operator", results, tmp_path / name, build_markdown=build_markdown, draw=draw
        )
    for suffix in ("json", "md", "svg"):
        texts = [(tmp_path / name / f"operator.{suffix}").read_text() for name in ("a", "b")]
        assert texts[0] == texts[1]
    assert json.loads((tmp_path / "a" / "operator.json").read_text()) == results


@pytest.mark.parametrize(
    "wrong", [["--rounds", "0"], ["--sizes", "0"], ["--hold", "1"], ["--silent", "-1"]]
)
def test_a_wrong_option_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(wrong)
    assert f"{wrong[0]}: must be" in capsys.readouterr().err
