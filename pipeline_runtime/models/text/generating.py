"""Opens language models: their files, configuration and tokenizer; the weights are loaded later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from pipeline_runtime.models.scoring.loaded import load_once
from pipeline_runtime.models.text.encoding import (
    PromptEncoder,
    build_encoder,
    describe,
    load_tokenizer,
)
from pipeline_runtime.models.text.folders import ModelFiles, open_files
from pipeline_runtime.sources import Opening
from pipeline_runtime.steps.base import Scorer
from pipeline_runtime.steps.checks import Checks, broken
from pipeline_runtime.steps.generate.model import GenerateStep

_PACKAGES = {"Transformers": "transformers", "VLLM": "vllm"}
_MODULES = {name: f"pipeline_runtime.models.text.{name.lower()}_engine" for name in _PACKAGES}
_ADVICE = {
    "Transformers": "install Lastmile's extra 'llm', or run in the image lastmile-llm",
    "VLLM": "run in the image lastmile-llm, or take engine: Transformers",
}
# Arguments that fields of the step set, or that change the number of answers.
_RESERVED = {
    **dict.fromkeys(("max_new_tokens", "max_length", "max_tokens"), "maxTokens"),
    **dict.fromkeys(("do_sample", "temperature"), "temperature"),
    "seed": "seed",
    **dict.fromkeys(("model", "tokenizer", "gguf_file", "pretrained_model_name_or_path"), "source"),
    **dict.fromkeys(("n", "num_return_sequences", "return_dict_in_generate"), "nothing"),
}
_DRAWING = ("top_k", "top_p", "min_p")
_SEARCHING = ("num_beams", "penalty_alpha", "assistant_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorOptions:
    """The options of a generator's calls; see `steps.generate.model`."""

    engine: str
    is_chat: bool
    max_tokens: int
    temperature: float
    seed: int
    arguments: str  # JSON, so that options are a key

    @property
    def engine_args(self) -> dict[str, Any]:
        """The arguments of the engine."""
        arguments: dict[str, Any] = json.loads(self.arguments)
        return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A language model; see `steps.engines.OpenedEngine`."""

    files: ModelFiles
    options: GeneratorOptions

    @property
    def sha256(self) -> str:
        return self.files.sha256

    @property
    def note(self) -> str:
        uri = self.files.place.uri
        return f"{uri} by {self.options.engine}, sha256 {self.sha256[:12]}"

    def load(self) -> Scorer:
        """Return the model of this process. Raises StepError if its files were changed."""
        return load_once(("generate", self.sha256, self.options), self._load)

    def _load(self) -> Scorer:
        folder = self.files.fetch()
        gguf = self.files.gguf
        encoder = build_prompt_encoder(folder, gguf, self.options)
        engine = import_module(_MODULES[self.options.engine])
        loaded: Scorer = engine.load(folder, gguf, encoder, self.options)
        return loaded


def open_generator(step: GenerateStep, opening: Opening) -> LanguageModel:
    """Return a step's model; see `plan.opened_models.open_generator`."""
    checks = Checks("")
    package = _PACKAGES[step.engine]
    if find_spec(package) is None:
        checks.add(
            "engine",
            f"must come with the package {package}, which is not installed here, but is "
            f"{step.engine}; {_ADVICE[step.engine]} (docs/images.md)",
        )
    check_arguments(step.engine_args or {}, step.temperature, checks)
    files = None
    with checks.at("source"):
        files = open_files(step.source, opening, needs="config.json", suffixes=(".gguf",))
    checks.finish()
    assert files is not None
    options = GeneratorOptions(
        engine=step.engine,
        is_chat=step.format == "Chat",
        max_tokens=step.max_tokens,
        temperature=float(step.temperature),
        seed=step.seed,
        arguments=json.dumps(step.engine_args or {}, sort_keys=True),
    )
    with files.fetch_settings() as folder:
        build_prompt_encoder(folder, files.gguf, options)
    return LanguageModel(files=files, options=options)


def check_arguments(
    arguments: Mapping[str, JsonValue], temperature: int | str, checks: Checks
) -> None:
    """Add a broken rule for each argument of the engine that the step sets itself.

    So it does for one that has no effect at this temperature.
    """
    for name in arguments:
        if name in _DRAWING and temperature == 0:
            checks.add(
                f"engineArgs.{name}",
                "must come with a temperature above 0, since it chooses among tokens to draw; set "
                "one, or remove it",
            )
        if name in _SEARCHING and temperature != 0:
            checks.add(
                f"engineArgs.{name}",
                "must come with temperature 0, since it searches for likely texts; set that, or "
                "remove it",
            )
        if field := _RESERVED.get(name):
            advice = f"set {field} instead" if field != "nothing" else "remove it"
            checks.add(f"engineArgs.{name}", f"must not be set, since the step sets it; {advice}")


def build_prompt_encoder(
    folder: Path, gguf: str | None, options: GeneratorOptions
) -> PromptEncoder:
    """Return the encoder of a model's prompts. Raises a broken rule if the model has none."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    file = {"gguf_file": gguf} if gguf else {}
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **file)
    except Exception as error:  # the library has no common class of its errors
        raise broken(
            f"must be a model that transformers can load, but: {describe(error)}", "source"
        ) from error
    kind = config.model_type
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and options.engine == "Transformers":
        raise broken(
            f"must be a model that continues a text, but is one of type {kind!r}", "source"
        )
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    context = options.engine_args.get("max_model_len", context)
    return build_encoder(
        load_tokenizer(folder, gguf),
        is_chat=options.is_chat,
        max_tokens=options.max_tokens,
        context=context,
    )
