"""The folder of a run: one for each run, used by one process, without a report of another run."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from facts import assert_told

from pipeline_runtime.cli import main
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import (
    AlreadyComplete,
    FolderInUse,
    FolderTaken,
    LastmileError,
    ManifestError,
)
from pipeline_runtime.report import load_summary
from pipeline_runtime.run import session
from pipeline_runtime.run.claims import FolderClaim, RunFile, read_run_file
from pipeline_runtime.run.options import RunOptions, choose_output
from pipeline_runtime.run.session import Finished, Watcher, run_experiment
from pipeline_runtime.runs.locking import locking

PLANNED = {"run.json", "plan.json", "manifest.yaml"}


class KilledError(Exception):
    """In the place of a SIGKILL."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a table."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": range(100)}), "in.parquet", row_group_size=10)
    return tmp_path


def build_document(
    table: str = "out/",
    *,
    name: str = "copied",
    source: str = "in.parquet",
    side: str | None = None,
) -> dict[str, Any]:
    """Build the manifest of the experiment `copied`, which copies the table.

    Args:
        side: a table whose rows are left out.
    """
    steps = [{"antiJoin": {"parquet": {"uri": side}, "keys": ["id"]}}] if side else []
    return {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": name},
        "spec": {
            "dataset": {"parquet": {"uri": source}, "rowKey": ["id"]},
            "pipeline": steps,
            "pipelineOptions": {"rowsPerBlock": 10},
            "output": {"mode": "Overwrite", "parquet": {"uri": table}},
        },
    }


