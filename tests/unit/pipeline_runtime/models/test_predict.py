"""The step `predict`: which model is called, on what, and what is refused before a row is read."""

import mmap
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from facts import assert_one_tells
from trained_models import build_flights

from pipeline_runtime import Pipeline, load_model
from pipeline_runtime.batches import to_batch
from pipeline_runtime.config.steps import Step
from pipeline_runtime.errors import ManifestError, StepError
from pipeline_runtime.models.exporting import export_model
from pipeline_runtime.models.scoring import open_model
from pipeline_runtime.models.scoring.calling import Options
from pipeline_runtime.sources import Opening
from pipeline_runtime.steps.base import BindContext, Transform
from pipeline_runtime.steps.binding import bind_step
from pipeline_runtime.steps.predict import batch_sizes
from pipeline_runtime.steps.predict.transform import Predict
from pipeline_runtime.training.checkpoints import checkpoint

PROGRAM = """
import numpy as np
import pyarrow as pa
import torch

def build_linear(weight=2.0):
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(module.weight, weight)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = module
        def forward(self, batch):
            return self.linear(batch["x"][:, None])
    return Model()

def build(kind="double"):
    def call(batch):
        x = batch.get("x")
        if kind == "double":
            return 2 * x
        if kind == "two":
            return {"b": x.long(), "a": x, "other": x}
        if kind == "tuple":
            return x, torch.stack([x, -x], 1)
        if kind == "nan":
            return torch.where(x == 3, torch.nan, x)
        if kind == "short":
            return x[1:]
        if kind == "raises":
            raise KeyError("no such weight")
        if kind == "memory":
            if len(x) > 5:
                raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate")
            return x
        if kind == "tiny memory":
            if len(x) and x.max() > 0:
                raise MemoryError("none left")
            return x
        if kind == "list":
            return [x.tolist()]
        if kind == "in place":
            return x.mul_(2)
        if kind == "same buffer":
            return BUFFER[: len(x)].copy_(x)
        if kind == "scalar":
            return x.mean()
        if kind == "sums":
            offsets = batch["x.offsets"]
            return torch.stack([batch["x.values"][a:b].sum() for a, b in zip(offsets, offsets[1:])])
        if kind == "first":
            return x[:, 0]
        if kind == "same":
            return x
        if kind == "one column":
            return x[:, None]
        raise AssertionError(kind)
    return call

BUFFER = torch.zeros(16)

def build_upper():
    return lambda table: pa.compute.utf8_upper(table["name"])

WEIGHT = 1.0

def build_weight():
    weight = WEIGHT
    return lambda batch: batch["x"] * weight

def build_column():
    return lambda table: table["x"]

def build_number():
    return 3

def build_vectors(values):
    kind = pa.list_(pa.float32(), 2)
    return lambda table: pa.array(values[: len(table)], kind)

def fail():
    raise OSError("the weights are gone")
"""


@pytest.fixture(scope="module", autouse=True)
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("program")
    (folder / "scoring_program.py").write_text(PROGRAM)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("scoring_program", None)


def bind(
    schema: pa.Schema, root: Path = Path(), opening: Opening | None = None, **step: Any
) -> Transform:
    opening = opening or Opening(storage_root=str(root))
    context = BindContext(
        open_side_table=lambda _: pytest.fail("no step here joins"),
        open_model=lambda request: open_model(request, "experiments/", opening),
    )
    return bind_step(Step.model_validate({"predict": step}, strict=False), schema, context)


def bind_function(schema: pa.Schema, kind: str = "double", **model: Any) -> Transform:
    given: dict[str, Any] = {
        "name": "m",
        "function": "scoring_program:build",
        "options": {"kind": kind},
        "inputs": ["x"],
        "outputs": [{"name": "y", "type": "float32"}],
    }
    step = {key: model.pop(key) for key in ("batchSize",) if key in model}
    given |= model
    if "options" not in model and given["function"] != "scoring_program:build":
        del given["options"]
    return bind(schema, models=[given], **step)


