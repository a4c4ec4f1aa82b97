"""A store failure during the preparation of a run is retried, never taken as final."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from failing_store import FAILURES, AwayFileSystem, ClientError, failing, store_in_memory
from prepared_runs import TABLE, leave_checkpoint, prepare_clicks

from pipeline_runtime import Pipeline
from pipeline_runtime.cli.failures import exit_code_of
from pipeline_runtime.config.texts.storage_uri import SCHEMES_VARIABLE
from pipeline_runtime.errors import LastmileError, ManifestError, StoreError
from pipeline_runtime.report.files.summary import SUMMARY_FILE
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.training.prepare import PreparedRun

EXIT_RETRIED = 3
BROKEN_FOOTER = b"PAR1" + b"\xff" * 30 + (30).to_bytes(4, "little") + b"PAR1"
READS_AT_IMPORT = {
    "store does not answer": ("raise ConnectionResetError('reset')", StoreError),
    "file does not exist": ("open('/nonexistent/vocabulary')", ManifestError),
}

names_of = [type(error).__name__ for error in FAILURES]


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwayFileSystem]:
    monkeypatch.setenv(SCHEMES_VARIABLE, "away")
    with store_in_memory() as store:
        for path in ("t/a.parquet", "spam/a.parquet"):
            store.makedirs(f"/lake/{path}".rpartition("/")[0], exist_ok=True)
            with store.open(f"/lake/{path}", "wb") as file:
                pq.write_table(TABLE, file)
        yield store


def prepare(out: Path, *, resume: bool = True, minutes: int = 0) -> PreparedRun:
    pipeline = Pipeline.read_parquet("t/").anti_join("spam/", on=["user"])
    options = RunOptions(output=out, storage_root="away://lake", resume=resume, run_id="r-1")
    return prepare_clicks(pipeline, options, minutes=minutes)


@pytest.mark.parametrize("error", FAILURES, ids=names_of)
@pytest.mark.parametrize(
    "what",
    [
        pytest.param("lake", id="the whole store"),
        pytest.param("lake/t", id="the table's listing"),
        pytest.param("lake/t/a.parquet", id="the table's footer"),
        pytest.param("lake/spam", id="the side table's listing"),
        pytest.param("lake/spam/a.parquet", id="the side table's footer"),
        pytest.param("lake/experiments/clicks", id="the experiment's folder"),
        pytest.param("/checkpoints", id="the listing of checkpoints"),
        pytest.param("checkpoint.json", id="a checkpoint's header"),
        pytest.param("state.pt", id="a checkpoint's state"),
        pytest.param(SUMMARY_FILE, id="the report"),
    ],
)
def test_a_store_that_fails_is_retried(
    tmp_path: Path, away: AwayFileSystem, what: str, error: Exception
) -> None:
    left = leave_checkpoint(prepare(tmp_path, resume=False))
    with failing(error, what), pytest.raises(StoreError) as caught:
        prepare(tmp_path, minutes=1)
    assert exit_code_of(type(caught.value).__name__) == EXIT_RETRIED
    resumed = prepare(tmp_path, minutes=2).resume
    assert resumed is not None
    assert resumed.uri == left


@pytest.mark.parametrize("error", FAILURES, ids=names_of)
def test_a_refused_checkpoint_is_a_store_error(
    tmp_path: Path, away: AwayFileSystem, error: Exception
) -> None:
    run = prepare(tmp_path, resume=False)
    with failing(error, "checkpoints"), pytest.raises(StoreError):
        leave_checkpoint(run)
    assert run.store.headers() == []
    leave_checkpoint(run)
    [header] = run.store.headers()
    with failing(error, "state.pt"), pytest.raises(StoreError):
        run.store.load(header)
    with failing(error, "step-"), pytest.raises(StoreError):
        run.store.remove_old(header.uri)


def test_a_run_without_a_checkpoint_starts_from_the_beginning(
    tmp_path: Path, away: AwayFileSystem
) -> None:
    run = prepare(tmp_path)
    assert run.resume is None
    [warning] = run.warnings
    assert "--resume" in warning


@pytest.mark.parametrize("content", [None, BROKEN_FOOTER], ids=["missing", "corrupt"])
def test_a_missing_or_corrupt_side_table_breaks_the_manifest(
    tmp_path: Path, away: AwayFileSystem, content: bytes | None
) -> None:
    away.rm("/lake/spam/a.parquet")
    if content is not None:
        away.pipe_file("/lake/spam/a.parquet", content)
    with pytest.raises(ManifestError, match="spam"):
        prepare(tmp_path)


@pytest.mark.parametrize(("module", "kind"), READS_AT_IMPORT.values(), ids=READS_AT_IMPORT)
def test_a_module_whose_store_fails_is_retried(
    module: str,
    kind: type[LastmileError],
    tmp_path: Path,
    away: AwayFileSystem,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "reads_at_import.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    pipeline = Pipeline.read_parquet("t/").map(
        "reads_at_import:f", input_columns=["user"], output_columns={"user": "int64"}
    )
    options = RunOptions(output=tmp_path, storage_root="away://lake")
    with pytest.raises(kind, match="reads_at_import"):
        prepare_clicks(pipeline, options)


def test_a_store_raises_only_lastmile_errors(tmp_path: Path, away: AwayFileSystem) -> None:
    with failing(ClientError("no endpoint"), ""), pytest.raises(LastmileError):
        prepare(tmp_path)
