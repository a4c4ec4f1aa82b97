"""The commands of docs/backfill-demo.md run in their order, in a new folder."""

import os
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from run_support import LASTMILE

from pipeline_runtime.report import Summary, load_summary

PAGE = Path(__file__).parents[3] / "docs" / "backfill-demo.md"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_demo_promotes_a_feature_and_rolls_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    for name, manifest in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", page, re.M | re.S):
        (tmp_path / name).write_text(manifest, encoding="utf-8")
    *before, promoting, promoted, rolled_back = (
        re.findall(r"^\$ (.*)$", block, re.M)
        for block in re.findall(r"^```console\n(.*?)^```", page, re.M | re.S)
    )
    _run(*(command for block in before for command in block))
    names = ("clicks", "clicks-on-the-fly", "clicks-kept", "clicks-staged")
    first, on_the_fly, kept, staged = map(_load, names)
    old_files = _list_files()
    stored = _read("sample.recent", "user_id", "day", "recent_count")
    actions = _read("sample.user_actions", "user_id", "day", "recent_items")
    expected = actions.set_column(2, "recent_count", pc.list_value_length(actions[2]))
    assert _to_set(stored) == _to_set(expected)
    assert stored.num_rows == expected.num_rows
    written = _load("recent").output
    assert written is not None
    days = ["day=2026-01-07", "day=2026-01-08"]
    assert list(written.complete_partitions or ()) == days
    assert len(written.written_partitions or ()) == len(set(actions["day"].to_pylist())) - len(days)
    assert staged.checksum == kept.checksum == on_the_fly.checksum == first.checksum
    assert kept.materialization is not None
    assert _auc(staged) == pytest.approx(_auc(on_the_fly), abs=1e-3)

    _run(*promoting, *promoted)
    assert not old_files & _list_files()
    joined = _read("sample.impressions", "user_id", "day", "recent_count")
    known = {(user, day): count for user, day, count in _to_set(stored)}
    rows = joined.to_pylist()
    assert [row["recent_count"] for row in rows] == [
        known.get((row["user_id"], row["day"])) for row in rows
    ]
    assert any(row["recent_count"] for row in rows)
    retrained = _load("clicks-promoted")
    assert retrained.checksum == first.checksum
    assert _auc(retrained) == pytest.approx(_auc(staged), abs=1e-3)

    _run(*rolled_back)
    assert _list_files() == old_files
    assert _auc(_load("clicks")) == _auc(first)


def _run(*commands: str) -> None:
    path = f"{Path(LASTMILE).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", "\n".join(commands)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _load(name: str) -> Summary:
    return load_summary(Path("build") / name / "latest")


def _auc(summary: Summary) -> float:
    assert summary.training.evaluations
    return summary.training.evaluations[-1].metrics["eval_auc"]


def _table(name: str) -> Table:
    return SqlCatalog("lake", uri="sqlite:///build/lake/catalog.db").load_table(name)


def _read(name: str, *columns: str) -> pa.Table:
    return _table(name).scan(selected_fields=columns).to_arrow().select(columns)


def _list_files() -> set[str]:
    return {task.file.file_path for task in _table("sample.impressions").scan().plan_files()}


def _to_set(rows: pa.Table) -> set[tuple[object, ...]]:
    return {tuple(row.values()) for row in rows.to_pylist()}
