"""The step `embed` with a random network, by both engines, and refusals at planning."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
import tiny_models
import torch
from onnx import TensorProto, helper
from transformers import BertModel, RobertaConfig, RobertaModel

from pipeline_runtime.config.steps import Step
from pipeline_runtime.errors import ManifestError, StepError
from pipeline_runtime.models.text import open_embedder
from pipeline_runtime.models.text.testing import LengthEmbedder
from pipeline_runtime.sources import Opening
from pipeline_runtime.steps import engines
from pipeline_runtime.steps.base import BindContext
from pipeline_runtime.steps.binding import bind_step
from pipeline_runtime.steps.embed.transform import Embed

VOCABULARY, SIZE = 320, 4
WEIGHTS = np.random.default_rng(2).standard_normal((VOCABULARY, SIZE)).astype(np.float32)


def save_lookup(
    folder: Path, output: str = "tokens", inputs: tuple[str, ...] = ("input_ids",)
) -> None:
    """Save an ONNX file whose vector of a token is a row of WEIGHTS, and its tokenizer.

    Args:
        output: `tokens`: [B, T, L]; `texts`: [B, L], sums over tokens; `shape`: [B, T, L, 1].
    """
    nodes = [helper.make_node("Gather", ["weights", "input_ids"], ["tokens"])]
    nodes.append(helper.make_node("ReduceSum", ["tokens", "axis"], ["texts"], keepdims=0))
    nodes.append(helper.make_node("Unsqueeze", ["tokens", "last"], ["shape"]))
    graph = helper.make_graph(
        nodes,
        "lookup",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["B", "T"]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(WEIGHTS, "weights"),
            onnx.numpy_helper.from_array(np.array([1]), "axis"),
            onnx.numpy_helper.from_array(np.array([3]), "last"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    tiny_models.build_tokenizer().save_pretrained(folder)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a storage root with the models `bert` and `lookup`."""
    root = tmp_path_factory.mktemp("models")
    tiny_models.save_bert(root / "bert")
    save_lookup(root / "lookup")
    return root


def bind(
    table: pa.Table,
    root: Path | None,
    size: int = SIZE,
    fake: LengthEmbedder | None = None,
    **fields: Any,
) -> Embed:
    """Return the step, of a model in the root or of a fake."""
    step = {
        "engine": "ONNX",
        "source": "lookup",
        "column": "x",
        "outputs": [{"name": "v", "type": f"fixed_size_list<float32>[{size}]"}],
        **fields,
    }
    opening = Opening(storage_root=str(root))
    context = BindContext(
        open_side_table=lambda _: pytest.fail("no step here joins"),
        open_embedder=lambda config: fake or open_embedder(config, opening),
    )
    bound = bind_step(Step.model_validate({"embed": step}, strict=False), table.schema, context)
    assert isinstance(bound, Embed)
    return bound


def build_rows(*texts: str | None) -> pa.Table:
    return pa.table({"x": pa.array(texts, pa.string())})


def expect(text: str, max_tokens: int = 256) -> np.ndarray:
    ids = tiny_models.build_tokenizer().encode(text)[:max_tokens]
    return np.asarray(WEIGHTS[ids].mean(0))


TEXTS = ("red shoes", "hat", "a longer text than the others", "blue")


def test_the_mean_leaves_padding_out(root: Path) -> None:
    table = build_rows(*TEXTS)
    found = np.stack(bind(table, root, normalize=False)(table)["v"].to_numpy())
    assert np.allclose(found, [expect(text) for text in TEXTS], atol=1e-6)


def test_vectors_have_length_one(root: Path) -> None:
    table = build_rows(*TEXTS)
    found = np.stack(bind(table, root, batchSize=3)(table)["v"].to_numpy())
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    expected = [expect(text) / np.linalg.norm(expect(text)) for text in TEXTS]
    assert np.allclose(found, expected, atol=1e-6)


def test_the_first_token_is_the_cls(root: Path) -> None:
    table = build_rows(*TEXTS)
    found = np.stack(bind(table, root, normalize=False, pooling="CLS")(table)["v"].to_numpy())
    assert np.allclose(found, [expect(text, 1) for text in TEXTS], atol=1e-6)


def test_long_texts_are_cut_off(root: Path) -> None:
    table = build_rows("hat " * 300)
    found = np.stack(bind(table, root, normalize=False, maxTokens=5)(table)["v"].to_numpy())
    assert np.allclose(found[0], expect("hat " * 300, 5), atol=1e-6)


def test_a_model_that_takes_fewer_tokens_than_it_says_is_refused(tmp_path: Path) -> None:
    """RoBERTa has two positions more than tokens that it takes."""
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=18,
    )
    RobertaModel(config).save_pretrained(tmp_path / "roberta")
    tiny_models.build_tokenizer().save_pretrained(tmp_path / "roberta")
    fields = {"engine": "Transformers", "source": "roberta"}
    table = build_rows("hat " * 30)
    with pytest.raises(ManifestError, match=r"maxTokens.*\n?.*with a text of 18"):
        bind(table, tmp_path, 8, maxTokens=18, **fields)
    assert bind(table, tmp_path, 8, maxTokens=16, **fields)(table)["v"].null_count == 0