def problems_of(schema: pa.Schema, kind: str = "double", **model: Any) -> str:
    with pytest.raises(ManifestError) as caught:
        bind_function(schema, kind, **model)
    return "\n".join(map(str, caught.value.problems))


def rows(*values: float | None) -> pa.Table:
    return pa.table({"x": pa.array(values, pa.float32()), "kept": np.arange(len(values))})


TEN = rows(*range(10))


def test_a_function_adds_a_column() -> None:
    scored = bind_function(TEN.schema)(TEN)
    assert scored["y"].to_pylist() == [2.0 * i for i in range(10)]
    assert scored.select(TEN.schema.names).equals(TEN)


def test_a_module_is_called_for_inference() -> None:
    step = bind_function(TEN.schema, function="scoring_program:build_linear", options={"weight": 3})
    assert step(TEN)["y"].to_pylist() == [3.0 * i for i in range(10)]


def test_outputs_come_by_name() -> None:
    outputs = [{"name": "a", "type": "float32"}, {"name": "b", "type": "int64"}]
    scored = bind_function(TEN.schema, "two", outputs=outputs)(TEN)
    assert scored["a"].to_pylist() == scored["b"].to_pylist() == list(range(10))


def test_outputs_come_in_order_and_may_be_vectors() -> None:
    vector = pa.list_(pa.float32(), 2)
    outputs = [{"name": "a", "type": "float32"}, {"name": "b", "type": "fixed_size_list<float>[2]"}]
    scored = bind_function(TEN.schema, "tuple", outputs=outputs, batchSize=3)(TEN)
    assert scored.schema.field("b").type == vector
    assert scored["b"].to_pylist() == [[i, -i] for i in range(10)]


def test_any_type_passes_with_arrow() -> None:
    names = pa.table({"name": pa.array(["a", None, "c"])})
    step = bind_function(
        names.schema,
        function="scoring_program:build_upper",
        format="Arrow",
        inputs=["name"],
        outputs=[{"name": "upper", "type": "string"}],
    )
    assert step(names)["upper"].to_pylist() == ["A", None, "C"]


def test_a_model_may_write_to_its_input() -> None:
    def build() -> pa.Table:
        # Memory that pyarrow made may be written to, as that of a decoded file may.
        return pa.table({"x": pa.compute.add(TEN["x"], 1)})

    table = build()
    scored = bind_function(table.schema, "in place")(table)
    assert scored["y"].to_pylist() == [2.0 * (i + 1) for i in range(10)]
    assert scored["x"].equals(build()["x"])


def test_a_model_may_return_one_buffer_again() -> None:
    scored = bind_function(TEN.schema, "same buffer", batchSize=4)(TEN)
    assert scored["y"].to_pylist() == list(range(10))


def test_a_vector_of_one_number_stays_a_vector() -> None:
    outputs = [{"name": "y", "type": "fixed_size_list<float>[1]"}]
    scored = bind_function(TEN.schema, "one column", outputs=outputs)(TEN)
    assert scored["y"].to_pylist() == [[i] for i in range(10)]


@pytest.mark.parametrize("on_invalid", ["Fail", "SetNull"])
def test_null_outputs_are_not_nan(on_invalid: str) -> None:
    vectors = [[1.0, 2.0], None, None, [None, 3.0]]
    step = bind_function(
        TEN.schema,
        function="scoring_program:build_vectors",
        options={"values": vectors},
        format="Arrow",
        outputs=[{"name": "y", "type": "fixed_size_list<float>[2]"}],
        onInvalid=on_invalid,
    )
    assert step(TEN.slice(0, 4))["y"].to_pylist() == vectors


def test_the_scoring_process_chooses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(outputs=("y",), device="Auto", precision="Float32", is_logit=False)
    assert options.choose_device() == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert options.choose_device() == "cuda"