def run(
    output: str | None = None,
    *,
    table: str = "out/",
    name: str = "copied",
    source: str = "in.parquet",
    side: str | None = None,
    root: str = ".",
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Finished:
    """Run the experiment `copied`."""
    document = build_document(table, name=name, source=source, side=side)
    options = RunOptions(
        output=choose_output(output, name),
        folder_per_run=output is None,
        storage_root=root,
        resume=resume,
    )
    return run_experiment(parse_experiment(document), yaml.safe_dump(document), options, watcher)


def kill(_: int) -> None:
    raise KilledError


def interrupt(_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def run_until_killed(output: str | None = None, **how: bool) -> None:
    with pytest.raises(KilledError):
        run(output, watcher=Watcher(on_metrics_port=kill), **how)


def run_until_stopped(output: str | None = None) -> Finished:
    stopped = run(output, watcher=Watcher(on_reading=interrupt))
    assert stopped.outcome.kind == "Interrupted"
    return stopped


def find_latest() -> Path:
    link = Path("build/copied/latest")
    assert not Path(os.readlink(link)).is_absolute()
    return link.parent / os.readlink(link)


def test_each_run_has_a_folder_and_the_newest_is_latest() -> None:
    first = run().output
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    assert find_latest() == first
    second = run().output
    assert find_latest() == second != first
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before
    stored = {path.name for path in Path("experiments/copied").iterdir()}
    assert stored == {first.name, second.name}
    held = read_run_file(second)
    assert held is not None
    assert held.run == second.name
    assert Path(held.artifacts_uri).samefile(Path("experiments/copied") / second.name)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run a command line, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["lastmile", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_the_command_line_chooses_the_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("m.yaml").write_text(yaml.safe_dump(build_document()))
    command = ("run", "-f", "m.yaml", "--storage-root", ".", "--metrics-port", "0")
    assert call(monkeypatch, *command) == 0
    assert f"report: {find_latest()}/report.html" in capsys.readouterr().out
    assert call(monkeypatch, *command, "--output", "here") == 0
    assert "report: here/report.html" in capsys.readouterr().out
    assert call(monkeypatch, *command, "--output", "here") == 2
    assert_told(capsys.readouterr().err, "error: … here … --output … --resume")
    assert call(monkeypatch, *command, "--output", "here", "--resume") == 0  # it is complete
    for name in ("build/copied", "copied", f"copied/{find_latest().name}"):
        assert call(monkeypatch, "report", name) == 0
        assert f"{find_latest()}/report.html" in capsys.readouterr().out.replace("\n", "")


def leave_nothing_else(output: str) -> None:
    Path(output).mkdir()
    Path(output, "notes.txt").write_text("mine")


def leave_an_old_report(output: str) -> None:
    run(output)
    Path(output, "run.json").unlink()


@pytest.mark.parametrize(
    ("leave", "is_refused"),
    [
        pytest.param(run, True, id="a complete run"),
        pytest.param(run_until_killed, True, id="a killed run"),
        pytest.param(leave_an_old_report, True, id="a run of an older release"),
        pytest.param(lambda output: Path(output).mkdir(), False, id="nothing"),
        pytest.param(leave_nothing_else, False, id="files of the user"),
    ],
)
def test_output_is_that_folder_and_holds_one_run(
    leave: Callable[[str], object], is_refused: bool
) -> None:
    leave("here")
    before = {path.name: path.read_bytes() for path in Path("here").iterdir()}
    if is_refused:
        with pytest.raises(FolderTaken, match="here"):
            run("here")
        assert {path.name: path.read_bytes() for path in Path("here").iterdir()} == before
    else:
        assert run("here").output == Path("here")
        assert load_summary(Path("here")).run.outcome == "Complete"
        assert not Path("latest").exists()
        assert before.keys() <= {path.name for path in Path("here").iterdir()}


def test_the_parent_of_runs_is_no_output() -> None:
    run()
    with pytest.raises(FolderTaken) as caught:
        run("build/copied")
    assert_told(str(caught.value), "… build/copied … --output …")
    assert "--resume" not in str(caught.value)  # it would not help


def test_runs_that_begin_together_have_different_folders() -> None:
    others: list[Finished] = []

    def start_another(_: int) -> None:
        others.append(run(table="other/"))

    first = run(watcher=Watcher(on_metrics_port=start_another))
    assert first.outcome.kind == others[0].outcome.kind == "Complete"
    assert first.output != others[0].output
    assert load_summary(first.output).output != load_summary(others[0].output).output


@pytest.mark.parametrize("output", ["here", None], ids=["named", "default"])
def test_a_folder_in_use_is_refused(output: str | None) -> None:
    run_until_stopped(output)
    refusals: list[str] = []

    def start_another(_: int) -> None:
        with pytest.raises(FolderTaken) as caught:
            run(output, resume=True)
        refusals.append(str(caught.value))

    resumed = run(output, resume=True, watcher=Watcher(on_metrics_port=start_another))
    assert resumed.outcome.kind == "Complete"
    [refusal] = refusals
    assert_told(refusal, f"… {os.getpid()}")
    assert load_summary(resumed.output).run.outcome == "Complete"


def test_another_output_does_not_continue_a_running_run() -> None:
    run_until_stopped("here")

    def start_another(_: int) -> None:
        with pytest.raises(FolderTaken):
            run("there", resume=True)

    run("here", resume=True, watcher=Watcher(on_metrics_port=start_another))
    assert not Path("there").exists()


@pytest.mark.parametrize("output", ["here", None], ids=["named", "default"])
def test_resume_continues_in_the_folder_of_the_run(output: str | None) -> None:
    stopped = run_until_stopped(output)
    resumed = run(output, resume=True)
    assert resumed.output == stopped.output
    assert resumed.summary.run.attempt == 2
    assert len(list(Path("experiments/copied").iterdir())) == 1
    with pytest.raises(AlreadyComplete):
        run(output, resume=True)
    assert load_summary(stopped.output).run.outcome == "Complete"


def test_resume_starts_a_run_again_that_left_no_attempt() -> None:
    run_until_killed("here")
    for staged in Path("_staging").rglob("run.json"):
        staged.unlink()
    before = read_run_file(Path("here"))
    assert run("here", resume=True).outcome.kind == "Complete"
    after = read_run_file(Path("here"))
    assert before is not None
    assert after is not None
    assert after.run == before.run


@pytest.mark.parametrize("output", ["here", None], ids=["named", "default"])
def test_a_killed_run_has_no_report_of_another_attempt(output: str | None) -> None:
    stopped = run_until_stopped(output).output
    assert (stopped / "report.html").exists()
    run_until_killed(output, resume=True)
    assert {path.name for path in stopped.iterdir()} == PLANNED | {"run.log"}


def test_latest_is_a_killed_run_rather_than_an_older_one() -> None:
    first = run().output
    run_until_killed()
    assert find_latest() != first
    assert {path.name for path in find_latest().iterdir()} == PLANNED


def test_a_run_that_cannot_start_leaves_no_folder() -> None:
    def refuse(_: object) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        run("here", watcher=Watcher(on_prepared=refuse))
    assert not Path("here").exists()
    assert not list(Path().glob("experiments/copied/*"))


@pytest.mark.parametrize("output", ["here", None], ids=["named", "default"])
def test_a_folder_in_use_is_free_later(
    output: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = run_until_stopped(output)
    Path("m.yaml").write_text(yaml.safe_dump(build_document()))
    command = ["run", "-f", "m.yaml", "--storage-root", ".", "--metrics-port", "0", "--resume"]
    command += ["--output", output] if output else []
    with locking(stopped.output):
        assert call(monkeypatch, *command) == 1  # 2 would be final on a cluster
    assert_told(capsys.readouterr().err, f"error: … {stopped.output.name} …")
    assert call(monkeypatch, *command) == 0


class DrainingRunner:
    """Finds the folder in use twice, as long as an old driver writes its checkpoint."""

    tries = 0

    def prepare(self, *_: object) -> str:
        self.tries += 1
        if self.tries < 3:
            raise FolderInUse("in use")
        return "prepared"


@pytest.mark.parametrize(("address", "tries"), [("auto", 3), ("local", 1), ("ray", 1)])
def test_a_cluster_waits_for_an_old_driver(
    folder: Path, monkeypatch: pytest.MonkeyPatch, address: str, tries: int
) -> None:
    monkeypatch.setattr(session, "_POLL_SECONDS", 0.0)
    runner: Any = DrainingRunner()
    claim = FolderClaim(RunOptions(output=folder / "here", address=address, resume=True))
    waits: AbstractContextManager[object] = nullcontext()
    if tries == 1:
        waits = pytest.raises(FolderInUse)
    notes: list[str] = []
    watcher = Watcher(on_reading=lambda reading: notes.extend(reading.notes))
    with waits:
        session._prepare(runner, parse_experiment(build_document()), claim, watcher)
    assert runner.tries == tries
    assert len(notes) == (tries > 1)


@pytest.mark.parametrize(
    ("field", "how"),
    [
        pytest.param("metadata.name", {"name": "experiments", "root": "build"}, id="artifacts"),
        pytest.param("spec.output.parquet.uri", {"table": "build/copied/"}, id="runs"),
        pytest.param("spec.output.parquet.uri", {"table": "build"}, id="above the runs"),
        pytest.param("spec.output.parquet.uri", {"table": "copied/", "root": "build"}, id="root"),
        pytest.param("spec.output.parquet.uri", {"table": "here/", "output": "here"}, id="output"),
        pytest.param("spec.output.parquet.uri", {"table": "experiments/"}, id="stored runs"),
        pytest.param("spec.output.parquet.uri", {"table": "."}, id="source"),
        pytest.param("spec.output.parquet.uri", {"table": "a/", "side": "a/b/"}, id="side table"),
        pytest.param("spec.output.parquet.uri", {"table": "a/b/", "source": "a/"}, id="in source"),
        pytest.param("spec.dataset.parquet.uri", {"source": "build/copied/"}, id="runs in source"),
        pytest.param("spec.dataset.parquet.uri", {"source": "experiments/"}, id="artifacts"),
        pytest.param(
            "spec.pipeline[0].antiJoin.parquet.uri", {"side": "experiments/"}, id="side artifacts"
        ),
    ],
)
def test_places_that_collide_are_refused(field: str, how: dict[str, str]) -> None:
    before = set(Path().rglob("*"))
    with pytest.raises(ManifestError) as caught:
        run(how.pop("output", None), **how)  # type: ignore[arg-type]
    assert field in [problem.path for problem in caught.value.problems]
    assert set(Path().rglob("*")) == before


@pytest.mark.parametrize("how", [{"name": "latest"}, {"table": "build/copied/table/"}])
def test_places_beside_each_other_are_accepted(how: dict[str, str]) -> None:
    for _ in range(2):
        assert run(**how).outcome.kind == "Complete"  # type: ignore[arg-type]


@pytest.mark.parametrize("output", ["experiments", "experiments/copied"])
def test_output_is_not_the_folder_of_artifacts(output: str) -> None:
    with pytest.raises(FolderTaken):
        run(output)


@pytest.mark.parametrize("name", ["run.json", "summary.json", "run.log"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_pipe_in_the_place_of_a_file_is_refused(name: str, resume: bool) -> None:
    Path("here").mkdir()
    os.mkfifo(Path("here", name))
    with pytest.raises(LastmileError, match=f"here/{name}"):
        run("here", resume=resume)
    assert [path.name for path in Path("here").iterdir() if path.stat().st_size == 0] == [name]


def test_a_complete_table_is_not_replaced_by_a_resume_of_an_older_run() -> None:
    run("first")
    newer = run("second")
    with pytest.raises(AlreadyComplete):
        run("first", resume=True)
    assert load_summary(Path("first")).run.outcome == "Complete"
    found = json.loads(Path("second/summary.json").read_text())
    assert found["run"]["runHash"] == newer.summary.run.run_hash


DAMAGED = ["{", '{"version": 2}', json.dumps([]), b"\xff" * 10, "../../outside"]


@pytest.fixture(params=DAMAGED, ids=["torn", "of another version", "a list", "bytes", "a path"])
def damaged(request: pytest.FixtureRequest) -> bytes:
    """The content of a `run.json` that names no run."""
    content = request.param
    if content == DAMAGED[-1]:
        content = RunFile(run=content, artifacts_uri="here", process=1).model_dump_json()
    return content if isinstance(content, bytes) else str(content).encode()


@pytest.mark.parametrize("resume", [False, True])
def test_a_damaged_run_file_keeps_other_runs_out(damaged: bytes, resume: bool) -> None:
    run_until_killed("here")
    Path("here/run.json").write_bytes(damaged)
    before = {path.name: path.read_bytes() for path in Path("here").iterdir()}
    assert read_run_file(Path("here")) is None
    with pytest.raises(FolderTaken):
        run("here", resume=resume)
    assert {path.name: path.read_bytes() for path in Path("here").iterdir()} == before
    assert not Path("outside").exists()


def test_a_run_with_a_damaged_run_file_goes_on(damaged: bytes) -> None:
    stopped = run_until_stopped()
    (stopped.output / "run.json").write_bytes(damaged)
    assert run(resume=True).output == stopped.output
    found = read_run_file(stopped.output)
    assert found is not None
    assert found.run == stopped.output.name


@pytest.mark.parametrize("is_folder", [True, False], ids=["a folder", "a file"])
def test_latest_of_the_user_stays(is_folder: bool) -> None:
    latest = Path("build/copied/latest")
    kept = latest / "kept" if is_folder else latest
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    finished = run()
    assert finished.outcome.kind == "Complete"
    assert kept.read_text() == "mine"
    assert [text for text in finished.summary.warnings if "latest" in text]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same folder", "other folder"])
def test_the_store_keeps_the_log_of_each_attempt(elsewhere: bool) -> None:
    first = run_until_stopped("here")
    if elsewhere:
        shutil.move("here", "before")
    second = run("here", resume=True)
    assert second.output == first.output
    [stored] = Path("experiments/copied").iterdir()
    copies = [path.read_text() for path in sorted((stored / "logs").iterdir())]
    assert len(copies) == 2
    logs = [Path("before/run.log")] if elsewhere else []
    assert "".join(copies) == "".join(log.read_text() for log in [*logs, Path("here/run.log")])
