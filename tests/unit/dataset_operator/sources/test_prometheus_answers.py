"""A Prometheus' answers, whatever they are: a page as the driver served it, GPUs, or nothing."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataset_operator.errors import MetricsUnreachable
from dataset_operator.observed import WrittenTable
from dataset_operator.ray.runtime_metrics import parse_progress
from dataset_operator.sources.answers import (
    Series,
    build_page,
    explain_refusal,
    parse_answer,
    parse_gpus,
)

AT = 1_800_000_000.0
TARGET = {"namespace": "team", "pod": "clicks-head", "instance": "10.0.0.1:9464", "job": "lastmile"}
COUNTERS = {
    "lastmile_run_rows_total": "4096",
    "lastmile_run_steps_total": "32",
    "lastmile_run_loop_seconds_total": "16.5",
}


def series(name: str, /, *values: tuple[float, str], **labels: str) -> Series:
    return Series(metric={"__name__": name, **TARGET, **labels}, values=list(values))


def page_of(*more: Series, **changes: tuple[float, str]) -> list[Series]:
    """A driver's page as it was scraped at AT, but for changes by name."""
    plain = [series(name, changes.get(name, (AT, value))) for name, value in COUNTERS.items()]
    wait = series("lastmile_run_wait_seconds_total", (AT, "4"), stage="production")
    return [*plain, wait, *more]


def rows_of(page: str) -> float | None:
    progress = parse_progress(page)
    if progress is None or progress.counters.trainer is None:
        return None
    return progress.counters.trainer.rows


def test_the_newest_scrape_is_the_page_as_the_driver_served_it() -> None:
    older = [(AT - 30.0, "1"), (AT - 15.0, "2"), (AT, "4096")]
    loss = series("lastmile_training_metric", (AT, "0.25"), name='an "odd"\n\\one')
    page = build_page([series("lastmile_run_rows_total", *older), *page_of(loss)[1:]], 0.0)
    progress = parse_progress(page)
    assert progress is not None
    assert rows_of(page) == 4096.0
    assert progress.metrics == {'an "odd"\n\\one': 0.25}


def test_the_phase_of_a_table_is_on_the_same_page() -> None:
    phases = {"Spooling": "0", "Merging": "1"}
    found = [
        series("lastmile_output_phase", (AT, value), phase=phase) for phase, value in phases.items()
    ]
    page = build_page(page_of(series("lastmile_output_rows", (AT, "700")), *found), 0.0)
    progress = parse_progress(page)
    assert progress is not None
    assert progress.table == WrittenTable(phase="Merging", rows=700)
    assert rows_of(page) == 4096.0


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, 4096.0),
        ({"lastmile_run_rows_total": (AT, "17")}, 17.0),
        ({"lastmile_run_rows_total": (AT - 15.0, "4000")}, None),
        ({"lastmile_run_rows_total": (AT, "NaN")}, None),
        ({"lastmile_run_rows_total": (AT, "+Inf")}, None),
        ({"lastmile_run_rows_total": (AT, "-1")}, None),
        ({"lastmile_run_rows_total": (AT, "many")}, None),
        ({"lastmile_run_rows_total": (math.nan, "4096")}, None),
    ],
    ids=[
        "whole",
        "begun anew, which is the law's to see",
        "not on the newest page, though young",
        "not a number",
        "infinite",
        "below 0",
        "a word",
        "at no time",
    ],
)
def test_a_counter_that_is_wrong_or_missing_is_not_known_and_never_zero(
    changes: dict[str, tuple[float, str]], rows: float | None
) -> None:
    assert rows_of(build_page(page_of(**changes), 0.0)) == rows


def test_a_page_from_before_the_attempt_is_another_ones() -> None:
    assert build_page(page_of(), AT) != ""  # not from before, at the boundary
    assert build_page(page_of(), AT + 0.001) == ""


def test_of_two_targets_the_one_that_was_scraped_last_counts_and_no_other() -> None:
    other = {"job": "twice"}
    late = [
        series(name, (AT + 5.0, str(float(value) + 100)), **other)
        for name, value in COUNTERS.items()
    ]
    assert rows_of(build_page([*page_of(), *late], 0.0)) is None  # its waits are not known
    wait = series("lastmile_run_wait_seconds_total", (AT + 5.0, "4"), stage="production", **other)
    assert rows_of(build_page([*page_of(), *late, wait], 0.0)) == 4196.0
    assert rows_of(build_page([*late, *page_of(), wait][::-1], 0.0)) == 4196.0


def test_a_series_that_one_target_tells_twice_is_not_known() -> None:
    assert rows_of(build_page([*page_of(), page_of()[0]], 0.0)) is None


def gpu(percent: object, uuid: str = "GPU-1", at: float = AT, **labels: str) -> Series:
    known = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": uuid, **labels}
    return Series(metric={k: v for k, v in known.items() if v}, values=[(at, str(percent))])


