"""Generates texts with a causal model of the library transformers, on a CPU or a GPU.

`encoding` runs before it. Shapes: B prompts, T tokens of the longest prompt, N new tokens, V tokens
of the vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from pipeline_runtime.errors import StepError
from pipeline_runtime.models.text.encoding import PromptEncoder, describe
from pipeline_runtime.models.text.generating import GeneratorOptions
from pipeline_runtime.steps import engines
from pipeline_runtime.steps.predict.batch_sizes import OutOfMemory

# Sampling that transformers does only together with its own draws, which depend on the batch.
_WARPERS = {
    "top_k": transformers.TopKLogitsWarper,
    "top_p": transformers.TopPLogitsWarper,
    "min_p": transformers.MinPLogitsWarper,
}
# The message of torch's allocator on a CPU, which raises a plain RuntimeError.
_NO_MEMORY = "not enough memory"


class RowDraws(LogitsProcessor):
    """Draws the next token of each row by a generator of its own.

    So a row's text depends on the seed and on its key, not on the rows beside it. The tokens'
    probabilities are laid end to end, and one uniform number per row and step chooses among them.
    """

    def __init__(self, seed: int, keys_B: Sequence[int]) -> None:
        self._draws_B = [np.random.default_rng([seed, key]) for key in keys_B]

    def __call__(self, input_ids: torch.Tensor, scores_BV: torch.Tensor) -> torch.Tensor:
        uniform_B = torch.tensor([draws.random() for draws in self._draws_B], dtype=torch.float64)
        sums_BV = scores_BV.double().softmax(-1).cumsum(-1)
        # Sums end a little beside 1, so that the number is scaled to where they end.
        levels_B1 = uniform_B.to(scores_BV.device)[:, None] * sums_BV[:, -1:]
        chosen_B1 = torch.searchsorted(sums_BV, levels_B1, right=True)
        chosen_B1 = chosen_B1.clamp_(max=scores_BV.shape[-1] - 1)
        only_BV = torch.full_like(scores_BV, -torch.inf)
        return only_BV.scatter_(1, chosen_B1, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class TransformersGenerator:
    """Answers prompts; see `steps.engines`."""

    model: Any
    encoder: PromptEncoder
    options: GeneratorOptions
    lock: threading.Lock = field(default_factory=threading.Lock)  # one batch has all cores

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        """Return the answers of a batch. Raises OutOfMemory, or StepError."""
        keys = table[engines.KEY].to_pylist()
        with self.lock:
            prompts = self.encoder.encode(table[engines.PROMPT].to_pylist())
            rows = [row for row, prompt in enumerate(prompts) if prompt.error is None]
            found = self._generate([prompts[row].ids for row in rows], [keys[row] for row in rows])
            answers = [_Answer(error=prompt.error) for prompt in prompts]
            for row, answer in zip(rows, found, strict=True):
                answers[row] = answer
            return {
                engines.TEXT: [self._decode(answer) for answer in answers],
                engines.ERROR: [answer.error for answer in answers],
                engines.PROMPT_TOKENS: [
                    len(prompt.ids) if answer.error is None else 0
                    for prompt, answer in zip(prompts, answers, strict=True)
                ],
                engines.GENERATED_TOKENS: [len(answer.ids) for answer in answers],
            }

    def _decode(self, answer: _Answer) -> str | None:
        return None if answer.error is not None else self.encoder.decode(answer.ids)

    def _generate(self, prompts: Sequence[Sequence[int]], keys: Sequence[int]) -> list[_Answer]:
        """Return the answer of each prompt. A prompt that raises is found by halving the batch."""
        if not prompts:
            return []
        try:
            return self._run(prompts, keys)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(str(error).partition("\n")[0]) from error
        except torch.AcceleratorError as error:  # no later call of this process would succeed
            raise StepError(f"the engine raised {describe(error)}") from error
        except (RuntimeError, ValueError, IndexError) as error:
            if _NO_MEMORY in str(error):
                raise OutOfMemory(str(error).partition("\n")[0]) from error
            if len(prompts) == 1:
                return [_Answer(error=f"the engine refused the prompt: {describe(error)}")]
            half = len(prompts) // 2
            return [
                *self._generate(prompts[:half], keys[:half]),
                *self._generate(prompts[half:], keys[half:]),
            ]

    def _run(self, prompts: Sequence[Sequence[int]], keys: Sequence[int]) -> list[_Answer]:
        longest = max(map(len, prompts))
        config = self.model.generation_config
        ids_BT = np.full((len(prompts), longest), config.pad_token_id, np.int64)
        mask_BT = np.zeros_like(ids_BT)
        for row, ids in enumerate(prompts):  # padded on the left, so that answers begin together
            ids_BT[row, longest - len(ids) :] = ids
            mask_BT[row, longest - len(ids) :] = 1
        device = self.model.device
        with torch.inference_mode():
            found_BL = self.model.generate(
                input_ids=torch.from_numpy(ids_BT).to(device),
                attention_mask=torch.from_numpy(mask_BT).to(device),
                logits_processor=self._build_processors(keys),
                tokenizer=self.encoder.tokenizer if config.stop_strings else None,
            )
        ends = config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [ends])
        new_BN = found_BL[:, longest:].tolist()
        return [_Answer(ids=_cut(ids, ends, config.pad_token_id)) for ids in new_BN]

    def _build_processors(self, keys: Sequence[int]) -> LogitsProcessorList:
        options = self.options
        processors = LogitsProcessorList()
        if options.temperature:
            processors.append(transformers.TemperatureLogitsWarper(options.temperature))
            processors += _build_warpers(options)
            processors.append(RowDraws(options.seed, keys))
        return processors


def _build_warpers(options: GeneratorOptions) -> list[LogitsProcessor]:
    """Return the sampling that the user asks for. Raises ValueError for a wrong value."""
    given = ((warper, options.engine_args.get(name)) for name, warper in _WARPERS.items())
    return [warper(value) for warper, value in given if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    ids: tuple[int, ...] = ()
    error: str | None = None


def _cut(ids: Sequence[int], ends: set[int | None], pad: int) -> tuple[int, ...]:
    """Return the tokens up to the first that ends a text, without the padding after it."""
    for place, token in enumerate(ids):
        if token in ends:
            return tuple(ids[: place + 1])
    last = len(ids)
    while last and ids[last - 1] == pad:  # after a stop string
        last -= 1
    return tuple(ids[:last])


def load(
    folder: Path, gguf: str | None, encoder: PromptEncoder, options: GeneratorOptions
) -> TransformersGenerator:
    """Return the model in a folder. Raises StepError if it cannot be loaded."""
    has_gpu = torch.cuda.is_available()
    known = vars(GenerationConfig())
    sampling = {n: v for n, v in options.engine_args.items() if n in known and n not in _WARPERS}
    loading = {n: v for n, v in options.engine_args.items() if n not in known}
    loading.setdefault("dtype", "auto" if has_gpu else "float32")  # CPUs are slow with bfloat16
    if gguf:
        loading["gguf_file"] = gguf
    transformers.logging.set_verbosity_error()  # errors are raised, so they are not printed too
    transformers.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, **loading
        ).eval()
        if has_gpu and "device_map" not in loading:
            model = model.to("cuda")
        _build_warpers(options)  # else each row would be an error row
        model.generation_config = _build_config(model.generation_config, encoder, options, sampling)
    except Exception as error:  # the library has no common class of its errors
        raise StepError(
            f"the model cannot be loaded: {describe(error)}; correct engineArgs, or the model"
        ) from error
    return TransformersGenerator(model=model, encoder=encoder, options=options)


def _build_config(
    own: GenerationConfig,
    encoder: PromptEncoder,
    options: GeneratorOptions,
    sampling: Mapping[str, Any],
) -> GenerationConfig:
    """Return the settings of each call: the model's own choose its tokens, and nothing else."""
    ends = own.eos_token_id
    pad = next(
        each
        for each in (own.pad_token_id, encoder.tokenizer.pad_token_id, *_to_list(ends), 0)
        if each is not None
    )
    tokens = {"bos_token_id": own.bos_token_id, "eos_token_id": ends, "pad_token_id": pad}
    config = GenerationConfig(
        **{**tokens, "max_new_tokens": options.max_tokens, "do_sample": False, **sampling}
    )
    config.validate(strict=True)
    return config


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
