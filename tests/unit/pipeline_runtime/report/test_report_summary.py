"""summary.json: what is written is read back; what is broken says how."""

import json
import math
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from facts import assert_told
from pydantic import ValidationError

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.report import (
    Checksum,
    ExperimentName,
    Run,
    Summary,
    TimeShares,
    Training,
    load_summary,
    write_summary,
)
from pipeline_runtime.report.testing import build_sample_summary

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def build_early_failure() -> Summary:
    run = Run(
        run_hash="ab",
        started_at=NOON,
        finished_at=NOON,
        seconds=0,
        outcome="Failed",
        error="no file",
    )
    return Summary(experiment=ExperimentName(name="early"), run=run)


@pytest.mark.parametrize(
    "summary",
    [
        pytest.param(build_sample_summary(), id="a complete run"),
        pytest.param(build_early_failure(), id="a run that failed before anything was read"),
    ],
)
def test_what_is_written_is_read_back(summary: Summary, tmp_path: Path) -> None:
    path = write_summary(tmp_path / "new" / "folder", summary)
    assert load_summary(path.parent) == summary
    assert [entry.name for entry in path.parent.iterdir()] == ["summary.json"]


def test_the_file_holds_the_sketched_shape(tmp_path: Path) -> None:
    document = json.loads(write_summary(tmp_path, build_sample_summary()).read_text())
    assert document["version"] == 1
    assert document["run"]["startedAt"] == "2026-03-01T12:00:00Z"
    assert document["run"]["resumedFrom"] is None
    assert document["seeds"] == {"training": 7, "steps": {"pipeline[2].downsample": 17}}
    assert document["steps"][0] | {"seconds": 0} == {
        "index": 0,
        "kind": "read",
        "label": "parquet impressions/ (41 of 44 columns)",
        "rowsIn": 103_078_357,
        "rowsOut": 103_078_357,
        "bytesIn": 278_311_563_900,
        "bytesOut": 278_311_563_900,
        "seconds": 0,
    }
    assert set(document) == {
        *("version", "experiment", "run", "seeds", "versions", "machine", "dataset", "steps"),
        *("evaluationSteps", "training", "throughput", "timeShares", "checksum", "order"),
        *("checkpoints", "output", "measures", "snapshots", "models", "materialization"),
        "inference",
        "warnings",
    }


def test_a_diverged_loss_survives_json(tmp_path: Path) -> None:
    training = Training(metrics={"loss": math.nan, "low": -math.inf, "auc": 0.5})
    summary = build_early_failure().model_copy(update={"training": training})
    path = write_summary(tmp_path, summary)
    json.loads(path.read_text(), parse_constant=pytest.fail)  # NaN would be no JSON
    metrics = load_summary(tmp_path).training.metrics
    assert math.isnan(metrics["loss"])
    assert (metrics["low"], metrics["auc"]) == (-math.inf, 0.5)


def test_times_are_stored_in_utc() -> None:
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    run = Run(run_hash="ab", started_at=berlin, finished_at=berlin, seconds=0, outcome="Complete")
    assert run.started_at.isoformat() == "2026-03-01T12:00:00+00:00"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "summary.json", id="missing"),
        pytest.param("{", "JSON", id="torn"),
        pytest.param("[]", "JSON … list", id="a list"),
        pytest.param(
            '{"version": 2, "versions": {"lastmile": "9.1"}}',
            "version: … 1 … 2 … 9.1",
            id="of a later version",
        ),
        pytest.param("{}", "version: … 1 … None", id="no version"),
        pytest.param('{"version": true}', "version: … True", id="true is not 1"),
        pytest.param(
            '{"version": 1, "experiment": {"name": "x"}, "run": 3}', "run: ", id="a broken field"
        ),
    ],
)
def test_a_broken_summary_says_what_is_wrong(
    text: str | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(LastmileError) as caught:
        load_summary(tmp_path)
    assert_told(str(caught.value), f"… {message}")
    assert str(tmp_path / "summary.json") in str(caught.value)


def test_fields_of_a_later_lastmile_are_ignored(tmp_path: Path) -> None:
    path = write_summary(tmp_path, build_early_failure())
    document = json.loads(path.read_text()) | {"energy": {"joules": 3}}
    path.write_text(json.dumps(document))
    assert load_summary(tmp_path) == build_early_failure()


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_summary(tmp_path, build_early_failure())

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_summary(tmp_path, build_sample_summary())
    assert load_summary(tmp_path) == build_early_failure()
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_shares_from_seconds_sum_to_one() -> None:
    shares = TimeShares.from_seconds(compute=6, production=3, paused=1)
    assert (shares.compute, shares.production, shares.paused) == (0.6, 0.3, 0.1)
    assert shares.waited == pytest.approx(0.3)


def test_shares_of_nothing_are_all_zero() -> None:
    assert TimeShares.from_seconds(compute=0) == TimeShares()


def test_shares_of_an_unknown_stage_are_refused() -> None:
    with pytest.raises(LastmileError, match="'sleeping'"):
        TimeShares.from_seconds(sleeping=1)


@pytest.mark.parametrize(
    ("total", "is_valid"),
    [
        pytest.param(0.995, True, id="rounded down"),
        pytest.param(1.005, True, id="rounded up"),
        pytest.param(0.9, False, id="a tenth is missing"),
    ],
)
def test_shares_must_sum_to_one(total: float, is_valid: bool) -> None:
    if is_valid:
        assert TimeShares(compute=total).compute == total
        return
    with pytest.raises(ValidationError, match=r"0\.9000"):
        TimeShares(compute=total)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        pytest.param("0xAB", "00000000000000ab", id="as hex() writes it"),
        pytest.param("ffffffffffffffff", "ffffffffffffffff", id="the largest"),
    ],
)
def test_checksums_have_sixteen_digits(text: str, stored: str) -> None:
    assert Checksum(sum=text).sum == stored


def test_a_checksum_beyond_64_bits_is_refused() -> None:
    with pytest.raises(ValidationError):
        Checksum(sum="1" + "0" * 16)  # 2**64
