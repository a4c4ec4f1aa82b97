"""The fluent API: every method writes what a manifest would say, and pipelines are values."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic.alias_generators import to_camel

from pipeline_runtime import Pipeline
from pipeline_runtime.config import load_manifests
from pipeline_runtime.config.steps import list_kinds
from pipeline_runtime.errors import ManifestError, StepError
from pipeline_runtime.step_methods import StepMethods

EVERY_STEP = (
    Pipeline.read_parquet("t/", row_key="id")
    .filter("x > 0")
    .derive(y="x * 2")
    .anti_join("spam/", on="user", where="bad", maxBytes=1000)
    .join("items/", on=["item"], how="inner", columns="price")
    .downsample(10, where="not label", seed=3, weight_column="w")
    .sample(50, by="user", seed=4)
    .weight("w", "price")
    .rename({"a": "b"})
    .select("a", "b")
    .drop("a")
    .cast(x="float32")
    .fill_null(x=0, s="none")
    .pad_sequence("items", length=8, value=-1)
    .truncate("items", length=4, keep="tail")
    .hash_bucket("user", buckets=100, seed=5)
    .map("my_module:my_function", options={"k": 1}, format="numpy", input_columns=["b"])
    .predict(
        {
            "name": "m",
            "experiment_ref": {"name": "quickstart"},
            "outputs": [{"name": "score", "type": "float32"}],
        },
        batch_size=10,
    )
    .embed(engine="onnx", source="minilm/", column="s", vector="fixed_size_list<float32>[4]")
)


def test_there_is_a_method_for_every_kind_of_step() -> None:
    methods = [name for name in vars(StepMethods) if not name.startswith("_")]
    assert [to_camel(name) for name in methods] == list_kinds()
    assert vars(Pipeline).keys().isdisjoint(methods)  # else the step could not be added


def test_what_the_methods_write_is_a_valid_manifest(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(EVERY_STEP.to_yaml("all", batch_size=64, checkpoint={"everySteps": 5}))
    loaded = load_manifests(path)[0].experiment
    assert loaded == EVERY_STEP.experiment("all", batch_size=64, checkpoint={"everySteps": 5})
    assert loaded.spec.training.batch_size == 64
    assert [step.kind for step in loaded.spec.pipeline] == [next(iter(s)) for s in EVERY_STEP.steps]


def test_side_tables_take_what_a_manifest_takes() -> None:
    s3 = {"endpoint": "http://127.0.0.1:9", "anonymous": True}
    pipeline = (
        Pipeline.read_parquet(
            ["a/", "b/"], request_key="request", request_columns="user", s3={"region": "eu-1"}
        )
        .join("items/", left_on="item", right_on=["id"], s3=s3, max_bytes=1000)
        .anti_join(["spam/", "bots/"], "user", where="bad")
        .derive({"a-b": "x"}, y="x * 2")
        .cast({"a-b": "int8"})
        .fill_null({"a-b": 0}, y=1)
    )
    spec = pipeline.experiment("all", batch_size=64).spec
    join, anti_join = spec.pipeline[0].join, spec.pipeline[1].anti_join
    assert join is not None
    assert anti_join is not None
    assert (join.left_keys, join.right_keys, join.max_bytes) == (("item",), ("id",), 1000)
    assert join.parquet is not None
    assert join.parquet.s3 is not None
    assert join.parquet.s3.anonymous
    assert anti_join.parquet is not None
    assert anti_join.parquet.locations == ("spam/", "bots/")
    assert spec.dataset.request_columns == ("user",)
    assert spec.dataset.parquet is not None
    assert spec.dataset.parquet.s3 is not None
    assert pipeline.steps[2]["derive"]["columns"] == [
        {"name": "a-b", "expression": "x"},
        {"name": "y", "expression": "x * 2"},
    ]


@pytest.mark.parametrize(
    ("feed", "unit", "window"),
    [("ray_data", "none", "window_rows"), ("RayData", "None", "windowRows")],
    ids=["as in Python", "as in a manifest"],
)
def test_options_have_two_spellings(feed: str, unit: str, window: str) -> None:
    pipeline = Pipeline.read_parquet("t/").truncate("x", length=1, keep="tail")
    pipeline = pipeline.with_options(feed=feed, compression="lz4")
    spec = pipeline.experiment("a", shuffle={"unit": unit, window: 7}, last_batch="drop").spec
    assert (spec.pipeline_options.feed, spec.pipeline_options.compression) == ("RayData", "lz4")
    assert (spec.training.shuffle.unit, spec.training.shuffle.window_rows) == ("None", 7)
    assert spec.training.last_batch == "Drop"
    assert pipeline.steps[0]["truncate"]["keep"] == "Tail"


def test_the_last_step_may_have_a_name() -> None:
    pipeline = Pipeline.read_parquet("t/").downsample(50).named("thin").filter("x > 1")
    assert [step.get("name") for step in pipeline.steps] == ["thin", None]
    assert [step.kind for step in pipeline.experiment("a").spec.pipeline] == [
        "downsample",
        "filter",
    ]
    with pytest.raises(StepError, match="thin"):
        Pipeline.read_parquet("t/").named("thin")


def test_models_may_be_called_by_inference_workers() -> None:
    model = {
        "name": "m",
        "function": "my_models:load",
        "inputs": ["x"],
        "outputs": [{"name": "score", "type": "float32"}],
        "worker_group": "large",
    }
    pipeline = Pipeline.read_parquet("t/").predict(model)
    with pytest.raises(ManifestError, match="large"):
        pipeline.experiment("a")
    pipeline = pipeline.with_inference_workers("large", max_replicas=9)
    pipeline = pipeline.with_inference_workers("large", max_replicas=2, gpus_per_replica=0)
    [group] = pipeline.experiment("a").spec.inference_workers
    assert (group.name, group.max_replicas, group.gpus_per_replica) == ("large", 2, 0)


def test_switches_of_single_optimisations_go_to_debug() -> None:
    pipeline = Pipeline.read_parquet("t/").with_options(fusion=False, rows_per_block=7)
    pipeline = pipeline.with_options(readAhead=False, rows_per_block=8)
    assert pipeline.options == {"rowsPerBlock": 8, "debug": {"fusion": False, "readAhead": False}}
    pipeline = pipeline.with_options(debug={"kernels": False}, read_ahead=True)
    switches = {"fusion": False, "readAhead": True, "kernels": False}
    assert pipeline.options == {"rowsPerBlock": 8, "debug": switches}
    pipeline.experiment("switches")


def test_numbers_are_written_as_a_manifest_has_them() -> None:
    pipeline = (
        Pipeline.read_parquet("t/")
        .downsample(0.5)
        .sample(5.0)
        .fill_null(a=0.25, b=2**60, c=True, d="x", e=1e300)
        .pad_sequence("x", length=3, value=-1.5)
    )
    steps = pipeline.steps
    assert steps[0]["downsample"]["keepPercent"] == "0.5"
    assert steps[1]["sample"]["keepPercent"] == 5
    constants = [column["value"] for column in steps[2]["fillNull"]["columns"]]
    assert constants == ["0.25", str(2**60), True, "x", "1E+300"]
    assert steps[3]["padSequence"]["value"] == "-1.5"
    pipeline.experiment("numbers", evaluation={"holdout_percent": 2.5})


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ({"on": "a"}, ["a"]),
        ({"on": ["a", {"left": "b", "right": "c"}]}, ["a", {"left": "b", "right": "c"}]),
        ({"on": {"a": "b"}}, [{"left": "a", "right": "b"}]),
        ({"keys": "a"}, ["a"]),
        ({"keys": ("a", "b")}, ["a", "b"]),
        ({"keys": [{"left": "a", "right": "b"}]}, [{"left": "a", "right": "b"}]),
        ({"keys": {"a": "b"}}, [{"left": "a", "right": "b"}]),
        ({"left_on": "a", "right_on": ["b"]}, [{"left": "a", "right": "b"}]),
    ],
)
def test_the_key_of_a_join_can_be_given_as(key: dict[str, Any], keys: list[Any]) -> None:
    table = Pipeline.read_parquet("t/")
    steps = (*table.join("side/", **key).steps, *table.anti_join("side/", **key).steps)
    assert [body["keys"] for step in steps for body in step.values()] == [keys, keys]
    assert table.join("side/", **key).experiment("x")


@pytest.mark.parametrize(
    "key",
    [
        {},
        {"on": "a", "left_on": "a", "right_on": "b"},
        {"on": "a", "keys": "a"},
        {"on": "a", "left_on": "a"},
        {"keys": "a", "right_on": "a"},
        {"left_on": "a"},
        {"right_on": "a"},
        {"left_on": ["a", "b"]},
        {"left_on": ["a", "b"], "right_on": "a"},
        {"leftOn": "a", "rightOn": "b"},
        {"using": "a"},
    ],
)
@pytest.mark.parametrize("method", [Pipeline.join, Pipeline.anti_join])
def test_a_join_without_one_key_is_refused(
    method: Callable[..., Pipeline], key: dict[str, Any]
) -> None:
    with pytest.raises(StepError, match="left_on"):
        method(Pipeline.read_parquet("t/"), "side/", **key)


@pytest.mark.parametrize("function", [lambda table: table, functools.partial(yaml.safe_load)])
def test_a_function_that_workers_could_not_import_is_refused(
    function: Callable[..., object],
) -> None:
    with pytest.raises(StepError, match="module"):
        Pipeline.read_parquet("t/").map(function)


def test_a_method_leaves_the_pipeline_it_was_called_on_as_it_was() -> None:
    base = Pipeline.read_parquet("t/")
    longer = base.filter("x > 1")
    assert base.steps == ()
    assert len(longer.steps) == 1


def test_a_mistake_is_reported_as_in_a_manifest() -> None:
    with pytest.raises(ManifestError, match=r"spec\.pipeline\[0\]\.downsample\.keepPercent: "):
        Pipeline.read_parquet("t/").downsample(101).experiment("x")
    with pytest.raises(
        ManifestError, match=r"spec\.pipelineOptions\.preserve_ordr: .*preserveOrder"
    ):
        Pipeline.read_parquet("t/").with_options(preserve_ordr=False).experiment("x")


def test_an_error_of_a_later_stage_names_the_file_too(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"x": [1, 300]}), tmp_path / "t/a.parquet")
    pipeline = Pipeline.read_parquet("t/").filter("x > 0").cast(x="int8")
    with pytest.raises(StepError, match=r"cast .*a\.parquet, row group 0, rows 0–1"):
        pipeline.with_options(fusion=False).to_table(str(tmp_path))


def test_head_reads_no_more_than_it_needs_and_a_function_may_be_given_itself(
    tmp_path: Path,
) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "t/a.parquet", row_group_size=10)
    (tmp_path / "t/b.parquet").write_bytes((tmp_path / "t/a.parquet").read_bytes())
    pipeline = Pipeline.read_parquet("t/").filter("x >= 5").with_options(rows_per_block=10)
    assert pipeline.head(3, str(tmp_path)).to_pydict() == {"x": [5, 6, 7]}
    assert pipeline.head(0, str(tmp_path)).num_rows == 0
    assert pipeline.to_table(str(tmp_path)).num_rows == 190
    assert Pipeline.read_parquet("t/").map(yaml.safe_load).steps[0] == {
        "map": {"function": "yaml:safe_load"}
    }