def test_equal_weights_of_other_configs_are_other_models(
    users_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = build_flights(rows=1).schema
    outputs = [{"name": "p", "type": "float32"}]
    model = {"name": "m", "checkpoint": {"uri": str(users_run)}, "outputs": outputs}
    first = bind(schema, models=[model]).digests
    assert bind(schema, models=[model]).digests == first
    parse = checkpoint.parse_header

    def change(uri: str, content: bytes) -> Any:
        header = parse(uri, content)
        assert header is not None
        return replace(header, run_config=header.run_config | {"pipeline": []})

    monkeypatch.setattr(checkpoint, "parse_header", change)
    assert bind(schema, models=[model]).digests != first


@pytest.mark.parametrize("batch_size", [1, 3, 10, 1000, "Auto"])
def test_batches_of_any_size_give_the_same_rows(batch_size: int | str) -> None:
    table = rows(*range(2000))
    scored = bind_function(table.schema, batchSize=batch_size)(table)
    assert scored["y"].to_pylist() == [2.0 * i for i in range(2000)]


def test_an_empty_table_gets_typed_columns() -> None:
    scored = bind_function(TEN.schema)(TEN.slice(0, 0))
    assert (scored.num_rows, scored.schema.field("y").type) == (0, pa.float32())


def test_a_nan_fails_the_run_by_default() -> None:
    with pytest.raises(StepError, match="'y' must be a number, but is NaN in 1 of 10 rows"):
        bind_function(TEN.schema, "nan")(TEN)


def test_rows_with_nan_become_null_if_wanted() -> None:
    scored = bind_function(TEN.schema, "nan", onInvalid="SetNull")(TEN)
    assert scored["y"].to_pylist() == [0, 1, 2, None, 4, 5, 6, 7, 8, 9]


def test_a_null_that_no_tensor_holds_is_invalid() -> None:
    table = pa.table({"x": pa.array([1, None, 3], pa.int64())})
    outputs = [{"name": "y", "type": "int64"}]
    with pytest.raises(StepError, match="'x' must have no null, but has one in 1 of 3 rows"):
        bind_function(table.schema, outputs=outputs)(table)
    filled = bind_function(table.schema, outputs=outputs, onInvalid="SetNull")
    assert filled(table)["y"].to_pylist() == [2, None, 6]
    assert filled(table.slice(1, 1))["y"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("sums", pa.array([[1], [2, None], None, [4, 5]], pa.list_(pa.int64())), [1, None, 0, 9]),
        ("first", pa.array([[1], [None], None, [4]], pa.list_(pa.int64(), 1)), [1, None, None, 4]),
        (
            "same",
            pa.DictionaryArray.from_arrays([0, 1, None, 0], pa.array([7, None], pa.int64())),
            [7, None, None, 7],
        ),
    ],
)
def test_nulls_within_values_are_invalid(
    kind: str, values: pa.Array, wanted: list[int | None]
) -> None:
    table = pa.table({"x": pa.chunked_array([values, values])})
    outputs = [{"name": "y", "type": "int64"}]
    step = bind_function(table.schema, kind, outputs=outputs, onInvalid="SetNull")
    assert step(table)["y"].to_pylist() == 2 * wanted
    assert step(table.slice(1, 5))["y"].to_pylist() == (2 * wanted)[1:6]
    with pytest.raises(StepError, match="set onInvalid: SetNull"):
        bind_function(table.schema, kind, outputs=outputs)(table)


def test_a_model_is_loaded_anew_for_each_plan() -> None:
    program = sys.modules["scoring_program"]
    given: dict[str, Any] = {"function": "scoring_program:build_weight", "inputs": ["x"]}
    first = bind_function(TEN.schema, **given)
    assert first(TEN)["y"].to_pylist() == list(range(10))
    program.WEIGHT = 2.0  # type: ignore[attr-defined]  # as a notebook trains on
    second = bind_function(TEN.schema, **given)
    assert second(TEN)["y"].to_pylist() == [2.0 * i for i in range(10)]


def test_a_null_float_is_nan_to_the_model() -> None:
    scored = bind_function(TEN.schema, onInvalid="SetNull")(rows(1.0, None))
    assert scored["y"].to_pylist() == [2.0, None]


