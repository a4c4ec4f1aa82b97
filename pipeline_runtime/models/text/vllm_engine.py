"""Generates texts with vLLM's offline engine, on the GPUs of this process.

It forms its batches itself, of all prompts that it is given. Lastmile's lock has no vLLM, which
needs a torch of its own: images/llm has both. tests/gpu/check_vllm.py checks this module on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline_runtime.errors import StepError
from pipeline_runtime.models.text.encoding import PromptEncoder, describe
from pipeline_runtime.models.text.generating import GeneratorOptions
from pipeline_runtime.steps import engines

_SEED_BITS = 63  # torch's seeds are int64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class VllmGenerator:
    """Answers prompts; see `steps.engines`.

    Attributes:
        engine: vllm.LLM.
        sampling: class of its sampling parameters, vllm.SamplingParams.
        arguments: further sampling parameters.
    """

    engine: Any
    sampling: Any
    arguments: Mapping[str, Any]
    encoder: PromptEncoder
    options: GeneratorOptions
    lock: threading.Lock = field(default_factory=threading.Lock)  # LLM is not thread-safe

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        """Return the answers of a batch. Raises StepError."""
        keys = table[engines.KEY].to_pylist()
        with self.lock:
            prompts = self.encoder.encode(table[engines.PROMPT].to_pylist())
            rows = [row for row, prompt in enumerate(prompts) if prompt.error is None]
            found = self._generate([prompts[row].ids for row in rows], [keys[row] for row in rows])
        texts: list[str | None] = [None] * len(prompts)
        tokens = np.zeros(len(prompts), np.int64)
        for row, output in zip(rows, found, strict=True):
            texts[row], tokens[row] = output.text, len(output.token_ids)
        return {
            engines.TEXT: texts,
            engines.ERROR: [prompt.error for prompt in prompts],
            engines.PROMPT_TOKENS: [len(prompt.ids) for prompt in prompts],
            engines.GENERATED_TOKENS: tokens,
        }

    def _generate(self, prompts: Sequence[Sequence[int]], keys: Sequence[int]) -> list[Any]:
        if not prompts:
            return []
        try:
            requests = self.engine.generate(
                [{"prompt_token_ids": list(ids)} for ids in prompts],
                [self._build_sampling(key) for key in keys],
                use_tqdm=False,
            )
        except Exception as error:  # the engine may raise anything, and answers nothing afterwards
            raise StepError(f"the engine raised {describe(error)}") from error
        return [request.outputs[0] for request in requests]

    def _build_sampling(self, key: int) -> Any:
        options = self.options
        seed = None
        if options.temperature:
            state = np.random.SeedSequence([options.seed, key]).generate_state(1, np.uint64)
            seed = int(state[0]) >> (64 - _SEED_BITS)
        return self.sampling(
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            seed=seed,
            **self.arguments,
        )


def load(
    folder: Path, gguf: str | None, encoder: PromptEncoder, options: GeneratorOptions
) -> VllmGenerator:
    """Return the model in a folder. Raises StepError if the engine does not start."""
    import vllm

    known = set(vllm.SamplingParams.__struct_fields__)
    sampling = {name: v for name, v in options.engine_args.items() if name in known}
    loading = {name: v for name, v in options.engine_args.items() if name not in known}
    try:
        engine = vllm.LLM(
            model=str(folder / gguf if gguf else folder),
            **{"seed": options.seed, **loading},
        )
        generator = VllmGenerator(
            engine=engine,
            sampling=vllm.SamplingParams,
            arguments=sampling,
            encoder=encoder,
            options=options,
        )
        generator._build_sampling(0)
    except Exception as error:  # the engine may raise anything
        raise StepError(
            f"the model cannot be loaded: {describe(error)}; correct engineArgs, or the model"
        ) from error
    return generator
