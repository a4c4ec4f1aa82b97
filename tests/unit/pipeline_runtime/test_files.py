"""Files are written whole, and through no link that somebody put into the folder."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline_runtime.files import write_atomically
from pipeline_runtime.history.closing import Payload, keep_history
from pipeline_runtime.history.pod_logs import LogCopier
from pipeline_runtime.report.files.metrics_history import HistoryWriter
from pipeline_runtime.run.decisions import fetch_decisions
from pipeline_runtime.sample_data.file_layout import write_sample_data
from pipeline_runtime.sample_data.options import SampleDataOptions
from pipeline_runtime.sources.durable import write_file
from pipeline_runtime.sources.filesystem import open_location
from pipeline_runtime.sources.stores import write_files

SECRET = "of somebody else"


def write_report(folder: Path) -> None:
    write_atomically(folder / "report.html", "a page")


def write_history(folder: Path) -> None:
    with HistoryWriter(folder / "metrics.parquet") as history:
        history.append(1.0, 0, 1, {"loss": 0.5})


def write_sample(folder: Path) -> None:
    write_sample_data(folder, SampleDataOptions(rows=10))


def write_state(folder: Path) -> None:
    write_file(open_location(str(folder)).join("state.pt"), b"state")


def write_artifacts(folder: Path) -> None:
    write_files(open_location(str(folder)), {"plan.json": b"{}"}, "keep the plan")


def write_kept_history(folder: Path) -> None:
    keep_history(str(folder), "0f3c6c1e-1", Payload(version=1))


def write_logs(folder: Path) -> None:
    log = folder.parent / "ray/session_1/logs/raylet.out"
    log.parent.mkdir(parents=True)
    log.write_text("a line")
    copier = LogCopier(source=folder.parent / "ray", target=open_location(str(folder)), every=1)
    assert copier.copy() == 1


def write_decisions(folder: Path) -> None:
    store = folder.parent / "store"
    (store / "decisions").mkdir(parents=True)
    (store / "decisions/a.json").write_text("{}")
    assert fetch_decisions(open_location(str(store)), folder) is None


@pytest.mark.parametrize(
    ("write", "links"),
    [
        (write_report, ["report.html", f".report.html.{os.getpid()}.tmp"]),
        (write_history, ["metrics.parquet", f".metrics.parquet.{os.getpid()}.tmp"]),
        (write_sample, ["_lastmile_sample.json.tmp"]),
        (write_sample, ["spam_users/.part-00000.parquet.tmp"]),
        (write_state, ["state.pt"]),
        (write_artifacts, ["plan.json"]),
        (write_kept_history, ["history/0f3c6c1e-1/events.json"]),
        (write_logs, ["session_1/raylet.out"]),
        (write_decisions, ["decisions/a.json"]),
    ],
)
def test_no_link_in_the_folder_is_followed(
    write: Callable[[Path], None], links: list[str], tmp_path: Path
) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text(SECRET)
    for link in links:
        (folder / link).parent.mkdir(parents=True, exist_ok=True)
        (folder / link).symlink_to(victim)
    if write is write_sample:  # it replaces only folders that have its own file
        (folder / "_lastmile_sample.json").write_text("{}")
    write(folder)
    assert victim.read_text() == SECRET


def test_a_file_is_as_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_report(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o644