def test_batches_without_memory_are_halved() -> None:
    table = rows(*range(64))
    scored = bind_function(table.schema, "memory", batchSize=64)(table)
    assert scored["y"].to_pylist() == list(range(64))


def test_a_row_without_memory_is_an_error() -> None:
    step = bind_function(TEN.schema, "tiny memory")
    with pytest.raises(
        StepError, match=r"one row \(none left\); give the workers that call it more"
    ):
        step(TEN)


@pytest.mark.parametrize(
    ("rates", "free", "size"),
    [
        ([1, 2, 4, 8, 16], 1 << 40, 16_384),  # larger is always faster
        ([1, 2, 2.05, 9, 9], 1 << 40, 256),  # 2.5 % more is not worth the memory
        ([2, 1, 9, 9, 9], 1 << 40, 64),
        ([1, 2, 4, 8, 16], 100, 64),  # the next size might not fit
    ],
)
def test_auto_takes_the_fastest_size_that_fits(
    rates: list[float], free: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_sizes, "find_free_bytes", lambda: free)
    choice = batch_sizes.Choice(size=64)
    speeds = dict(zip((64, 256, 1024, 4096, 16_384), rates, strict=True))
    for _ in range(10):
        choice.record(choice.size, choice.size / speeds[choice.size], grown_bytes=50)
    assert choice.size == size


def fill_memory(num_bytes: int) -> None:
    """Use memory for a moment that comes from the system, and goes back to it."""
    with mmap.mmap(-1, num_bytes) as block:
        for start in range(0, num_bytes, mmap.PAGESIZE):
            block[start] = 1


