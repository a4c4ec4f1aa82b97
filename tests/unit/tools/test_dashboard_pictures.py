"""The pictures of dashboards for the docs: what is told is what is drawn, and nothing runs."""

from __future__ import annotations

import html
import json
from typing import Any

import pytest

from tools.dashboards.draw import LABEL, Answers, Moment, draw_dashboard, format_value
from tools.dashboards.panels import Board, Kind, Panel, Query, Row, Step, render

EVIL = "<script>alert(1)</script>"
STEPS = (Step(value=0.1, colour="yellow"), Step(value=0.5, colour="red"))


def draw(answers: Answers, *moments: Moment, kind: Kind = "lines", **fields: Any) -> str:
    query = Query(expr="up", legend="{{pod}}")
    panel = Panel(title="Waits", description="", kind=kind, queries=(query,), **fields)
    rows = (Row(title="Now", panels=(panel,)),)
    board = Board(name="x", title="X", description="", variables=(), rows=rows)
    return draw_dashboard(json.loads(render(board)), answers, moments)


def answered(*values: str, pod: str = "head") -> Answers:
    series = {"metric": {"pod": pod}, "values": [[100 + i, v] for i, v in enumerate(values)]}
    return {("Waits", "A"): [series]}


def test_a_picture_says_that_it_is_not_grafanas() -> None:
    assert LABEL in html.unescape(draw(answered("1")))
    assert "not Grafana" in LABEL


def test_what_was_not_answered_is_no_line() -> None:
    for nothing in ({}, answered(), answered("NaN", "+Inf")):
        assert "No data" in draw(nothing)
        assert "polyline" not in draw(nothing)


@pytest.mark.parametrize(
    ("value", "colour"),
    [
        pytest.param("0.09", "#37872d", id="below every step"),
        pytest.param("0.1", "#b58900", id="at a step"),
        pytest.param("0.7", "#c4162a", id="beyond the last"),
    ],
)
def test_a_number_has_the_colour_of_its_step(value: str, colour: str) -> None:
    page = draw(answered("9", value), kind="stat", steps=STEPS)
    assert f'style="color: {colour}">{float(value):.3g}<' in page


def test_a_stat_may_show_the_name_that_was_told_last() -> None:
    before = {"metric": {"pod": "before"}, "values": [[100, "1"]]}
    after = {"metric": {"pod": "after"}, "values": [[101, "1"]]}
    page = draw({("Waits", "A"): [after, before]}, kind="stat", shows_label=True)
    assert ">after<" in page
    assert ">before<" not in page


def test_what_is_stacked_lies_on_what_was_before() -> None:
    both = [*answered("1", "1").values(), *answered("2", "2", pod="other").values()]
    page = draw({("Waits", "A"): [series for part in both for series in part]}, kind="stack")
    assert ">3<" in page  # the top of the axis


def test_a_mark_beyond_the_picture_is_not_drawn() -> None:
    marks = [Moment(time=100.5, text="up TooLow"), Moment(time=99.0, text="long ago")]
    page = draw(answered("1", "2"), *marks)
    assert "<title>up TooLow</title>" in page
    assert "long ago" not in page


def test_text_of_others_stays_text() -> None:
    for kind in ("lines", "table"):
        page = draw(answered("1", pod=EVIL), Moment(time=100, text=EVIL), kind=kind)
        assert EVIL not in page
        assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.125, "percentunit", "12.5 %"),
        (3 * 1024**3, "bytes", "3 GiB"),
        (0.0, "s", "0 s"),
        (0.0125, "s", "12.5 ms"),
        (59.0, "s", "59 s"),
        (90.0, "s", "1.5 min"),
        (7200.0, "s", "2.0 h"),
        (1234567.0, "none", "1.23 M"),
        (4096.0, "rowsps", "4.1 k/s"),
    ],
)
def test_a_number_has_its_unit(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text
