"""Arguments: habits of other loaders get advice, and what a loader cannot do is refused."""

import copy
from pathlib import Path
from typing import Any

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
        ({"batch_size": 0}, ManifestError, "batchSize"),
        ({"batch_size": 8, "columns": ["y"]}, ManifestError, "'y'"),
        ({"batch_size": 8, "columns": "name"}, ManifestError, "hashBucket"),
        ({"batch_size": 8, "shuffle": "rows"}, ManifestError, "shuffle.unit"),
        ({"batch_size": 8, "shuffle": {"window": 3}}, ManifestError, "shuffle.window"),
        ({"batch_size": 8, "shuffle": "request"}, ManifestError, "requestKey"),
        ({"batch_size": 8, "last_batch": "fill"}, ValueError, "last_batch"),
        ({"batch_size": 8, "num_threads": 0}, ValueError, "num_threads"),
        ({"batch_size": 8, "device": "abacus"}, RuntimeError, "abacus"),
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