class _Hungry:
    """A scorer that needs 256 KiB for each row."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, table: pa.Table) -> dict[str, Any]:
        self.sizes.append(table.num_rows)
        fill_memory(table.num_rows << 18)
        return {"y": np.zeros(table.num_rows)}


def test_auto_sees_memory_below_an_earlier_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sizes, "find_free_bytes", lambda: 64 << 20)
    fill_memory(256 << 20)
    scorer = _Hungry()  # 64 rows need 16 MiB, and the next size more than half of what is free
    batch_sizes.run_in_batches(scorer, pa.table({"x": range(1000)}), "Auto")
    assert max(scorer.sizes) == 64


def test_cached_files_are_free_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("990\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 800\nactive_file 90\n")
    assert batch_sizes.find_free_bytes(tmp_path) == 810


@pytest.mark.parametrize(
    ("kind", "model", "problem"),
    [
        ("double", {"inputs": ["z"]}, "models[0].inputs[0]: must be a column"),
        ("double", {"outputs": [{"name": "y", "type": "float64"}]}, "but is float32 of shape [4]"),
        ("tuple", {}, "must return 1 outputs, as declared, but returned 2"),
        ("two", {}, "must return the output 'y', as declared, but returned b, a, other"),
        ("short", {}, "must have a value for each of a batch's 4 rows, but has 3"),
        ("raises", {}, "the model raised KeyError: 'no such weight'"),
        ("scalar", {}, "for each of a batch's 4 rows, but is a single value"),
        ("list", {}, "must be a tensor or an array, but is a list"),
        ("double", {"function": "scoring_program:no"}, "function: must name a function"),
        ("double", {"function": "scoring_program:fail"}, "OSError: the weights are gone"),
        ("double", {"function": "scoring_program:build_number"}, "returned a int"),
        ("double", {"outputs": [{"name": "y", "type": "string"}]}, "outputs[0].type: must be a"),
        ("double", {"outputs": [{"name": "y", "type": "flot"}]}, "outputs[0].type: "),
    ],
)
def test_wrong_models_are_refused_when_bound(
    kind: str, model: dict[str, Any], problem: str
) -> None:
    text = problems_of(TEN.schema, kind, **model)
    assert text.startswith("pipeline[0].predict.models[0]")
    assert problem in text


def test_text_is_no_tensor() -> None:
    schema = pa.schema({"x": pa.string()})
    assert "the column 'x' must be a number, a boolean" in problems_of(schema)


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        ([{"name": "m"}], "must have exactly one of experimentRef, checkpoint, onnx, function"),
        ([{"name": "m", "function": "a:b"}], "must name the columns"),
        ([{"name": "m", "onnx": {"uri": "x"}, "options": {"a": 1}}], "must come with function"),
        ([{"name": "m", "onnx": {"uri": "x"}, "format": "Arrow"}], "must be Torch without"),
        ([{"name": n, "onnx": {"uri": "x"}} for n in "mn"], "must be the name of one output"),
    ],
)
def test_models_keep_their_rules(models: list[dict[str, Any]], problem: str) -> None:
    outputs = [{"name": "y", "type": "float32"}]
    with pytest.raises(ValueError, match=problem):
        Step.model_validate(
            {"predict": {"models": [m | {"outputs": outputs} for m in models]}}, strict=False
        )


def expected_scores(run: Path, table: pa.Table, columns: list[str]) -> list[float]:
    batch = to_batch(table.select(columns), weight_column=None, label_column=None)
    with torch.inference_mode():
        return torch.sigmoid(load_model(run)(batch)).flatten().tolist()


@pytest.mark.parametrize("by", ["checkpoint", "folder", "experimentRef"])
def test_a_run_scores_as_its_model_does(by: str, users_run: Path, flights: Path) -> None:
    [*_, checkpoint] = sorted((users_run / "checkpoints").glob("step-*"))
    ref = {"name": "flights", "run": users_run.name}
    source: dict[str, Any] = {
        "checkpoint": {"checkpoint": {"uri": str(checkpoint)}},
        "folder": {"checkpoint": {"uri": str(users_run)}},
        "experimentRef": {"experimentRef": ref},
    }[by]
    table = build_flights(rows=500, seed=5)
    model = {"name": "m", "outputs": [{"name": "p", "type": "float32"}], **source}
    step = bind(table.schema, flights / "build", models=[model], batchSize=100)
    scored = step(table)
    wanted = expected_scores(users_run, table, ["distance", "carrier", "recent_delays"])
    assert np.allclose(scored["p"].to_pylist(), wanted, atol=1e-6)
    assert step.inputs == {"distance", "carrier", "recent_delays"}
    assert "delayed" not in step.inputs  # the label


def test_lists_reach_the_built_in_model(built_in_run: Path) -> None:
    table = build_flights(rows=500, seed=5)
    model = {
        "name": "m",
        "checkpoint": {"uri": str(built_in_run)},
        "outputs": [{"name": "p", "type": "float32"}],
    }
    scored = bind(table.schema, models=[model], batchSize=70)(table)
    wanted = expected_scores(built_in_run, table, ["distance", "carrier", "stops", "legs"])
    assert np.allclose(scored["p"].to_pylist(), wanted, atol=1e-6)


def test_raw_logits_are_there_on_request(built_in_run: Path) -> None:
    table = build_flights(rows=50, seed=5)
    model: dict[str, Any] = {
        "checkpoint": {"uri": str(built_in_run)},
        "outputs": [{"name": "p", "type": "float32"}],
    }
    raw = bind(table.schema, models=[model | {"name": "m", "activation": "None"}])(table)
    scores = bind(table.schema, models=[model | {"name": "m"}])(table)
    logits = np.array(raw["p"].to_pylist())
    assert np.allclose(1 / (1 + np.exp(-logits)), scores["p"].to_pylist(), atol=1e-6)


def test_lower_precision_is_close(built_in_run: Path) -> None:
    table = build_flights(rows=200, seed=5)
    model: dict[str, Any] = {
        "name": "m",
        "checkpoint": {"uri": str(built_in_run)},
        "outputs": [{"name": "p", "type": "float32"}],
    }
    full = bind(table.schema, models=[model])(table)
    half = bind(table.schema, models=[model | {"precision": "BFloat16"}])(table)
    assert np.allclose(full["p"].to_pylist(), half["p"].to_pylist(), atol=0.02)
    assert full["p"].to_pylist() != half["p"].to_pylist()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"experimentRef": {"name": "fligths"}}, "'fligths' has no run in"),
        ({"experimentRef": {"name": "flights"}}, "none of them complete"),
        ({"experimentRef": {"name": "flights", "run": "x"}}, "experimentRef.run: must be the"),
        ({"checkpoint": {"uri": "nowhere"}}, "checkpoint.uri: must be the folder of a run"),
        ({"onnx": {"uri": "nowhere.onnx"}}, "onnx.uri: must be a file, but"),
        ({"onnx": {"uri": "data/flights/0.parquet"}}, "onnx.uri: must be a model in ONNX's"),
    ],
)
def test_models_that_are_not_there_are_refused(
    source: dict[str, Any], problem: str, flights: Path, users_run: Path
) -> None:
    model = {"name": "m", "outputs": [{"name": "p", "type": "float32"}], **source}
    with pytest.raises(ManifestError) as caught:
        bind(build_flights(rows=1).schema, flights / "build", models=[model])
    assert problem in str(caught.value)


def test_columns_of_another_type_are_refused(built_in_run: Path) -> None:
    table = build_flights(rows=1)
    schema = table.schema.set(
        table.schema.get_field_index("distance"), pa.field("distance", pa.float64())
    )
    model = {
        "name": "m",
        "checkpoint": {"uri": str(built_in_run)},
        "outputs": [{"name": "p", "type": "float32"}],
    }
    with pytest.raises(ManifestError, match="'distance' as float, as the model was trained"):
        bind(schema, models=[model])
    with pytest.raises(ManifestError, match="must have the column 'distance', which the model"):
        bind(table.schema.remove(table.schema.get_field_index("distance")), models=[model])


def test_an_exported_model_runs_as_onnx(built_in_run: Path, tmp_path: Path) -> None:
    export_model(built_in_run, tmp_path / "model.onnx", format="onnx")
    table = build_flights(rows=300, seed=5)
    model = {
        "name": "m",
        "onnx": {"uri": "model.onnx"},
        "activation": "Sigmoid",
        "outputs": [{"name": "p", "type": "float32"}],
    }
    opening = Opening(storage_root=str(tmp_path))
    step = bind(table.schema, tmp_path, opening, models=[model], batchSize=64)
    wanted = expected_scores(built_in_run, table, ["distance", "carrier", "stops", "legs"])
    assert np.allclose(step(table)["p"].to_pylist(), wanted, atol=1e-5)
    [pin] = opening.pins.models
    assert len(pin.sha256) == 64
    (tmp_path / "model.onnx").write_bytes(b"another")
    with pytest.raises(ManifestError, match="must be the file that this run began with"):
        bind(table.schema, tmp_path, opening, models=[model])


def write_onnx(path: Path, kind: str) -> None:
    """Write a model of x, float [n], in ONNX's format."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    kept, nodes, inputs, outputs = [], [], ["x"], ["y"]
    match kind:
        case "two":  # in another order than in the manifest
            outputs = ["b", "a"]
            nodes = [
                helper.make_node("Identity", ["x"], ["a"]),
                helper.make_node("Neg", ["x"], ["b"]),
            ]
        case "memory":
            kept = [
                helper.make_tensor("k", kinds.INT64, [1], [1 << 44]),
                helper.make_tensor("three", kinds.INT64, [1], [3]),
                helper.make_tensor("one", kinds.INT64, [1], [1]),
            ]
            nodes = [  # 16 TiB for each row above three
                helper.make_node("Shape", ["x"], ["rows"]),
                helper.make_node("Div", ["rows", "three"], ["thirds"]),
                helper.make_node("Div", ["thirds", "three"], ["many"]),
                helper.make_node("Mul", ["many", "k"], ["size"]),
                helper.make_node("Max", ["size", "one"], ["some"]),
                helper.make_node("ConstantOfShape", ["some"], ["zeros"]),
                helper.make_node("ReduceSum", ["zeros"], ["zero"], keepdims=0),
                helper.make_node("Add", ["x", "zero"], ["y"]),
            ]
        case "external":
            weight = onnx.TensorProto(name="w", data_type=kinds.FLOAT, dims=[4], data_location=1)
            weight.external_data.add(key="location", value="weights.bin")
            kept = [weight]
            nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
        case "sequence":
            nodes = [helper.make_node("SequenceConstruct", ["x"], ["y"])]
        case "list":
            inputs = ["list"]
            nodes = [helper.make_node("Identity", ["list"], ["y"])]
    build = helper.make_tensor_value_info
    if kind == "sequence":
        results = [helper.make_tensor_sequence_value_info("y", kinds.FLOAT, ["n"])]
    else:
        results = [build(name, kinds.FLOAT, ["n"]) for name in outputs]
    graph = helper.make_graph(
        nodes, "graph", [build(name, kinds.FLOAT, ["n"]) for name in inputs], results, kept
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


def bind_onnx(folder: Path, kind: str, outputs: str = "y", **step: Any) -> Transform:
    write_onnx(folder / "model.onnx", kind)
    names = [{"name": name, "type": "float32"} for name in outputs.split()]
    model = {"name": "m", "onnx": {"uri": "model.onnx"}, "outputs": names}
    schema = TEN.schema.append(pa.field("list", pa.list_(pa.float32())))
    return bind(schema, folder, models=[model], **step)


def test_onnx_outputs_come_by_name(tmp_path: Path) -> None:
    scored = bind_onnx(tmp_path, "two", "a b")(TEN)
    assert scored["a"].to_pylist() == list(range(10))
    assert scored["b"].to_pylist() == [-i for i in range(10)]
    assert bind_onnx(tmp_path, "two", "b")(TEN)["b"].to_pylist() == [-i for i in range(10)]
    assert bind_onnx(tmp_path, "two", "p q")(TEN)["q"].to_pylist() == list(range(10))


def test_onnx_batches_without_memory_are_halved(tmp_path: Path) -> None:
    assert bind_onnx(tmp_path, "memory", batchSize=10)(TEN)["y"].to_pylist() == list(range(10))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("external", "save it with all tensors in one file"),
        ("sequence", "'y' must be a tensor, but is a list; name"),
        ("list", "input 'list' must be a tensor of the columns, which are list.values, list.off"),
    ],
)
def test_onnx_files_that_cannot_be_called_are_refused(
    kind: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(16))
    with pytest.raises(ManifestError) as caught:
        bind_onnx(tmp_path, kind)
    assert problem in str(caught.value)


