"""The history written before a cluster goes, and the old history that is deleted."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.history.closing import keep_history, parse_payload, prune_history

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DECISION = {
    "version": 1,
    "time": "2026-01-01T00:00:00Z",
    "before": 1,
    "after": 3,
    "reason": "Starved",
}


def event(uid: str, last: str) -> dict[str, Any]:
    return {"reason": uid, "lastTimestamp": last, "metadata": {"uid": uid}}


def payload(**more: Any) -> str:
    return json.dumps({"version": 1, "status": {"phase": "Complete"}, **more})


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / "history" / "0f3c6c1e-1" / name).read_text())


def test_the_history_of_a_second_cluster_is_merged(
    tmp_path: Path,
) -> None:
    first = payload(
        experiment={"spec": {"suspend": True}},
        events=[event("a", "2026-01-01T00:00:01Z"), event("b", "2026-01-01T00:00:02Z")],
        pods=[{"metadata": {"uid": "p1"}}],
    )
    second = payload(
        events=[event("c", "2026-01-01T00:00:04Z"), event("a", "2026-01-01T00:00:05Z")],
        pods=[{"metadata": {"uid": "p2"}}],
    )
    for text in (first, second, second):
        keep_history(str(tmp_path), "0f3c6c1e-1", parse_payload(text))
    assert [e["reason"] for e in read(tmp_path, "events.json")] == ["b", "c", "a"]
    assert [p["metadata"]["uid"] for p in read(tmp_path, "pods.json")] == ["p1", "p2"]
    assert read(tmp_path, "experiment.json") == {"status": {"phase": "Complete"}}


@pytest.mark.parametrize("stored", [[{"metadata": "x"}], [{"metadata": {"uid": ["p1"]}}], [1], {}])
def test_a_stored_history_of_another_shape_is_kept_or_replaced(tmp_path: Path, stored: Any) -> None:
    folder = tmp_path / "history/0f3c6c1e-1"
    folder.mkdir(parents=True)
    for name in ("events.json", "pods.json"):
        (folder / name).write_text(json.dumps(stored))
    new = payload(events=[event("a", "2026")], pods=[{"metadata": {"uid": "p2"}}])
    keep_history(str(tmp_path), "0f3c6c1e-1", parse_payload(new))
    assert event("a", "2026") in read(tmp_path, "events.json")
    assert {"metadata": {"uid": "p2"}} in read(tmp_path, "pods.json")


def test_decisions_without_a_job_are_kept_beside_the_report(tmp_path: Path) -> None:
    text = payload(decisions=[DECISION])
    keep_history(str(tmp_path), "0f3c6c1e-1", parse_payload(text))
    assert read(tmp_path, "decisions.json")[0]["after"] == 3
    run = tmp_path / "20260101T000000Z-0123456789abcdef-0f3c6c1e-1"
    run.mkdir()
    keep_history(str(tmp_path), "0f3c6c1e-1", parse_payload(text))
    assert [path.name for path in (run / "decisions").iterdir()] == ["20260101T000000Z-1-3.json"]


def test_an_invalid_payload_is_refused() -> None:
    with pytest.raises(LastmileError, match=r"--payload: .*version"):
        parse_payload('{"version": 2}')


def test_only_older_runs_of_the_same_experiment_are_pruned(tmp_path: Path) -> None:
    old = (NOW - timedelta(days=31)).timestamp()
    places = [
        "history/0f3c6c1e-1/events.json",
        "history/0f3c6c1e-2/events.json",  # one of its files is young
        "history/0f3c6c1e-2/logs/head/raylet.out",
        "history/0f3c6c1e-3/events.json",  # the present one
        "history/0f3c6c1e-4/events.json",  # a later one
        "history/99999999-1/events.json",  # another experiment of that name
        "history/notes/events.json",  # somebody else's
        "20260101T000000Z-0123456789abcdef-0f3c6c1e-1/checkpoints/step-1/rank-0",
    ]
    for place in places:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        young = NOW.timestamp() if path.name == "raylet.out" else old
        os.utime(path, (young, young))
    assert prune_history(str(tmp_path), "0f3c6c1e-3", 0, NOW) == []  # for ever
    gone = prune_history(str(tmp_path), "0f3c6c1e-3", 30, NOW)
    assert gone == [f"{tmp_path}/history/0f3c6c1e-1"]
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*places[1:]}


def test_a_run_without_an_id_prunes_nothing(tmp_path: Path) -> None:
    assert prune_history(str(tmp_path), "mine", 1, NOW) == []
