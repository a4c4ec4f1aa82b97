"""A function as the entrypoint of `Pipeline.train`, as notebooks give one."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline_runtime import Pipeline
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import ManifestError, TrainingError
from pipeline_runtime.training.entrypoint import check_function


def count_steps(ctx: Any) -> None:
    """Train nothing, and save at the end of each epoch."""
    for _ in ctx.epochs():
        for _ in ctx.batches():
            ctx.report({"loss": 1.0})
        ctx.report({"eval_auc": 0.5}, {"step": ctx.step})


def count_other_steps(ctx: Any) -> None:
    count_steps(ctx)


def two_arguments(ctx: Any, other: Any) -> None: ...


class Callables:
    def __call__(self, ctx: Any) -> None: ...

    def method(self, ctx: Any) -> None: ...


def make_closure() -> Callable[[Any], None]:
    rate = 0.1

    def loop(ctx: Any) -> None:
        print(rate)

    return loop


def make_without_source() -> Callable[[Any], None]:
    names: dict[str, Any] = {}
    exec("def loop(ctx): ...", names)
    function: Callable[[Any], None] = names["loop"]
    return function


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "t.parquet")
    return Pipeline.read_parquet(str(tmp_path / "t.parquet"))


def test_a_function_trains_and_its_source_makes_the_run(pipeline: Pipeline) -> None:
    ended = [
        pipeline.train("f", entrypoint=each, batch_size=10, output=f"out-{index}", epochs=2)
        for index, each in enumerate([count_steps, count_steps, count_other_steps])
    ]
    assert [each.outcome.kind for each in ended] == ["Complete"] * 3, ended[0].outcome
    summaries = [each.summary for each in ended]
    assert [each.training.steps for each in summaries] == [20] * 3
    assert [len(each.training.evaluations) for each in summaries] == [2] * 3
    hashes = [each.run.run_hash for each in summaries]
    assert hashes[0] == hashes[1] != hashes[2]
    manifest = (ended[0].output / "manifest.yaml").read_text()
    assert "#     for _ in ctx.epochs():\n" in manifest
    with pytest.raises(ManifestError, match="entrypoint"):
        parse_experiment(yaml.safe_load(manifest))


@pytest.mark.parametrize("use", ["to_yaml", "document", "experiment"])
def test_a_manifest_cannot_hold_a_function(use: str, pipeline: Pipeline) -> None:
    with pytest.raises(ManifestError, match=r"spec\.training\.entrypoint") as refused:
        getattr(pipeline, use)("f", entrypoint=count_steps)
    assert "count_steps" in str(refused.value)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        pytest.param(lambda ctx: None, "lambda", id="a lambda"),
        pytest.param(make_closure(), "'rate'", id="a closure"),
        pytest.param(make_without_source(), "source", id="without source"),
        pytest.param(functools.partial(two_arguments, other=1), "partial", id="a partial"),
        pytest.param(Callables(), "Callables", id="an object"),
        pytest.param(Callables().method, "method", id="a method"),
        pytest.param(print, "builtin", id="a builtin"),
        pytest.param(two_arguments, "one argument", id="two arguments"),
    ],
)
def test_only_a_function_known_by_its_source_is_taken(
    function: Any, named: str, pipeline: Pipeline
) -> None:
    with pytest.raises(TrainingError, match="entrypoint: ") as refused:
        pipeline.train("f", entrypoint=function)
    assert named in str(refused.value)


def test_the_hash_ignores_where_a_function_is_indented() -> None:
    path = check_function(count_steps).path
    assert path == check_function(count_steps).path
    assert path.startswith("__function__:count_steps_")
