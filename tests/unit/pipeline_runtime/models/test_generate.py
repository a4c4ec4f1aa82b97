"""The step `generate` with a random Llama: answers, error rows, draws, and refusals at planning."""

import importlib.util
import json
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tiny_models
import torch
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from transformers import LlamaForCausalLM

from pipeline_runtime.config.steps import Step
from pipeline_runtime.errors import ManifestError, OutputError, StepError
from pipeline_runtime.models.text import open_generator
from pipeline_runtime.models.text.encoding import build_encoder
from pipeline_runtime.models.text.folders import open_files
from pipeline_runtime.models.text.generating import GeneratorOptions
from pipeline_runtime.models.text.testing import EchoGenerator
from pipeline_runtime.models.text.transformers_engine import RowDraws
from pipeline_runtime.models.text.vllm_engine import VllmGenerator
from pipeline_runtime.sources import Location, Opening
from pipeline_runtime.steps import engines
from pipeline_runtime.steps.base import BindContext
from pipeline_runtime.steps.binding import bind_step
from pipeline_runtime.steps.engines import OpenedEngine
from pipeline_runtime.steps.generate.tally import Tally
from pipeline_runtime.steps.generate.transform import Generate

# A prompt of so many bytes has at least a token per byte of the model's short vocabulary.
TOO_LONG = "z" * tiny_models.CONTEXT


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a storage root with the model `llama`."""
    root = tmp_path_factory.mktemp("models")
    tiny_models.save_llama(root / "llama")
    return root


def bind(
    table: pa.Table,
    root: Path | None = None,
    opening: Opening | None = None,
    echo: EchoGenerator | None = None,
    **fields: Any,
) -> Generate:
    """Return the step, of the model in the root or of a fake."""
    opening = opening or Opening(storage_root=str(root))
    step = {
        "engine": "Transformers",
        "source": "llama",
        "prompt": "{x}",
        "outputs": [{"name": "y", "type": "string"}],
        "errorColumn": "error",
        "maxErrorPercent": 100,
        "maxTokens": 6,
        **fields,
    }

    def open_model(config: Any) -> OpenedEngine:
        return (echo or EchoGenerator()) if root is None else open_generator(config, opening)

    context = BindContext(
        open_side_table=lambda _: pytest.fail("no step here joins"), open_generator=open_model
    )
    bound = bind_step(Step.model_validate({"generate": step}, strict=False), table.schema, context)
    assert isinstance(bound, Generate)
    return bound


def build_rows(*texts: str | None) -> pa.Table:
    hashes = pa.array(np.arange(len(texts), dtype=np.uint64) * 7919)
    return pa.table({"x": pa.array(texts, pa.string()), "_lastmile_row_hash": hashes})


def count(bound: Generate, table: pa.Table) -> Tally:
    return bound.load(bound.observe(table)[1])


def test_answers_are_those_of_the_model_alone(root: Path) -> None:
    table = build_rows("red shoes", "hat", "blue", "a longer prompt of many bytes")
    result = bind(table, root)(table)
    tokenizer = tiny_models.build_tokenizer()
    model = LlamaForCausalLM.from_pretrained(root / "llama")
    for text, answer in zip(table["x"].to_pylist(), result["y"].to_pylist(), strict=True):
        ids = torch.tensor([tokenizer.encode(text)])
        new = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=1)[
            0, ids.shape[1] :
        ]
        assert answer == tokenizer.decode(new, skip_special_tokens=True)
    assert result["error"].null_count == 4


def test_a_prompt_beyond_the_context_is_an_error_row(root: Path) -> None:
    table = build_rows("hat", TOO_LONG, "red")
    bound = bind(table, root)
    # As a worker gets it.
    result, observed = pickle.loads(pickle.dumps(bound)).observe(table)
    assert result["y"].is_valid().to_pylist() == [True, False, True]
    reason = result["error"][1].as_py()
    assert reason.startswith("the prompt does not fit into the model's context: it has 128 tokens")
    tally = bound.load(observed)
    assert (tally.rows, tally.errors) == (3, 1)
    good = bind(table, root).observe(table.take([0, 2]))[0]
    assert result.take([0, 2])["y"].equals(good["y"])


def test_the_longest_prompt_that_fits_is_answered(root: Path) -> None:
    fits, over = "z" * (tiny_models.CONTEXT - 6), "z" * (tiny_models.CONTEXT - 5)
    table = build_rows(fits, over)
    assert bind(table, root)(table)["error"].is_null().to_pylist() == [True, False]


def test_a_prompt_that_the_engine_refuses_spares_its_batch(tmp_path: Path) -> None:
    # The tokenizer has more tokens than the model: an index beyond the embedding.
    tiny_models.save_llama(tmp_path / "llama", vocab_size=200)
    tokenizer = tiny_models.build_tokenizer()
    known = [t for t in "abcdefghijklmnopqrstuvwxyz" if max(tokenizer.encode(t)) < 200]
    table = build_rows(*known[:6], "red shoes", *known[6:])
    assert max(tokenizer.encode("red shoes")) >= 200
    result, observed = bind(table, tmp_path).observe(table)
    assert result["y"].is_valid().to_pylist() == [
        text != "red shoes" for text in table["x"].to_pylist()
    ]
    assert "the engine refused the prompt: IndexError" in result["error"][6].as_py()
    assert Tally.from_bytes(observed).reasons == {"the engine refused the prompt": 1}


def test_draws_depend_on_the_row_alone(root: Path) -> None:
    table = build_rows("red", "blue hat", "tag", "red", "z" * 50, "hat")
    fields: dict[str, Any] = {"temperature": "1.5", "seed": 3, "engineArgs": {"top_p": 0.95}}
    bound = bind(table, root, **fields)
    assert bound.needs_row_hash
    whole = bound(table)["y"].to_pylist()
    assert whole[0] != whole[3]  # the same prompt in two rows
    order = [4, 2, 5]
    assert bind(table, root, batchSize=2, **fields)(table.take(order))["y"].to_pylist() == [
        whole[place] for place in order
    ]
    assert bind(table, root, **{**fields, "seed": 4})(table)["y"].to_pylist() != whole


def test_draws_have_the_probabilities_of_the_scores() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    scores = probabilities.log().expand(4000, -1)
    found = RowDraws(1, range(4000))(torch.empty(0), scores).argmax(-1)
    shares = torch.bincount(found, minlength=4) / 4000
    # Four standard deviations of a share of 4,000 draws are 0.032.
    assert torch.allclose(shares, probabilities, atol=0.032)
    assert shares[1] == 0


def test_engine_arguments_reach_loading_and_generation(root: Path) -> None:
    table = build_rows("red shoes hat")
    plain = bind(table, root)(table)["y"]
    ended = bind(table, root, engineArgs={"eos_token_id": list(range(320))})
    assert count(ended, table).generated_tokens == 1
    eager = bind(table, root, engineArgs={"attn_implementation": "eager"})(table)
    assert eager["y"] == plain
    wrong = bind(table, root, temperature="0.5", engineArgs={"top_p": 7}, maxErrorPercent=100)
    with pytest.raises(StepError, match=r"cannot be loaded: .*top_p.*engineArgs"):
        wrong(table)
    wrong = bind(table, root, engineArgs={"no_such_argument": 1})
    with pytest.raises(StepError, match=r"cannot be loaded: .*no_such_argument.*engineArgs"):
        wrong(table)


def test_chat_puts_the_models_template_around_the_prompt(root: Path) -> None:
    table = build_rows("red hat")
    bound = bind(table, root, format="Chat")
    tokenizer = tiny_models.build_tokenizer()
    message = [{"role": "user", "content": "red hat"}]
    ids = tokenizer.apply_chat_template(message, tokenize=True, return_dict=False)
    assert count(bound, table).prompt_tokens == len(ids)
    assert bound(table)["y"] != bind(table, root)(table)["y"]


@pytest.mark.parametrize("form", ["Plain", "Chat"])
def test_special_tokens_in_a_row_are_plain_text(root: Path, form: str) -> None:
    table = build_rows("a</s>b")
    plain = build_rows("a<~s>b")
    bound = bind(table, root, format=form)
    # `</s>` is one special token, or four bytes of text like the other.
    assert count(bound, table).prompt_tokens == count(bound, plain).prompt_tokens


@pytest.mark.parametrize(
    ("values", "expected"), [([None, "a"], [None, "a"]), ([None], [None]), ([], [])]
)
def test_rows_of_nulls_have_no_prompt(values: list[str | None], expected: list[str | None]) -> None:
    table = build_rows(*values)
    result, observed = bind(table).observe(table)
    assert result["y"].to_pylist() == expected
    assert result["error"].to_pylist() == [
        None if each else "every column of the prompt is null" for each in expected
    ]
    assert Tally.from_bytes(observed).errors == expected.count(None)


def test_the_engine_gets_keys_and_prompts_alone() -> None:
    wide = pa.array([{"a": [1, None]}, None, {"a": None}])
    table = build_rows("ccc", "a", "bb").append_column("wide", wide)
    echo = EchoGenerator()
    result = bind(table, echo=echo, batchSize=2)(table)
    assert result["y"].to_pylist() == ["ccc", "a", "bb"]
    assert [call.schema.names for call in echo.calls] == [[engines.KEY, engines.PROMPT]] * 2
    # Sorted by length, so that batches need little padding.
    assert [call[engines.PROMPT].to_pylist() for call in echo.calls] == [["a", "bb"], ["ccc"]]
    buffers = [[b.address for b in t["wide"].chunk(0).buffers() if b] for t in (table, result)]
    assert buffers[0] == buffers[1]


def test_one_bad_prompt_among_ten_thousand() -> None:  # ray-project/ray#59194
    texts = [f"row {number}" for number in range(10_000)]
    texts[5432] = "bad"
    table = build_rows(*texts)
    bound = bind(table, maxErrorPercent="0.01")
    chunks = [bound.observe(table.slice(start, 3000)) for start in range(0, 10_000, 3000)]
    result = pa.concat_tables([chunk for chunk, _ in chunks])
    assert result["y"].null_count == 1
    assert result.filter(result["y"].is_null())["_lastmile_row_hash"].to_pylist() == [5432 * 7919]
    states = [bound.load(observed) for _, observed in chunks]
    results = list(bound.finish(bound.merge(states)))
    assert results == list(bound.finish(bound.merge([bound.merge(states[1:]), states[0]])))
    assert [(r["kind"], r["value"]) for r in results[:3]] == [
        ("errorRows", 1),
        ("promptTokens", sum(map(len, texts))),
        ("generatedTokens", 10_000),
    ]
    assert results[0]["top"] == [{"value": "refused", "count": 1}]


@pytest.mark.parametrize(("percent", "fails"), [(25, False), ("24.999999", True), (100, False)])
def test_the_share_of_errors_is_judged_at_the_end(percent: Any, fails: bool) -> None:
    table = build_rows("bad", "a", "b", "c")
    bound = bind(table, maxErrorPercent=percent)
    states = [count(bound, table.slice(place, 1)) for place in range(4)]
    if not fails:
        assert list(bound.finish(bound.merge(states)))
        return
    with pytest.raises(
        StepError, match=r"maxErrorPercent: .* 1 of 4 rows have an error \(1 × refused\)"
    ):
        list(bound.finish(bound.merge(states)))


def test_the_first_error_fails_without_an_allowance() -> None:
    table = build_rows("a", "bad", "b")
    with pytest.raises(StepError, match="row 1 of the chunk has one: refused: 3"):
        bind(table, maxErrorPercent=0)(table)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}x",
        b'{"rows": -1}',
        b'{"rows": 1.5}',
        b'{"other": 1}',
        b'{"reasons": {"a": "b"}}',
        b"null",
    ],
)
def test_damaged_counts_are_refused(content: bytes) -> None:
    with pytest.raises(OutputError, match="Run again without --resume"):
        Tally.from_bytes(content)


def test_a_changed_model_is_refused(root: Path, tmp_path: Path) -> None:
    tiny_models.save_llama(tmp_path / "llama")
    table, opening = build_rows("a"), Opening(storage_root=str(tmp_path))
    bound = bind(table, tmp_path, opening)
    [pin] = opening.pins.models
    assert pin.sha256 == bound.digests[0] == bind(table, root).digests[0]  # wherever it lies
    (tmp_path / "llama" / ".cache").mkdir()
    (tmp_path / "llama" / ".cache" / "hub").write_text("hidden")
    bind(table, tmp_path, opening)
    tiny_models.save_llama(tmp_path / "llama", seed=9)
    with pytest.raises(
        ManifestError, match=r"generate\.source: must have the files that this run began"
    ):
        bind(table, tmp_path, opening)
    with pytest.raises(StepError, match="as when the run began"):
        bound.opened.files.fetch()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"source": "nowhere"},
            r"generate\.source: must be a folder with config\.json.*does not exist",
        ),
        ({"source": "llama/config.json"}, r"generate\.source: .* is another file"),
        ({"source": "."}, r"generate\.source: .* is a folder without config\.json"),
        ({"prompt": "{y}"}, r"generate\.prompt: must be a column of the step's input, got 'y'"),
        ({"outputs": [{"name": "y", "type": "int64"}]}, r"outputs\[0\]\.type: must be string"),
        ({"maxTokens": 128}, r"generate\.maxTokens: must be below the model's context of 128"),
        (
            {"engineArgs": {"seed": 1}},
            r"generate\.engineArgs\.seed: must not be set.*set seed instead",
        ),
        ({"engineArgs": {"num_return_sequences": 2}}, r"engineArgs\.num_return_sequences"),
        ({"engineArgs": {"top_p": 0.5}}, r"engineArgs\.top_p: must come with a temperature above"),
        (
            {"engineArgs": {"num_beams": 2}, "temperature": 1},
            r"engineArgs\.num_beams: must come with temperature 0",
        ),
        (
            {"engine": "VLLM"},
            r"generate\.engine: must come with the package vllm.*image lastmile-llm",
        ),
    ],
)
def test_what_does_not_fit_is_refused_at_planning(
    root: Path, fields: dict[str, Any], expected: str
) -> None:
    assert importlib.util.find_spec("vllm") is None
    with pytest.raises(ManifestError, match=expected):
        bind(build_rows("a"), root, **fields)


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        ("config.json", {"model_type": "t5"}, "must be a model that continues a text"),
        ("config.json", {"model_type": "new"}, "must be a model that transformers can load"),
        ("tokenizer.json", {}, "must have a tokenizer that transformers can load"),
    ],
)
def test_a_broken_model_is_refused_at_planning(
    tmp_path: Path, file: str, change: dict[str, Any], expected: str
) -> None:
    path = tiny_models.save_llama(tmp_path / "llama") / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change) if change else "{}")
    with pytest.raises(ManifestError, match=rf"generate\.source: {expected}"):
        bind(build_rows("a"), tmp_path)


def test_a_model_without_a_template_is_no_chat(tmp_path: Path) -> None:
    (tiny_models.save_llama(tmp_path / "llama") / "chat_template.jinja").unlink()
    with pytest.raises(ManifestError, match=r"generate\.format: must be Plain"):
        bind(build_rows("a"), tmp_path, format="Chat")


def test_damaged_weights_fail_the_step(tmp_path: Path) -> None:
    (tiny_models.save_llama(tmp_path / "llama") / "model.safetensors").write_bytes(b"no weights")
    table = build_rows("a")
    with pytest.raises(StepError, match="the model cannot be loaded: "):
        bind(table, tmp_path)(table)


@dataclass(frozen=True, kw_only=True)
class FakeSampling:
    """The parameters of `vllm.SamplingParams` that the step sets."""

    max_tokens: int
    temperature: float
    seed: int | None
    top_p: float = 1.0


@dataclass(frozen=True, kw_only=True)
class FakeEngine:
    """An engine with the interface of `vllm.LLM`, which answers with its sampling parameters."""

    prompts: list[Any] = field(default_factory=list)

    def generate(
        self, prompts: list[dict[str, list[int]]], sampling: list[FakeSampling], *, use_tqdm: bool
    ) -> list[Any]:
        assert not use_tqdm
        self.prompts.append(prompts)
        outputs = [SimpleNamespace(text=repr(each), token_ids=[1] * 3) for each in sampling]
        return [SimpleNamespace(outputs=[output]) for output in outputs]


def build_vllm(temperature: float, **arguments: Any) -> VllmGenerator:
    options = GeneratorOptions(
        engine="VLLM", is_chat=False, max_tokens=6, temperature=temperature, seed=3, arguments="{}"
    )
    encoder = build_encoder(
        tiny_models.build_tokenizer(), is_chat=False, max_tokens=6, context=tiny_models.CONTEXT
    )
    return VllmGenerator(
        engine=FakeEngine(),
        sampling=FakeSampling,
        arguments=arguments,
        encoder=encoder,
        options=options,
    )


def test_vllm_gets_the_tokens_of_good_prompts_and_a_seed_per_row() -> None:
    """The order of answers is checked here; tests/gpu/check_vllm.py checks the engine itself."""
    generator = build_vllm(0.5, top_p=0.9)
    keys = pa.array([7, 8, 9, 2**64 - 1], pa.uint64())
    table = pa.table({engines.KEY: keys, engines.PROMPT: ["red", TOO_LONG, "hat", "red"]})
    found = generator(table)
    tokenizer = tiny_models.build_tokenizer()
    ids = [{"prompt_token_ids": tokenizer.encode(text)} for text in ("red", "hat", "red")]
    assert generator.engine.prompts == [ids]
    assert found[engines.TEXT][1] is None
    assert found[engines.ERROR][1].startswith("the prompt does not fit")
    assert list(found[engines.GENERATED_TOKENS]) == [3, 0, 3, 3]
    assert "top_p=0.9" in found[engines.TEXT][0]
    assert len({*found[engines.TEXT]}) == 4  # a seed of its own for each row
    assert generator(table.slice(2))[engines.TEXT] == found[engines.TEXT][2:]


def test_vllm_has_no_seed_without_draws() -> None:
    table = pa.table({engines.KEY: pa.array([1], pa.uint64()), engines.PROMPT: ["red"]})
    assert "seed=None" in build_vllm(0.0)(table)[engines.TEXT][0]


def test_a_model_in_a_store_is_copied_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    local = open_files("llama", Opening(storage_root=str(root)), needs="config.json", suffixes=())
    store = SubTreeFileSystem(str(root), LocalFileSystem())
    place = Location(uri="store://llama", filesystem=store, path="llama")
    remote = replace(local, place=place)
    with remote.fetch_settings() as folder:
        assert not (folder / "model.safetensors").exists()
        assert (folder / "tokenizer.json").exists()
    copy = remote.fetch()
    assert copy == tmp_path / "lastmile" / "models" / local.sha256
    assert {path.name for path in copy.iterdir()} == {*local.names}
    assert (copy / "model.safetensors").read_bytes() == (
        root / "llama" / "model.safetensors"
    ).read_bytes()
    (copy / "marker").touch()
    assert (remote.fetch() / "marker").exists()
    with pytest.raises(StepError, match="as when the run began"):
        replace(remote, sha256="0" * 64).fetch()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(StepError, match=r"cannot copy the model to .* XDG_CACHE_HOME"):
        remote.fetch()


def test_a_hubs_cache_is_a_folder_of_links(root: Path, tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    for path in (root / "llama").iterdir():
        (tmp_path / "llama" / path.name).symlink_to(path)
    table = build_rows("hat")
    assert bind(table, tmp_path)(table)["y"] == bind(table, root)(table)["y"]
