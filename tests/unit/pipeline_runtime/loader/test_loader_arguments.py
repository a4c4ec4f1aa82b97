"""Arguments: habits of other loaders get advice, and what a loader cannot do is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline
from pipeline_runtime.errors import LoaderError, ManifestError

HABITS = {
    "num_workers": "num_threads",
    "pin_memory": "device",
    "collate_fn": "map",
    "drop_last": "last_batch",
    "sampler": "shuffle",
    "batch_sampler": "shuffle",
    "generator": "seed",
    "persistent_workers": "threads",
    "prefetch_factor": "memory",
    "worker_init_fn": "threads",
    "dataset": "pipeline",
    "ray": "Pipeline.train",
    "batchsize": "batch_size",
}


@pytest.mark.parametrize(("habit", "instead"), HABITS.items())
def test_a_habit_of_another_loader_gets_advice(
    pipeline: Pipeline, habit: str, instead: str
) -> None:
    with pytest.raises(TypeError, match=f"{habit}: .*{instead}"):
        pipeline.loader(64, **{habit: 1})


def test_all_wrong_arguments_are_told_at_once(pipeline: Pipeline) -> None:
    with pytest.raises(TypeError, match=r"(?s)num_workers.*sampler"):
        pipeline.loader(64, num_workers=2, sampler=None)


@pytest.mark.parametrize(
    ("arguments", "error", "fact"),
    [
        ({"batch_size": 0}, ValueError, "batch_size: .* at least 1"),
        ({"batch_size": -1}, ValueError, "batch_size: .* at least 1"),
        ({"batch_size": None}, TypeError, "batch_size: .*one by one"),
        ({"batch_size": True}, TypeError, "batch_size"),
        ({"batch_size": 8.0}, TypeError, "batch_size"),
        ({"batch_size": 10**9}, ManifestError, "^batch_size: "),
        ({"batch_size": 8, "seed": None}, TypeError, "seed"),
        ({"batch_size": 8, "seed": -1}, ValueError, "seed"),
        ({"batch_size": 8, "shuffle": 3}, TypeError, "shuffle"),
        ({"batch_size": 8, "distributed": "yes"}, TypeError, "distributed"),
        ({"batch_size": 8, "deduplicated": 1}, TypeError, "deduplicated"),
        ({"batch_size": 8, "num_threads": "4"}, TypeError, "num_threads"),
        ({"batch_size": 8, "num_threads": True}, TypeError, "num_threads"),
        ({"batch_size": 8, "num_threads": 2.0}, TypeError, "num_threads"),
        ({"batch_size": 8, "columns": ["y"]}, ManifestError, "^columns: .*'y'"),
        ({"batch_size": 8, "columns": []}, ManifestError, "^columns: "),
        ({"batch_size": 8, "columns": ["x", "x"]}, ManifestError, "^columns: "),
        ({"batch_size": 8, "columns": [3]}, TypeError, "^columns: "),
        ({"batch_size": 8, "columns": 5}, TypeError, "^columns: "),
        ({"batch_size": 8, "seed": 1 << 80}, ManifestError, "^seed: "),
        ({"batch_size": 8, "columns": "name"}, ManifestError, "^columns: .*hashBucket"),
        ({"batch_size": 8, "shuffle": "rows"}, ValueError, "^shuffle: .*'request'"),
        (
            {"batch_size": 8, "shuffle": {"window": 3}},
            ManifestError,
            r"shuffle\['window'\].*window_rows",
        ),
        ({"batch_size": 8, "shuffle": {"unit": "bag"}}, ManifestError, r"shuffle\['unit'\]"),
        (
            {"batch_size": 8, "shuffle": {"window_rows": 0}},
            ManifestError,
            r"shuffle\['window_rows'\]",
        ),
        (
            {"batch_size": 8, "shuffle": "request"},
            ManifestError,
            "^shuffle: .*request_key of read_parquet",
        ),
        ({"batch_size": 8, "last_batch": "fill"}, ValueError, "last_batch"),
        ({"batch_size": 8, "num_threads": 0}, ValueError, "num_threads"),
        ({"batch_size": 8, "device": "abacus"}, ValueError, "^device: .*abacus"),
        ({"batch_size": 8, "device": "cuda:99"}, ValueError, "^device: .*cuda:99"),
        ({"batch_size": 8, "device": ["cpu"]}, ValueError, "^device: "),
    ],
)
def test_a_wrong_value_is_refused_before_any_row_is_read(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], fact: str
) -> None:
    pq.write_table(pa.table({"x": [1], "name": ["a"]}), tmp_path / "t.parquet")
    with pytest.raises(error, match=fact):
        Pipeline.read_parquet("t.parquet").loader(**arguments, storage_root=str(tmp_path))


@pytest.mark.parametrize("options", [{"resources": {"cpu": 2}}, {"concurrency": 1}])
def test_steps_with_workers_of_their_own_are_refused(
    pipeline: Pipeline, options: dict[str, Any]
) -> None:
    apart = pipeline.map(copy.copy, **options)
    with pytest.raises(LoaderError, match=r"pipeline\[0\] \(map .*resources.*Pipeline\.train"):
        apart.loader(64)


def test_steps_that_are_not_fused_are_refused(pipeline: Pipeline) -> None:
    with pytest.raises(LoaderError, match="fusion"):
        pipeline.filter("even").with_options(fusion=False).loader(64)


def test_numbers_of_numpy_and_a_shuffle_of_none_are_as_plain_ones(pipeline: Pipeline) -> None:
    loader = pipeline.loader(np.int64(100), ["x"], shuffle=None, num_threads=np.int32(1))
    assert [batch["x"][0].item() for batch in loader] == list(range(0, 1000, 100))
    loader.set_epoch(np.int64(3))
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 3


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(-1, ValueError), (None, TypeError), ("1", TypeError), (1.0, TypeError), (True, TypeError)],
)
def test_an_epoch_is_a_number_from_zero(
    pipeline: Pipeline, epoch: Any, error: type[Exception]
) -> None:
    loader = pipeline.loader(100)
    with pytest.raises(error, match=r"epoch: .*at least 0|epoch: .*whole"):
        loader.set_epoch(epoch)
    assert loader.epoch == 0


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
def test_a_column_with_the_name_of_the_weight_of_padding_is_refused(
    pipeline: Pipeline, last_batch: Any
) -> None:
    clashing = pipeline.derive(row_weight="x * 2")
    with pytest.raises(ManifestError, match=r"'row_weight'.*rename"):
        clashing.loader(100, last_batch=last_batch)
    assert len(list(clashing.loader(100, ["x"], last_batch=last_batch))) == 10


def test_ranks_that_do_not_know_of_each_other_are_warned(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="init_process_group") as caught:
        assert len(list(pipeline.loader(100))) == 10
    assert caught[0].filename == __file__
    assert len(list(pipeline.loader(100, distributed=False))) == 10
    for size in ("1", "", "many"):
        monkeypatch.setenv("WORLD_SIZE", size)
        assert len(list(pipeline.loader(100))) == 10
