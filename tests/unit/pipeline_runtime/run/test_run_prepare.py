"""Resuming: attempts of one run id share their checkpoints, and no other run uses them."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from facts import assert_told
from prepared_runs import TABLE, leave_checkpoint, prepare_clicks

from pipeline_runtime import Pipeline
from pipeline_runtime.errors import AlreadyComplete, CheckpointError, StoreError
from pipeline_runtime.report.files.summary import SUMMARY_FILE
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.training.prepare import PreparedRun

RUN_A, RUN_B = "0f3c6c1e-1", "0f3c6c1e-2"
COMPLETE = '{"run": {"outcome": "Complete"}}'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A storage root with a table."""
    (tmp_path / "t").mkdir()
    pq.write_table(TABLE, tmp_path / "t/a.parquet")
    return tmp_path


def prepare(
    root: Path,
    run_id: str | None,
    *,
    resume: bool = True,
    address: str = "local",
    order: bool | None = None,
    **how: int,
) -> PreparedRun:
    options = RunOptions(
        output=root / "out",
        storage_root=str(root),
        resume=resume,
        run_id=run_id,
        address=address,
    )
    pipeline = Pipeline.read_parquet("t/")
    if order is not None:
        pipeline = pipeline.with_options(preserve_order=order)
    return prepare_clicks(pipeline, options, **how)


@pytest.fixture
def left_by_a(root: Path) -> str:
    """Return the URI of a checkpoint of run A."""
    return leave_checkpoint(prepare(root, RUN_A, resume=False))


def test_a_runs_folder_carries_its_id(root: Path) -> None:
    named, plain = prepare(root, RUN_A), prepare(root, None)
    stem = f"{root}/experiments/clicks/20260101T000000Z-{named.identity.run_hash}"
    assert (named.run_location.uri, plain.run_location.uri) == (f"{stem}-{RUN_A}", stem)


def test_an_attempt_of_the_same_id_resumes(root: Path, left_by_a: str) -> None:
    run = prepare(root, RUN_A, minutes=1)
    assert run.resume is not None
    assert (run.resume.uri, run.identity.attempt) == (left_by_a, 2)
    assert left_by_a.startswith(run.run_location.uri)
    assert run.warnings == ()


@pytest.mark.parametrize("batch_size", [2, 4], ids=["equal hash", "another hash"])
@pytest.mark.parametrize("run_id", [RUN_B, "1", "0f3c6c1e", "c1e-1", "other-0f3c6c1e-1"])
def test_checkpoints_of_another_run_are_ignored(
    root: Path, left_by_a: str, run_id: str, batch_size: int
) -> None:
    run = prepare(root, run_id, batch_size=batch_size, minutes=1)
    assert run.resume is None
    assert run.resumed_rows == 0
    assert run.run_location.uri.endswith(f"Z-{run.identity.run_hash}-{run_id}")
    [warning] = run.warnings
    assert_told(warning, f"--resume: … {run_id}")


@pytest.mark.parametrize(
    ("address", "world_size", "order", "is_kept"),
    [
        ("local", 1, None, True),
        ("ray", 1, None, True),
        ("local", 2, None, False),
        ("auto", 1, None, False),
        ("local", 1, False, False),
        ("auto", 2, True, True),
    ],
)
def test_order_is_kept_by_default_for_one_rank_on_one_machine(
    root: Path, address: str, world_size: int, order: bool | None, is_kept: bool
) -> None:
    run = prepare(root, None, address=address, world_size=world_size, order=order)
    assert run.plan.preserve_order is run.identity.preserve_order is is_kept


def test_run_hash_is_that_of_any_machine(root: Path) -> None:
    runs = [prepare(root, None, address=address) for address in ("local", "auto")]
    assert len({run.identity.run_hash for run in runs}) == 1


@pytest.mark.parametrize("address", ["local", "auto"])
@pytest.mark.parametrize("first", ["local", "auto"])
def test_a_resumed_run_keeps_the_order_of_its_checkpoint(
    root: Path, first: str, address: str
) -> None:
    leave_checkpoint(prepare(root, RUN_A, resume=False, address=first))
    run = prepare(root, RUN_A, address=address, minutes=1)
    assert run.resume is not None
    assert run.plan.preserve_order is run.identity.preserve_order is (first == "local")


def test_another_number_of_ranks_cannot_keep_the_order(root: Path, left_by_a: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        prepare(root, RUN_A, world_size=2, minutes=1)
    assert_told(str(raised.value), f"{left_by_a}: preserveOrder: … 1 … 2 … preserveOrder: false")
    run = prepare(root, RUN_A, world_size=2, minutes=1, order=False)
    assert (run.resume is not None, run.plan.preserve_order) == (True, False)


def test_another_complete_run_does_not_complete_this_one(root: Path, left_by_a: str) -> None:
    (Path(left_by_a).parents[1] / SUMMARY_FILE).write_text(COMPLETE)
    assert prepare(root, RUN_B, minutes=1).resume is None
    with pytest.raises(AlreadyComplete):
        prepare(root, RUN_A, minutes=1)


def test_an_unfinished_checkpoint_is_ignored(root: Path, left_by_a: str) -> None:
    (Path(left_by_a) / "checkpoint.json").unlink()  # which is written last
    assert prepare(root, RUN_A, minutes=1).resume is None


def test_a_damaged_checkpoint_alone_does_not_start_anew(root: Path, left_by_a: str) -> None:
    (Path(left_by_a) / "state.pt").write_bytes(b"half")
    with pytest.raises(StoreError, match=re.escape(left_by_a)):
        prepare(root, RUN_A, minutes=1)


def test_a_damaged_checkpoint_is_skipped_with_a_warning(root: Path, left_by_a: str) -> None:
    newer = leave_checkpoint(prepare(root, RUN_A, minutes=1))
    state = Path(newer) / "state.pt"
    state.write_bytes(bytes(len(state.read_bytes())))
    run = prepare(root, RUN_A, minutes=2)
    assert run.resume is not None
    assert run.resume.uri == left_by_a
    assert run.damaged_checkpoints == (newer,)
    [warning] = run.warnings
    assert_told(warning, f"--resume: … 1 … {left_by_a} … {newer}")


def test_an_id_is_refused_for_another_manifest(root: Path, left_by_a: str) -> None:
    with pytest.raises(CheckpointError, match=r"training\.batchSize: 2 → 4"):
        prepare(root, RUN_A, batch_size=4, minutes=1)


def test_without_an_id_every_run_of_the_name_counts(root: Path, left_by_a: str) -> None:
    run = prepare(root, None, minutes=1)
    assert run.resume is not None
    assert run.resume.uri == left_by_a
    with pytest.raises(CheckpointError, match=r"training\.batchSize: 2 → 4"):
        prepare(root, None, batch_size=4, minutes=1)
