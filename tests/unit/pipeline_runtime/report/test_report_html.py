"""The report's text, without a browser: what it says, what it escapes, what it lets be."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.report import (
    ExperimentName,
    HistoryWriter,
    Run,
    StepFlow,
    Summary,
    build_report,
    charts,
    write_summary,
)
from pipeline_runtime.report.drawing.curves import CurvePlot, draw_curve
from pipeline_runtime.report.drawing.series import (
    MAX_POINTS,
    MAX_STACK_POINTS,
    Series,
    Stack,
    average_around,
    thin_indices,
    thin_stack,
)
from pipeline_runtime.report.testing import build_sample_summary, write_sample_run
from pipeline_runtime.report.view import build_funnel

EVIL = "<script>alert('x')</script>\"&$x^2$"


def build_run(outcome: str, error: str | None = None) -> Run:
    return build_sample_summary().run.model_copy(update={"outcome": outcome, "error": error})


def build_evil_summary() -> Summary:
    """Every text that comes from a user says something wicked."""
    text = build_sample_summary().model_dump_json(by_alias=True)
    document = json.loads(text)
    document["experiment"] = {"name": EVIL, "namespace": EVIL}
    document["run"] |= {"outcome": "Failed", "error": EVIL, "runHash": EVIL, "address": EVIL}
    document["seeds"]["steps"] = {EVIL: 1}
    document["versions"]["lastmile"] = EVIL
    document["machine"]["gpus"] = [EVIL]
    document["dataset"]["pushed"] = [EVIL]
    document["training"] |= {"entrypoint": EVIL, "device": EVIL, "precision": EVIL}
    document["training"]["metrics"] = {EVIL: 1.0}
    document["training"]["evaluations"] = [{"epoch": 0, "step": 1, "metrics": {EVIL: 1.0}}]
    document["order"]["detail"] = document["checkpoints"]["last"] = EVIL
    document["warnings"] = [EVIL]
    for step in document["steps"]:
        step |= {"kind": EVIL, "label": EVIL}
    return Summary.model_validate(document)


def write_evil_run(directory: Path) -> None:
    write_summary(directory, build_evil_summary())
    (directory / "manifest.yaml").write_text(EVIL)
    stage = {"name": EVIL, "where": EVIL, "steps": [{"kind": EVIL, "label": EVIL, "notes": EVIL}]}
    (directory / "plan.json").write_text(json.dumps({"stages": [stage], "text": EVIL}))
    with HistoryWriter(directory / "metrics.parquet") as writer:
        for step in range(1, 4):
            writer.append(step, 0, step, {EVIL: step, "eval_" + EVIL: step, "loss": 1 / step})


@pytest.fixture(scope="module")
def sample_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("sample")
    write_sample_run(directory)
    return build_report(directory).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "8,189,952",
            "8.19\u00a0M",
            "0.7812",
            "0.4127",
            "431\u00a0ms",
            "16\u00a0min\u00a049\u00a0s",
        ),
        *(
            "33.8\u00a0%",
            "103,078,357",
            "21.4\u00a0%",
            "9f3a6b01c2d4e5f6",
            "pipeline[2].downsample",
        ),
        *("2.60.0", "apiVersion: experiments.lastmile.dev/v1alpha1", "side table broadcast once"),
        *("Batches are fixed by the seed", "48 of 64 files", "day &gt;= &#39;2026-01-01&#39;"),
    ],
)
def test_a_complete_run_shows_its_numbers(text: str, sample_page: str) -> None:
    assert text in sample_page


def test_the_page_asks_nothing_of_any_network(sample_page: str) -> None:
    assert "<script" not in sample_page
    assert not re.findall(r'(?:src|href)="(?!#)', sample_page)
    assert not re.findall(r"url\((?!#)|@import", sample_page)
    assert "default-src 'none'" in sample_page


def test_ids_are_unique_and_every_reference_resolves(sample_page: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', sample_page)
    assert len(ids) == len(set(ids))
    references = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)|labelledby="([^"]+)"', sample_page)
    assert {"".join(found) for found in references} <= set(ids)


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_sample_run(tmp_path / name, num_steps=6)
    pages = [build_report(tmp_path / name).read_bytes() for name in ("one", "two")]
    assert pages[0] == pages[1]


def test_everything_from_the_user_is_escaped(tmp_path: Path) -> None:
    write_evil_run(tmp_path)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert "<script" not in page
    # One for each text that was made wicked, in the body, in labels of figures and in the title.
    assert page.count("&lt;script&gt;") >= 30


def test_an_error_stands_before_the_numbers(tmp_path: Path) -> None:
    run = build_run("Failed", "StepError: pipeline[4].map raised")
    write_summary(tmp_path, build_sample_summary().model_copy(update={"run": run}))
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert 0 < page.index("StepError: pipeline[4].map raised") < page.index('id="headline"')


@pytest.mark.parametrize("outcome", ["Failed", "Interrupted", "Complete"])
def test_a_run_that_did_nothing_has_a_report(outcome: str, tmp_path: Path) -> None:
    summary = Summary(experiment=ExperimentName(name="empty"), run=build_run(outcome))
    write_summary(tmp_path, summary)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    for section in ("training", "time", "rows", "plan", "manifest"):
        [shown] = re.findall(rf'<section id="{section}".*?</section>', page, re.DOTALL)
        assert "<p" in shown  # it says that there is nothing
        assert not re.search(r"<(figure|table|pre)", shown)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("plan.json", "{", id="plan that is no JSON"),
        pytest.param("plan.json", '{"stages": [{}]}', id="plan of another shape"),
        pytest.param("metrics.parquet", "PAR1", id="torn history"),
    ],
)
def test_a_broken_file_is_a_warning_not_an_end(name: str, content: str, tmp_path: Path) -> None:
    write_summary(tmp_path, build_sample_summary())
    (tmp_path / name).write_text(content)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert 'id="warnings-title">1 ' in page
    assert str(tmp_path / name) in page


def test_without_a_summary_there_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(LastmileError, match=r"summary\.json"):
        build_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([0.5], id="one value"),
        pytest.param([0.5, 0.5, 0.5], id="a constant"),
        pytest.param([0.0, 0.0], id="zeros"),
        pytest.param([-1.0, 2.0], id="below zero"),
        pytest.param([1e-9, 1e9], id="eighteen decades"),
        pytest.param([1e300, 1e301], id="huge"),
        pytest.param([float("nan"), float("inf")], id="none of them finite"),
        pytest.param([1.0, float("nan"), 2.0], id="one of them NaN"),
    ],
)
def test_odd_values_can_be_drawn(values: list[float], tmp_path: Path) -> None:
    write_summary(tmp_path, build_sample_summary())
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        for step, value in enumerate(values):
            entry = {"loss": value, "samples_per_second": value, "share_compute": 1.0}
            writer.append(float(step), 0, step, entry)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    lost = sum(not np.isfinite(value) for value in values)
    assert lost == len(values) or page.count("finite") == (2 if lost else 0)


def test_one_number_is_in_the_table_and_is_no_curve(tmp_path: Path) -> None:
    write_summary(tmp_path, build_sample_summary())
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        writer.append(1, 0, 1, {"loss": 0.5, "lonely": 0.25})
        writer.append(2, 0, 2, {"loss": 0.4, "eval_loss": 0.45})
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("<figure>") == 1  # the loss, with its one evaluation as a point
    assert "lonely" in page


def test_a_page_has_a_bounded_number_of_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "MAX_CHARTS", 2)
    write_summary(tmp_path, build_sample_summary())
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        for step in (1, 2):
            writer.append(step, 0, step, {f"metric_{index}": index for index in range(5)})
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("<figure>") == 2
    assert re.search(r"\b3 [^<]*<code>metrics\.parquet</code>", page)
    assert "metric_4" in page  # in the table


def make_series(num_values: int) -> Series:
    places = np.arange(num_values, dtype=np.float64)
    noise = np.random.default_rng(3).normal(size=num_values)
    return Series(name="loss", steps_N=places, seconds_N=places / 10, values_N=noise)


def test_thinning_keeps_ends_and_spikes() -> None:
    values = make_series(1_000_000).values_N
    values[123_457] = 99
    values[765_432] = -99
    kept = thin_indices(values)
    assert len(kept) <= MAX_POINTS
    assert {0, 123_457, 765_432, 999_999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()


@pytest.mark.parametrize("num_values", [1, MAX_POINTS, MAX_POINTS + 1])
def test_thinning_is_bounded_at_its_edge(num_values: int) -> None:
    assert len(thin_indices(make_series(num_values).values_N)) <= MAX_POINTS


def test_a_long_history_makes_a_small_figure() -> None:
    plot = CurvePlot(name="f", label="loss", series=make_series(1_000_000))
    assert len(draw_curve(plot)) < 150_000


def test_thinned_shares_keep_their_mean() -> None:
    shares = np.random.default_rng(3).dirichlet([5, 2, 1], size=12_345).T
    stack = Stack(names=("a", "b", "c"), seconds_T=np.arange(12_345.0), shares_ST=shares)
    thin = thin_stack(stack)
    assert thin.shares_ST.shape == (3, MAX_STACK_POINTS)
    assert thin.shares_ST.sum(axis=0) == pytest.approx(np.ones(MAX_STACK_POINTS))
    assert thin.seconds_T[-1] == 12_344
    assert thin_stack(replace(stack, seconds_T=stack.seconds_T[:5])).seconds_T.tolist() == [
        *(0, 1, 2, 3, 4)
    ]


def test_the_moving_mean_narrows_at_the_ends() -> None:
    assert average_around(np.array([1.0, 2.0, 3.0, 4.0]), 3).tolist() == [1.5, 2.0, 3.0, 3.5]


def test_the_funnel_tells_what_each_step_kept() -> None:
    steps = [
        StepFlow(index=0, kind="read", label="", rows_in=200, rows_out=200),
        StepFlow(index=1, kind="filter", label="", rows_in=200, rows_out=50),
        StepFlow(index=2, kind="join", label="", rows_in=50, rows_out=400),  # joins can multiply
        StepFlow(index=3, kind="filter", label="", rows_in=400, rows_out=0),
        StepFlow(index=4, kind="derive", label="", rows_in=0, rows_out=0),
    ]
    rows = [
        (row.width_percent, row.kept.replace("\u00a0", " "), row.kept_of_all.replace("\u00a0", " "))
        for row in build_funnel(steps)
    ]
    assert rows == [
        (50, "100 %", "100 %"),
        (12.5, "25 %", "25 %"),
        (100, "800 %", "200 %"),
        (0, "0 %", "0 %"),
        (0, "\u2013", "0 %"),
    ]
