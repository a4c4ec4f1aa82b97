"""The report's section on data workers: waits, workers and decisions."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from facts import assert_all_told, assert_told

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.report import HistoryWriter, build_report, read_history, write_summary
from pipeline_runtime.report.charts import build_metric_charts, build_metric_rows
from pipeline_runtime.report.files.autoscaler_decisions import (
    ScalingDecision,
    load_decisions,
    parse_decisions,
    write_decisions,
)
from pipeline_runtime.report.supply import MAX_ROWS, Supply, build_supply
from pipeline_runtime.report.testing import build_sample_summary

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def decided(seconds: float, before: int = 2, after: int = 4, **inputs: float) -> ScalingDecision:
    return ScalingDecision(
        version=1,
        time=BEGAN + timedelta(seconds=seconds),
        before=before,
        after=after,
        reason="DesiredWithinRange",
        message="more are needed",
        inputs=inputs,
    )


def write_history(directory: Path, *, workers: float = 1.0, pause_seconds: float = 0.0) -> None:
    """Write ten entries, 10 s apart; the history leaves out the pause after the fifth."""
    with HistoryWriter(directory / "metrics.parquet") as writer:
        for index in range(1, 11):
            clock = BEGAN.timestamp() + 10 * index + (pause_seconds if index > 5 else 0.0)
            values = {"unix_seconds": clock, "wait_share": 0.5 if index < 5 else 0.0}
            values |= {"busy_share": 0.4, "readers": 4.0, "data_workers": workers}
            writer.append(10.0 * index, 0, index, values)


def built(directory: Path, decisions: list[ScalingDecision]) -> Supply:
    supply = build_supply(read_history(directory), decisions, waited=0.2)
    assert supply is not None
    return supply


def keys(supply: Supply) -> list[str]:
    return [key.text for key in supply.keys]


def test_a_laptop_shows_waits_and_readers(tmp_path: Path) -> None:
    write_history(tmp_path)
    supply = built(tmp_path, [])
    assert_all_told(keys(supply), ["… busy", "… wait", "… readers"])
    assert_told(supply.said, "… 20\u00a0% … 4 readers")
    assert "autoscaler" not in supply.said
    assert 'role="img"' in supply.svg
    label = re.findall(r'aria-label="([^"]*)"', supply.svg)[0]
    assert_told(label, "… 0\u00a0% … 50\u00a0%")


def test_a_cluster_shows_data_workers_and_decisions(tmp_path: Path) -> None:
    write_history(tmp_path, workers=3.0)
    supply = built(tmp_path, [decided(20, productionShare=0.5), decided(70, 4, 3)])
    assert_all_told(keys(supply), ["… busy", "… wait", "… data workers", "… asked"])
    assert [(row.after, row.change, row.waits) for row in supply.rows] == [
        ("20\u00a0s", "2 → 4", "50\u00a0%"),
        ("1\u00a0min\u00a010\u00a0s", "4 → 3", "–"),
    ]
    label = re.findall(r'aria-label="([^"]*)"', supply.svg)[0]
    assert_told(label, "… 2 → 4 … 20\u00a0s … 4 → 3 … 1\u00a0min\u00a010\u00a0s")


def test_gpus_are_shown_if_decisions_include_them(tmp_path: Path) -> None:
    write_history(tmp_path, workers=3.0)
    supply = built(tmp_path, [decided(20, gpuUtilization=0.7)])
    assert any("GPU" in key for key in keys(supply))
    assert supply.rows[0].gpus == "70\u00a0%"


def test_decisions_are_placed_despite_pauses(
    tmp_path: Path,
) -> None:
    write_history(tmp_path, pause_seconds=3600.0)
    times = [30, 3600 + 80, -100, 10**6]
    rows = built(tmp_path, [decided(seconds) for seconds in times]).rows
    # the last two decisions are before and after all entries
    assert [row.after for row in rows] == [
        *("30\u00a0s", "1\u00a0min\u00a020\u00a0s", "10\u00a0s", "1\u00a0min\u00a040\u00a0s")
    ]


def test_only_the_latest_decisions_are_listed(tmp_path: Path) -> None:
    write_history(tmp_path)
    supply = built(tmp_path, [decided(index) for index in range(MAX_ROWS + 7)])
    assert (len(supply.rows), supply.num_hidden) == (MAX_ROWS, 7)


@pytest.mark.parametrize("num_entries", [0, 1])
def test_without_waits_there_is_no_section(num_entries: int, tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        for index in range(num_entries):
            writer.append(1.0 + index, 0, index, {"wait_share": 0.5, "loss": 1.0})
    assert build_supply(read_history(tmp_path), [decided(1)], waited=0.5) is None


def test_the_clock_is_not_a_metric(tmp_path: Path) -> None:
    write_history(tmp_path)
    history = read_history(tmp_path)
    assert build_metric_charts(history) == []
    assert "unix_seconds" not in [row.name for row in build_metric_rows(history)]


def test_a_decision_written_twice_is_one_file(tmp_path: Path) -> None:
    decision = decided(20, productionShare=0.5)
    for _ in range(2):
        write_decisions(tmp_path, [decision, decided(70, 4, 3)])
    names = [path.name for path in sorted((tmp_path / "decisions").iterdir())]
    assert names == ["20260301T120020Z-2-4.json", "20260301T120110Z-4-3.json"]
    assert load_decisions(tmp_path)[0] == decision


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="not JSON"),
        pytest.param("[]", id="not an object"),
        pytest.param('{"version": 2}', id="another version"),
        pytest.param(
            '{"version": 1, "time": "2026-01-01T00:00:00Z", "before": -1, "after": 2}',
            id="fewer than none",
        ),
        pytest.param(
            '{"version": 1, "time": "then", "before": 1, "after": 2}', id="an invalid time"
        ),
    ],
)
def test_a_broken_decision_is_a_warning_of_the_report(text: str, tmp_path: Path) -> None:
    write_summary(tmp_path, build_sample_summary())
    write_history(tmp_path)
    (tmp_path / "decisions").mkdir()
    (tmp_path / "decisions" / "20260301T120020Z-2-4.json").write_text(text)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert "20260301T120020Z-2-4.json: " in page
    assert 'id="supply"' in page


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"version": 1, "time": "x", "before": 1, "after": 2}]', "[NaN]"]
)
def test_text_that_is_not_a_list_of_decisions_is_refused(text: str) -> None:
    with pytest.raises(LastmileError, match="list"):
        parse_decisions(text)