@pytest.mark.parametrize(
    ("told", "percents"),
    [
        ([gpu(87), gpu(3, "GPU-2")], {"GPU-1": 87.0, "GPU-2": 3.0}),
        ([gpu(87), gpu(50, at=AT - 5.0, job="twice")], {"GPU-1": 87.0}),
        ([gpu(87), gpu(50, at=AT + 5.0, job="twice")], {"GPU-1": 50.0}),
        ([gpu(10, GPU_I_ID="1"), gpu(20, GPU_I_ID="2")], {"GPU-1/1": 10.0, "GPU-1/2": 20.0}),
        ([gpu(2147483647)], {}),
        ([gpu(9.22337203685478e18)], {}),
        ([gpu("NaN"), gpu(-1, "GPU-2"), gpu("busy", "GPU-3")], {}),
    ],
    ids=[
        "each by its UUID",
        "of two targets the newest",
        "in whatever order",
        "slices of one GPU",
        "a blank of DCGM",
        "a blank of 64 bits",
        "nonsense",
    ],
)
def test_gpus_are_told_apart_and_what_cannot_be_is_left_out(
    told: list[Series], percents: dict[str, float]
) -> None:
    assert parse_gpus(told, 1.0) == percents


def test_without_a_uuid_every_series_is_a_gpu_of_its_own() -> None:
    assert len(parse_gpus([gpu(1, "", job="a"), gpu(2, "", job="b")], 1.0)) == 2


def test_ratios_are_told_as_percent() -> None:
    assert parse_gpus([gpu(0.25)], 100.0) == {"GPU-1": 25.0}


def answer(result: Any, kind: str = "matrix") -> bytes:
    document = {"status": "success", "data": {"resultType": kind, "result": result}}
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>Welcome</html>",
        b"\x00\xff{",
        b"[" * 100_000,
        b"[1, 2]",
        b'{"status": "success"}',
        b'{"status": "error", "errorType": "bad_data", "error": "parse error"}',
        answer([], "vector"),
        answer([{"metric": {"a": 1}, "values": []}]),
        answer([{"metric": {}, "values": [[AT, 1]]}]),
        answer([{"metric": {}, "values": [["now", "1"]]}]),
        answer([{"metric": {}, "values": [[AT]]}]),
        answer({"metric": {}}),
    ],
)
def test_what_is_no_answer_of_prometheus_is_told_as_such(content: bytes) -> None:
    with pytest.raises(MetricsUnreachable, match="Prometheus"):
        parse_answer(content)


def test_native_histograms_are_passed_over() -> None:
    told = parse_answer(answer([{"metric": {"__name__": "a"}, "histograms": [[AT, {}]]}]))
    assert build_page(told, 0.0) == ""


def test_a_refusal_is_told_in_prometheus_own_words() -> None:
    assert explain_refusal(b'{"status": "error", "error": "parse error: bad"}') == (
        "parse error: bad"
    )
    assert explain_refusal(b"<html>") == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)
SAMPLES = st.tuples(
    st.floats(),
    st.one_of(st.text(max_size=20), st.floats().map(str), st.integers(-5, 200).map(str)),
)
NAMES = st.sampled_from([*COUNTERS, "lastmile_progress_ratio", "lastmile_training_metric", "x y"])
LABELS = st.dictionaries(
    st.sampled_from(["stage", "state", "name", "job", "UUID", "pod"]), st.text(max_size=20)
)
ANY_SERIES = st.builds(
    lambda name, labels, values: Series(metric={"__name__": name, **labels}, values=values),
    NAMES,
    LABELS,
    st.lists(SAMPLES, max_size=4),
)


@given(content=st.one_of(st.binary(), JSON.map(json.dumps).map(str.encode), JSON.map(answer)))
def test_garbage_is_an_answer_or_is_told_to_be_none(content: bytes) -> None:
    try:
        told = parse_answer(content)
    except MetricsUnreachable:
        return
    build_page(told, 0.0)
    parse_gpus(told, 1.0)


@given(told=st.lists(ANY_SERIES, max_size=30), scale=st.sampled_from([1.0, 100.0]))
def test_any_series_give_sound_numbers_or_none(told: list[Series], scale: float) -> None:
    assert all(0.0 <= value <= 100.0 for value in parse_gpus(told, scale).values())
    progress = parse_progress(build_page(told, 0.0))
    if progress is None:
        return
    assert progress.ratio is None or 0.0 <= progress.ratio <= 1.0
    assert all(math.isfinite(value) for value in progress.metrics.values())
    for counters in (progress.counters.trainer, progress.counters.workers):
        assert counters is None or all(
            0.0 <= getattr(counters, name) <= 1e18 for name in counters.__slots__ if name != "waits"
        )
