"""Metrics of the step `measure` in the file, the page and the terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.report import (
    Written,
    build_report,
    load_summary,
    print_summary,
    write_summary,
)
from pipeline_runtime.report.files.measures_file import (
    MEASURES_FILE,
    MeasureResult,
    MeasuresFile,
    load_measures,
    parse_measures,
)
from pipeline_runtime.report.testing import build_sample_summary

EVIL = "<script>alert(1)</script>"
RESULTS: list[dict[str, Any]] = [
    {
        "name": "base",
        "kind": "auc",
        "value": 0.7125,
        "rows": 1000,
        "leftOut": {"label": 3},
        "lower": 0.7124,
        "upper": 0.7126,
        "roc": [[0, 0], [0.5, 0.8], [1, 1]],
        "groupBy": ["country"],
        "groups": [{"group": [EVIL], "value": 0.5, "rows": 7, "leftOut": {}, "lower": 0.4}],
        "other": {"group": [], "value": None, "rows": 2},
    },
    {
        "name": "calibration",
        "kind": "calibration",
        "value": 1.01,
        "rows": 1000,
        "bins": [{"from": 0, "to": 1, "weight": 2.0, "meanScore": 0.4, "meanLabel": 0.5}],
    },
    {"name": "top", "kind": "topK", "rows": 5, "top": [{"value": EVIL, "rows": 4}]},
    {"name": "empty", "kind": "auc", "rows": 0, "roc": [], "value": None},
]
DROPS = {"kind": "importance", "model": "base", "metric": "AUC", "columns": ["a"], "rows": 9}
IMPORTANCES: list[dict[str, Any]] = [
    DROPS | {"name": "$x^2$ <b>", "value": 0.25, "interval": [0.125, 0.375], "drops": [0.2, 0.3]},
    DROPS | {"name": "harmful", "value": -0.0625, "interval": None, "drops": [-0.0625]},
    DROPS | {"name": "undefined", "value": None, "interval": None, "drops": []},
]


def write_results(folder: Path, results: list[dict[str, Any]]) -> None:
    measures = tuple(MeasureResult.model_validate({"step": "pipeline[1]", **r}) for r in results)
    (folder / MEASURES_FILE).write_bytes(MeasuresFile(version=1, measures=measures).to_bytes())
    summary = build_sample_summary().model_copy(
        update={
            "output": Written(uri="out/", rows=10),
            "measures": tuple(measure.shorten() for measure in measures),
        }
    )
    write_summary(folder, summary)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_results(tmp_path, RESULTS)
    return tmp_path


def test_the_file_is_read_as_it_was_written(folder: Path) -> None:
    found = load_measures(folder)
    assert MeasuresFile.model_validate_json(found.to_bytes()) == found
    assert found.measures[0].list_numbers() == {"lower": 0.7124, "upper": 0.7126}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version": 2}', b'{"version": 1, "measures": 1}']
)
def test_a_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(LastmileError):
        parse_measures(content, "measures.json")


def test_the_page_has_values_curves_and_groups(folder: Path) -> None:
    page = build_report(folder).read_text(encoding="utf-8")
    for text in ("0.7125", "0.7124", "label: 3", "base: ROC", "calibration: reliability"):
        assert text in page
    assert page.count("&lt;script&gt;") == 2
    assert "<script" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_run_without_measures_has_no_section(folder: Path) -> None:
    write_summary(folder, build_sample_summary())
    (folder / MEASURES_FILE).unlink()
    assert 'id="measures"' not in build_report(folder).read_text(encoding="utf-8")


def test_the_terminal_shows_the_values(folder: Path) -> None:
    summary = build_sample_summary().model_copy(
        update={"measures": tuple(m.shorten() for m in load_measures(folder).measures)}
    )
    text = io.StringIO()
    print_summary(Console(file=text, width=100, _environ={}), summary)
    assert re.search(r"base +auc +0\.7125 +1,000", text.getvalue())


def test_importances_are_bars_with_whiskers(tmp_path: Path) -> None:
    write_results(tmp_path, IMPORTANCES)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert "0.25 (0.125 to 0.375)" in page
    [figure] = re.findall(r"<figure>.*?</figure>", page, flags=re.S)
    assert "Importance of inputs of base" in figure
    for name in ("$x^2$ &lt;b&gt;", "harmful"):
        assert name in figure
    assert "undefined" not in figure
    assert figure.count("LineCollection") == 1  # the only interval
    text = io.StringIO()
    print_summary(Console(file=text, width=100, _environ={}), load_summary(tmp_path))
    assert re.search(r"harmful +importance +-0\.0625 +9", text.getvalue())
