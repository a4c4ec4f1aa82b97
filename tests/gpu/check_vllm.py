"""Checks the engine VLLM of the step `generate` on a GPU, in at most eight minutes.

    python tests/gpu/check_vllm.py                     with a random model that it makes
    python tests/gpu/check_vllm.py --source FOLDER     with a real one

Run it in the image lastmile-llm, from a checkout. It needs no network, and is no test of pytest,
since vLLM is not in the lock. It prints a line per check and a JSON object at the end; the exit
code is 0 if all checks hold. Each check goes through the step, as a run does.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline_runtime.config.steps import Step
from pipeline_runtime.models.text import open_generator
from pipeline_runtime.sources import Opening
from pipeline_runtime.steps.base import BindContext
from pipeline_runtime.steps.binding import bind_step
from pipeline_runtime.steps.generate.transform import Generate

LIMIT_SECONDS = 480
ROWS, MAX_TOKENS = 256, 16
# A small share of the memory: the two engines are there one after another.
ARGUMENTS = {"gpu_memory_utilization": 0.3, "enforce_eager": True}
# The likeliest token may be another one where two are nearly equal, as sums differ in their bits.
MIN_EQUAL = 0.9
WORDS = ("red", "blue", "shoe", "hat", "green", "coat", "scarf")


def save_model(folder: Path) -> None:
    """Save a random Llama with heads of 64 numbers, which all of vLLM's kernels take."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator([" ".join(WORDS)], trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.5,  # so that logits are far apart
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def bind(table: pa.Table, source: str, **fields: Any) -> Generate:
    """Return the step with a model."""
    step = {
        "source": source,
        "prompt": "Tag: {title}",
        "outputs": [{"name": "tag", "type": "string"}],
        "errorColumn": "why",
        "maxErrorPercent": 100,
        "maxTokens": MAX_TOKENS,
        **fields,
    }
    opening = Opening(storage_root="")
    context = BindContext(
        open_side_table=lambda _: sys.exit("no step here joins"),
        open_generator=lambda config: open_generator(config, opening),
    )
    bound = bind_step(Step.model_validate({"generate": step}, strict=False), table.schema, context)
    assert isinstance(bound, Generate)
    return bound


def build_rows() -> pa.Table:
    """Return rows of which one has no title, and one a title longer than any context here."""
    rng = np.random.default_rng(1)
    titles: list[str | None] = [" ".join(rng.choice(WORDS, 5)) for _ in range(ROWS)]
    titles[10], titles[20] = None, "red hat " * 200_000
    hashes = pa.array(np.arange(ROWS, dtype=np.uint64) * 7919)
    return pa.table({"title": titles, "_lastmile_row_hash": hashes})


def check(source: str) -> dict[str, Any]:
    """Return the name of each check, and whether it holds, and the measured numbers."""
    table, found = build_rows(), dict[str, Any]()
    bound = bind(table, source, engine="VLLM", engineArgs=ARGUMENTS)
    bound.opened.load()
    result, observed = bound.observe(table)
    tally = bound.load(observed)
    good = result["tag"].is_valid().to_pylist()
    found["error rows are the two bad ones"] = [i for i in range(ROWS) if not good[i]] == [10, 20]
    found["each error row has a reason"] = result["why"].null_count == ROWS - 2
    found["tokens are counted"] = 0 < tally.generated_tokens <= MAX_TOKENS * (ROWS - 2)
    found["tokensPerSecond"] = round(tally.generated_tokens * 1e6 / max(1, tally.microseconds))
    again = bound(table.slice(0, 9))["tag"].to_pylist()
    texts = result["tag"].to_pylist()
    found["greedy texts repeat"] = _share_equal(again, texts[:9]) >= MIN_EQUAL
    drawn = bind(table, source, engine="VLLM", engineArgs=ARGUMENTS, temperature="0.8", seed=3)
    # The engine of the first step stays in memory, and the second has one of its own.
    whole = drawn(table)["tag"].to_pylist()
    order = [30, 5, 17, 200]
    part = drawn(table.take(order))["tag"].to_pylist()
    found["draws depend on the row alone"] = part == [whole[i] for i in order]
    found["draws differ from greedy texts"] = whole != texts
    plain = bind(table, source, engine="Transformers", batchSize=64)(table)["tag"].to_pylist()
    found["equalToTransformers"] = _share_equal(plain, texts)
    found["texts are those of transformers"] = found["equalToTransformers"] >= MIN_EQUAL
    return found


def _share_equal(a: list[Any], b: list[Any]) -> float:
    return sum(x == y for x, y in zip(a, b, strict=True)) / len(a)


def main() -> int:
    """Run the checks, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", help="folder of a model; a random one if absent")
    arguments = parser.parse_args()
    signal.alarm(LIMIT_SECONDS)  # ends the process
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        source = arguments.source
        if source is None:
            source = folder
            save_model(Path(folder))
        found = check(str(Path(source).absolute()))
    found["seconds"] = round(time.monotonic() - began)
    checks = {name: value for name, value in found.items() if isinstance(value, bool)}
    for name, holds in checks.items():
        print("ok  " if holds else "FAIL", name)
    print(json.dumps(found))
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":  # vLLM starts processes that import this file
    sys.exit(main())