def test_one_vector_per_text_is_taken_as_it_is(tmp_path: Path) -> None:
    save_lookup(tmp_path / "lookup", output="texts")
    table = build_rows("hat")
    found = np.stack(bind(table, tmp_path, normalize=False)(table)["v"].to_numpy())
    ids = tiny_models.build_tokenizer().encode("hat")
    assert np.allclose(found[0], WEIGHTS[ids].sum(0), atol=1e-6)


def test_transformers_gives_the_models_own_vectors(root: Path) -> None:
    table = build_rows(*TEXTS)
    fields = {"engine": "Transformers", "source": "bert", "maxTokens": tiny_models.CONTEXT}
    bound = bind(table, root, 8, normalize=False, **fields)
    found = np.stack(bound(table)["v"].to_numpy())
    model, tokenizer = (
        BertModel.from_pretrained(root / "bert").eval(),
        tiny_models.build_tokenizer(),
    )
    for row, text in enumerate(TEXTS):
        with torch.inference_mode():
            alone = model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0].mean(0)
        assert np.allclose(found[row], alone, atol=1e-5)


@pytest.mark.parametrize("values", [(None, "a", None, "bbb"), (None,), (), ("",)])
def test_nulls_have_null_vectors(values: tuple[str | None, ...]) -> None:
    table = build_rows(*values)
    found = bind(table, None, fake=LengthEmbedder(size=SIZE))(table)["v"]
    assert found.type == pa.list_(pa.float32(), SIZE)
    assert found.to_pylist() == [None if v is None else [float(len(v))] * SIZE for v in values]


def test_the_model_gets_texts_alone() -> None:
    table = build_rows("ccc", "a", "bb").append_column("wide", pa.array([[1], None, [2, None]]))
    fake = LengthEmbedder(size=SIZE)
    bound = bind(table, None, fake=fake, batchSize=2)
    fake.calls.clear()
    result = bound(table)
    assert [call.to_pydict() for call in fake.calls] == [
        {engines.PROMPT: ["a", "bb"]},
        {engines.PROMPT: ["ccc"]},
    ]
    buffers = [[b and b.address for b in t["wide"].chunk(0).buffers()] for t in (table, result)]
    assert buffers[0] == buffers[1]


def test_an_onnx_file_and_a_tokenizer_may_lie_apart(root: Path, tmp_path: Path) -> None:
    table = build_rows(*TEXTS)
    for name, file in (("m/net.onnx", "model.onnx"), ("t/tokenizer.json", "tokenizer.json")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes((root / "lookup" / file).read_bytes())
    for tokenizer in ("t", "t/tokenizer.json"):
        bound = bind(table, tmp_path, source="m/net.onnx", tokenizer=tokenizer)
        assert bound(table)["v"] == bind(table, root)(table)["v"]
    assert bound.digests != bind(table, root).digests  # of other files


def test_a_vector_that_is_no_number_fails(tmp_path: Path) -> None:
    save_lookup(tmp_path / "lookup", output="texts")
    model = onnx.load(tmp_path / "lookup" / "model.onnx")
    weights = np.full_like(WEIGHTS, np.inf)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "weights"))
    onnx.save(model, tmp_path / "lookup" / "model.onnx")
    table = build_rows("hat")
    with pytest.raises(StepError, match="NaN or infinity"):
        bind(table, tmp_path, normalize=False)(table)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"source": "nowhere"},
            r"embed\.source: must be a folder with model\.onnx.*does not exist",
        ),
        ({"source": "bert"}, r"embed\.source: .* is a folder without model\.onnx"),
        ({"source": "lookup", "engine": "Transformers"}, r"embed\.source: .* without config\.json"),
        (
            {"source": "bert", "engine": "Transformers"},
            r"embed\.maxTokens: must be at most the model's context of 128 tokens, but is 256",
        ),
        ({"tokenizer": "nowhere"}, r"embed\.tokenizer: must be a folder with tokenizer\.json"),
        (
            {"source": "lookup/model.onnx"},
            r"embed\.tokenizer: must name the place of tokenizer\.json",
        ),
        ({"column": "y"}, r"embed\.column: must be a column of the step's input"),
        ({"column": "n"}, r"embed\.column: must be a column of text, got 'n' of type int64"),
        (
            {"size": 5},
            r"embed\.outputs\[0\]\.type: must be fixed_size_list<float32>\[4\], as the model",
        ),
        (
            {"outputs": [{"name": "v", "type": "list<float32>"}]},
            r"outputs\[0\]\.type: must be fixed",
        ),
    ],
)
def test_what_does_not_fit_is_refused_at_planning(
    root: Path, fields: dict[str, Any], expected: str
) -> None:
    table = build_rows("a").append_column("n", pa.array([1]))
    with pytest.raises(ManifestError, match=expected):
        bind(table, root, **fields)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"output": "shape"}, r"embed\..*must return vectors of tokens"),
        ({"inputs": ("input_ids", "pixels")}, r"embed\.source: must be a model of the inputs"),
        ({"file": "model.onnx"}, r"embed\.source: must be a model in ONNX's format"),
        ({"file": "tokenizer.json"}, r"embed\.source: must have a tokenizer"),
    ],
)
def test_a_broken_model_is_refused_at_planning(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    file = change.pop("file", None)
    save_lookup(tmp_path / "lookup", **change)
    if file is not None:
        (tmp_path / "lookup" / file).write_text(json.dumps("broken"))
    with pytest.raises(ManifestError, match=expected):
        bind(build_rows("a"), tmp_path)