def build_every_type() -> pa.Table:
    """Return rows with nulls in every column, and values that other formats lose."""
    columns = {
        "int": pa.array([2**53 + 1, None, -1], pa.int64()),
        "uint": pa.array([2**64 - 1, None, 0], pa.uint64()),
        "float": pa.array([float("nan"), None, -0.0]),
        "bool": pa.array([True, None, False]),
        "time": pa.array([1, None, 2], pa.timestamp("ns", tz="Europe/Berlin")),
        "date": pa.array([1, None, 2], pa.date32()),
        "decimal": pa.array([1, None, 2]).cast(pa.decimal128(38, 10)),
        "text": pa.array(["a", None, ""]),
        "binary": pa.array([b"\x00", None, b""]),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "fixed": pa.array([[1, 2], None, [None, 3]], pa.list_(pa.int32(), 2)),
        "struct": pa.array([{"a": 1}, None, {"a": None}]),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "dictionary": pa.array(["a", None, "b"]).dictionary_encode(),
        "runs": pa.RunEndEncodedArray.from_arrays([1, 3], ["a", None]),
        "null": pa.nulls(3),
    }
    return pa.table(columns | {"x": pa.array([1, 2, 3], pa.float32())})


def list_addresses(column: pa.ChunkedArray) -> list[int]:
    buffers = [buffer for chunk in column.chunks for buffer in chunk.buffers()]
    return [buffer.address for buffer in buffers if buffer is not None]


