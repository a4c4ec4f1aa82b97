"""A profile of a small real table, in this process: what is measured, and what is refused."""

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from facts import assert_told

from pipeline_runtime.config import DatasetExperiment, hash_parts
from pipeline_runtime.errors import ManifestError, TrainingError
from pipeline_runtime.pipeline import Pipeline
from pipeline_runtime.profiling.document import Profile
from pipeline_runtime.profiling.session import ProfileOptions, profile_experiment

Make = Callable[..., DatasetExperiment]


@pytest.fixture(autouse=True)
def _sample_without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample ends at its rows here: on a busy machine a share of 0.2 s may be one row group."""
    monkeypatch.setattr("pipeline_runtime.profiling.session._SAMPLE_SHARE", 1e6)


def profile(experiment: DatasetExperiment, root: Path, rows: int = 10_000) -> Profile:
    # So short that the fewest rounds and passes are made, however slow the machine is.
    options = ProfileOptions(seconds=0.2, rows=rows, storage_root=str(root))
    return profile_experiment(experiment, options)


def test_every_row_is_counted_and_every_rate_is_of_whole_repetitions(
    experiment: Make, tmp_path: Path
) -> None:
    found = profile(experiment(), tmp_path)
    assert (found.sample.rows, found.sample.samples, found.sample.row_groups) == (2000, 2000, 5)
    assert [step.kind for step in found.steps] == ["read", "filter", "handOver"]
    assert sum(step.share for step in found.steps) == pytest.approx(1)
    assert found.reading.columns == 2  # x and y; z reaches nothing
    assert found.trainer.batches == 64
    assert found.spec_hashes == hash_parts(experiment())
    trainer = found.trainer
    parts = (trainer.model_ratio, trainer.batching_ratio, trainer.collate_ratio)
    assert sum(parts) + trainer.transfer_ratio == pytest.approx(1)
    for rate in (found.reading.rows_per_second, found.need.reader, trainer.intake):
        assert 0 < rate.low <= rate.median <= rate.high
        assert rate.times >= 3


def test_bytes_are_those_of_the_columns_in_use(
    experiment: Make, table: pa.Table, tmp_path: Path
) -> None:
    found = profile(experiment(where="x % 4 = 0"), tmp_path)
    sizes = {hop.name: hop.bytes_per_sample for hop in found.hops}
    # A row is 16 bytes and an identity of 8; it has no nulls. One in four reaches the model; a
    # batch has 4 bytes of weight and no identity.
    assert sizes["decoded"] == 4 * (16 + 8)
    assert sizes["after the steps"] == 24
    assert sizes["batch on cpu"] == 20
    # Packed, a row has its 8 bytes of identity besides; a chunk has a header.
    assert 28 < sizes["packed"] < 60
    assert 0 < sizes["packed, by zstd"] < sizes["packed"]
    assert 0 < sizes["packed, by lz4"] < sizes["packed"]
    assert 0 < sizes["storage"] < sizes["decoded"]
    assert {column.name for column in found.columns} == {"x", "y"}
    assert sum(column.bytes_ratio for column in found.columns) == pytest.approx(1)


def test_a_sample_ends_at_its_rows(experiment: Make, tmp_path: Path) -> None:
    sample = profile(experiment(shuffle={"windowRows": 400}), tmp_path, rows=500).sample
    assert (sample.row_groups, sample.rows, sample.rows_left) == (2, 800, 2000)


def test_a_sample_ends_with_its_time_but_has_one_row_group(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline_runtime.profiling.session._SAMPLE_SHARE", 0)
    sample = profile(experiment(shuffle={"windowRows": 400}), tmp_path).sample
    assert (sample.row_groups, sample.rows, sample.rows_left) == (1, 400, 2000)


def test_the_loop_sees_64_batches_again_and_again_and_leaves_nothing(
    experiment: Make, tmp_path: Path
) -> None:
    before = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in str(path))
    profile(experiment(checkpoint={"everySteps": 1}), tmp_path)
    seen = sys.modules["profile_loops"].SEEN
    assert [step for step, _, _ in seen] == list(range(1, len(seen) + 1))
    assert {size for _, size, _ in seen} == {100, 50}  # halves say what a step's own cost is
    assert len({total for _, size, total in seen if size == 50}) == 64
    assert sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in str(p)) == before


def test_what_a_request_shares_is_in_a_batch_once(loops: str, tmp_path: Path) -> None:
    rows = {
        "x": list(range(800)),
        "request": [i // 20 for i in range(800)],
        "items": [[i // 20] * 50 for i in range(800)],
    }
    (tmp_path / "requests").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "requests" / "a.parquet")
    table = Pipeline.read_parquet("requests/", request_key="request", request_columns=["items"])

    def batch_bytes(*, deduplicated: bool) -> float:
        training = {"batch_size": 100, "columns": ["x", "items"], "shuffle": {"unit": "none"}}
        made = table.experiment(
            "shared", entrypoint=f"{loops}:steps", deduplicated=deduplicated, **training
        )
        return profile(made, tmp_path).trainer.batch_bytes_per_sample

    assert batch_bytes(deduplicated=True) < batch_bytes(deduplicated=False) / 4


def test_a_loop_that_keeps_to_whole_batches_gets_no_other(experiment: Make, tmp_path: Path) -> None:
    found = profile(experiment(last_batch="drop"), tmp_path)
    assert {size for _, size, _ in sys.modules["profile_loops"].SEEN} == {100}
    assert found.trainer.fixed_seconds is None


def test_a_table_smaller_than_a_batch_is_one(experiment: Make, tmp_path: Path) -> None:
    assert profile(experiment(batch_size=5000), tmp_path).trainer.batch_rows == 2000


def test_what_a_loop_does_to_its_batch_is_not_seen_again(experiment: Make, tmp_path: Path) -> None:
    assert profile(experiment("writes_to_its_batch"), tmp_path).trainer.batches == 64


def test_threads_are_as_many_as_before(experiment: Make, tmp_path: Path) -> None:
    before = pa.cpu_count(), torch.get_num_threads()
    try:
        pa.set_cpu_count(3)
        torch.set_num_threads(2)
        profile(experiment(), tmp_path)
        assert (pa.cpu_count(), torch.get_num_threads()) == (3, 2)
    finally:
        pa.set_cpu_count(before[0])
        torch.set_num_threads(before[1])


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        pytest.param("raises", "ValueError: the user's own mistake\n", id="raises"),
        pytest.param("exits", "exit code 3", id="exits"),
        pytest.param("leaves_early", "batches", id="leaves"),
    ],
)
def test_an_entrypoint_that_fails_is_one_error(
    experiment: Make, tmp_path: Path, entrypoint: str, message: str
) -> None:
    with pytest.raises(TrainingError) as caught:
        profile(experiment(entrypoint), tmp_path)
    assert message in str(caught.value)
    assert f"spec.training.entrypoint: profile_loops:{entrypoint}" in str(caught.value)


def test_an_unknown_entrypoint_is_a_problem_of_its_field(experiment: Make, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"spec\.training\.entrypoint: .*'nowhere'"):
        profile(experiment("nowhere"), tmp_path)


def test_a_sample_without_a_row_for_the_model_is_refused(experiment: Make, tmp_path: Path) -> None:
    made = experiment(where="x % 2 = 0 and y * 2 > 2")
    with pytest.raises(TrainingError) as caught:
        profile(made, tmp_path, rows=1)
    assert_told(str(caught.value), "… 4,000 … spec.pipeline[0] … filter")


def test_a_sample_too_small_to_have_one_says_so(experiment: Make, tmp_path: Path) -> None:
    made = experiment(where="x % 4000 = 17", shuffle={"windowRows": 400, "unit": "none"})
    found = profile(made, tmp_path)
    assert found.sample.samples == 1
    made = experiment(where="x % 4000 = 3999", shuffle={"windowRows": 400, "unit": "none"})
    with pytest.raises(TrainingError, match=r"4,000.*--rows"):
        profile(made, tmp_path, rows=1)
