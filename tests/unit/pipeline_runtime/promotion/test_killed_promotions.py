"""A promotion, or a rollback, that is killed is repeated once, and leaves no orphan."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from promotion_lake import PromotionLake, feature_rows, main_rows
from written_iceberg import list_orphans

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.materialization.tables import find_orphans

# Kills its process at one moment, as `kill -9` would.
SCRIPT = """
import os, signal, sys
from pyiceberg.catalog.sql import SqlCatalog
from pipeline_runtime.promotion import rewriting, swapping
from promotion_lake import PromotionLake

def dying(function, before):
    def call(*args, **options):
        if before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    return call

folder, moment, when, to = sys.argv[1:]
owner, name = {
    "written": (rewriting.FileRewriter, "_write"),
    "staged": (swapping, "_stage_tags"),
    "committed": (SqlCatalog, "commit_table"),
    "removed": (swapping, "remove_files"),
}[moment]
lake = PromotionLake(
    SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")
)
staging = lake.stage("db.ctr")
setattr(owner, name, dying(getattr(owner, name), when == "before"))
lake.roll_back(int(to)) if to != "0" else lake.promote(staging)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["promote", "rollback"])
@pytest.mark.parametrize("moment", ["written", "staged", "committed", "removed"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_command_is_repeated_once(
    lake: PromotionLake, tmp_path: Path, command: str, moment: str, when: str
) -> None:
    lake.create_staging("db.ctr", feature_rows(main_rows()), buckets=6, by_day=True)
    to = 0
    if command == "rollback":
        to = lake.promote(lake.stage("db.ctr")).previous_snapshot_id or 0
        if moment == "written":  # only a partition that was changed since is written again
            lake.append(main_rows()[:1])
    rows, files, head = lake.rows(), lake.files(), lake.head()
    code = f"import sys; sys.path[:0] = {sys.path!r}\n{SCRIPT}"
    arguments = [str(tmp_path), moment, when, str(to)]
    killed = subprocess.run([sys.executable, "-c", code, *arguments], check=False)
    assert killed.returncode == -signal.SIGKILL

    has_landed = moment == "removed" or (moment, when) == ("committed", "after")
    if not has_landed:
        assert (lake.rows(), lake.files(), lake.head()) == (rows, files, head)
    if command == "promote":
        assert lake.promote(lake.stage("db.ctr")).is_repeated == has_landed
    elif has_landed:
        with pytest.raises(OutputRefused):
            lake.roll_back(to)
    else:
        lake.roll_back(to)
    snapshot = lake.main.current_snapshot()
    assert snapshot is not None
    assert snapshot.parent_snapshot_id == head
    features = {(row["day"], row["user"]): row["ctr"] for row in feature_rows(main_rows())}
    for row in lake.rows():
        is_known = command == "promote" and row["user"] is not None
        assert row["ctr"] == (features[row["day"], row["user"]] if is_known else None)

    kept = lake.rows()
    find_orphans(lake.catalog, "db.main", timedelta(0)).delete()
    assert (list_orphans(lake.main), lake.rows()) == (set(), kept)