def test_carried_columns_are_the_same_memory() -> None:
    table = build_every_type()
    scored = bind_function(table.schema, batchSize=2)(table)
    assert scored["y"].to_pylist() == [2.0, 4.0, 6.0]
    for name in table.schema.names:
        assert scored.schema.field(name).equals(table.schema.field(name))
        assert list_addresses(scored[name]) == list_addresses(table[name]), name


def count_invalid(step: Predict, parts: list[pa.Table]) -> dict[str, Any]:
    states = [step.load(step.observe(part)[1]) for part in parts]
    return {result["name"]: result for result in step.finish(step.merge(states))}


def test_rows_set_to_null_are_counted_by_model_and_reason() -> None:
    values = pa.array([1, 3, None, 3, None, 6], pa.float32())
    table = pa.table({"x": values, "k": values.cast(pa.int64())})
    outputs = [{"name": name, "type": "float32"} for name in ("y", "v", "w")]
    function = {"function": "scoring_program:build", "onInvalid": "SetNull"}
    nan = function | {"options": {"kind": "nan"}}
    step = bind(
        table.schema,
        models=[
            # A null float is NaN to the model, and so is its output.
            {"name": "nan", **nan, "inputs": ["x"], "outputs": outputs[:1]},
            {"name": "null", **nan, "inputs": ["x", "k"], "outputs": outputs[1:2]},
            # A model that fails the run is not counted.
            {
                "name": "failing",
                "format": "Arrow",
                "function": "scoring_program:build_column",
                "inputs": ["x"],
                "outputs": outputs[2:],
            },
        ],
    )
    assert isinstance(step, Predict)
    assert (step.observes, step.observes_all) == (True, False)
    assert step.observe(table)[0].equals(step(table))
    found = count_invalid(step, [table.slice(0, 4), table.slice(0, 0), table.slice(4)])
    assert found == {
        "nan": {
            "name": "nan",
            "kind": "invalidRows",
            "value": 4,
            "rows": 6,
            "leftOut": {"output": 4},
        },
        "null": {
            "name": "null",
            "kind": "invalidRows",
            "value": 4,
            "rows": 6,
            "leftOut": {"input": 2, "output": 2},
        },
    }


