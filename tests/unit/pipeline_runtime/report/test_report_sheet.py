"""A page that another package asked for: what it shows, what it escapes, what it refuses."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline_runtime.cli.for_clusters.drawn_sheets import write_sheet
from pipeline_runtime.report.sheet import COLOURS, Sheet, build_sheet

EVIL = "<script>alert('x')</script>\"&$x^2$"


def line(name: str = "working", **changes: Any) -> dict[str, Any]:
    return {"name": name, "seconds": [60.0, 7200.0], "values": [1, 7], **changes}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "title": "ranking",
        "badge": "7 workers",
        "lead": "Simulated.",
        "summary": "It settles.",
        "table": {"title": "Costs", "header": ["Policy", "Cost"], "rows": [["ours", "12.5"]]},
        "charts": [{"name": "workers", "title": "Workers", "unit": "count", "lines": [line()]}],
        **changes,
    }


def build(**changes: Any) -> str:
    return build_sheet(Sheet.model_validate(document(**changes))).replace("\u00a0", " ")


def test_the_page_shows_all_that_it_is_given() -> None:
    page = build(
        tiles=[{"title": "Workers", "value": "7", "exact": "8 at most"}],
        advice=[{"field": "spec.x", "text": "raise it"}],
        facts=[{"title": "Rates", "text": "12 k per second"}],
        warnings=["measured elsewhere"],
        footer="See the docs.",
    )
    shown = ("7 workers", "8 at most", "spec.x", "raise it", "12 k per second", "12.5", "See the")
    for text in (*shown, "measured elsewhere", 'id="warnings-title">1 ', "It settles."):
        assert text in page
    assert re.search(r'aria-label="Workers[^"]*working"', page)
    assert "minutes" in page


def test_a_page_without_charts_has_no_empty_part() -> None:
    page = build(charts=[])
    assert "<svg" not in page
    assert 'id="charts"' not in page


def test_shares_are_in_per_cent_from_nothing_on() -> None:
    lines = [line(values=[0.0, 0.0]), line("min", values=[0.5, 0.25], isDashed=True)]
    charts = [{"name": "idle", "title": "Idle", "unit": "share", "lines": lines}]
    page = build(charts=charts)
    assert ">0 %<" in page
    assert re.search(r">[345]\d %<", page)
    assert "var(--accent)" in page
    assert f"var({COLOURS[1]})" in page
    never = build(charts=[{**charts[0], "lines": lines[:1]}])
    assert ">100 %<" in never  # nothing ever waited: the axis is that of shares all the same


def test_no_markup_of_a_users_gets_into_the_page() -> None:
    page = build(
        title=EVIL,
        badge=EVIL,
        lead=EVIL,
        summary=EVIL,
        warnings=[EVIL],
        footer=EVIL,
        tiles=[{"title": EVIL, "value": EVIL, "exact": EVIL}],
        advice=[{"field": EVIL, "text": EVIL}],
        facts=[{"title": EVIL, "text": EVIL}],
        table={"title": EVIL, "header": [EVIL], "rows": [[EVIL]]},
        charts=[{"name": "a", "title": EVIL, "unit": "count", "lines": [line(EVIL)]}],
    )
    assert "<script" not in page
    assert "://" not in page.replace("http://www.w3.org/", "")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"charts": [{"name": "a b", "unit": "count", "lines": []}]}, id="bad chart"),
        pytest.param({"unheard": "of"}, id="a field that nobody would see"),
        pytest.param(
            {
                "charts": [
                    {"name": "a", "title": "", "unit": "count", "lines": [line(values=[1.0])]}
                ]
            },
            id="fewer values than seconds",
        ),
        pytest.param(
            {
                "charts": [
                    {
                        "name": "a",
                        "title": "",
                        "unit": "count",
                        "lines": [line()] * (len(COLOURS) + 1),
                    }
                ]
            },
            id="more lines than colours",
        ),
    ],
)
def test_what_could_not_be_shown_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Sheet.model_validate(document(**changes))


def test_the_texts_beside_the_page_are_written_with_it(tmp_path: Path) -> None:
    path = write_sheet(tmp_path / "new" / "page.html", document(), {"numbers.json": "{}"})
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (tmp_path / "new" / "numbers.json").read_text(encoding="utf-8") == "{}\n"


def test_a_bad_page_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        write_sheet(tmp_path / "page.html", document(unheard="of"), {"numbers.json": "{}"})
    assert list(tmp_path.iterdir()) == []