def test_nulls_that_a_model_returns_are_valid() -> None:
    table = rows(1.0, None)
    step = bind_function(
        table.schema,
        function="scoring_program:build_column",
        format="Arrow",
        onInvalid="SetNull",
    )
    assert isinstance(step, Predict)
    assert step(table)["y"].to_pylist() == [1.0, None]
    assert count_invalid(step, [table])["m"]["value"] == 0


def test_a_run_reports_rows_set_to_null(tmp_path: Path) -> None:
    write_onnx(tmp_path / "model.onnx", "two")
    pq.write_table(rows(1.0, None, 3.0, None, 5.0), tmp_path / "in.parquet", row_group_size=2)
    model = {
        "name": "base",
        "onnx": {"uri": "model.onnx"},
        "outputs": [{"name": name, "type": "float32"} for name in "ab"],
        "onInvalid": "SetNull",
    }
    pipeline = Pipeline.read_parquet("in.parquet").predict(model).filter("kept >= 2")
    finished = pipeline.write_parquet(
        "out/", storage_root=str(tmp_path), output=tmp_path / "report"
    )
    assert finished.outcome.kind == "Complete", finished.outcome
    [measure] = finished.summary.measures
    assert (measure.name, measure.kind, measure.step) == ("base", "invalidRows", "pipeline[0]")
    # The filter spares the first row group, whose rows are not scored.
    assert (measure.value, measure.rows, measure.left_out) == (1, 3, {"output": 1})
    log = (tmp_path / "report" / "run.log").read_text().splitlines()
    assert_one_tells(log, "… pipeline[0] … base … 1 of 3 rows … onInvalid: SetNull")
    assert_one_tells(finished.summary.warnings, "pipeline[0] … base … 1 of 3 rows")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "invalidRows" in page
