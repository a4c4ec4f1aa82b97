"""Embedding models: opened by the planner, and run by onnxruntime or by transformers.

Tokens come from the `tokenizer.json` of the model, by the library tokenizers. Shapes: B texts, T
tokens of the longest text, L numbers of a vector.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.errors import StepError
from pipeline_runtime.models.scoring.loaded import load_once
from pipeline_runtime.models.scoring.onnx_files import open_session
from pipeline_runtime.models.text.encoding import describe
from pipeline_runtime.models.text.folders import ModelFiles, open_files
from pipeline_runtime.sources import Opening
from pipeline_runtime.sources.stores import read_file
from pipeline_runtime.steps import engines
from pipeline_runtime.steps.base import Scorer
from pipeline_runtime.steps.checks import Checks, broken
from pipeline_runtime.steps.embed.model import EmbedStep
from pipeline_runtime.steps.predict.batch_sizes import OutOfMemory

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
_TOKENIZER, _ONNX, _CONFIG = "tokenizer.json", "model.onnx", "config.json"
_MAX_CONFIG_BYTES = 1 << 20
# Longest text, in tokens, that is tried at planning: most models that say nothing take 512, and
# memory and time of attention grow with the square.
_MAX_TRIED_TOKENS = 1024
_ADVICE = "install Lastmile's extra 'llm', or run in the image lastmile-llm (docs/images.md)"


class Network(Protocol):
    """A model of tokens, without tokenizer and pooling."""

    def __call__(self, ids_BT: Ints, mask_BT: Ints) -> Floats:
        """Return vectors [B, T, L] of the tokens, or [B, L] of the texts. Raises OutOfMemory."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    """The options of an embedder's calls; see `steps.embed.model`."""

    engine: Literal["ONNX", "Transformers"]
    pooling: Literal["Mean", "CLS"]
    normalize: bool
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingModel:
    """An embedding model; see `steps.engines.OpenedEngine`."""

    files: ModelFiles
    tokens: ModelFiles
    options: EmbeddingOptions

    @property
    def sha256(self) -> str:
        found = {self.files.sha256, self.tokens.sha256}
        return "+".join(sorted(found))

    @property
    def note(self) -> str:
        uri = self.files.place.uri
        return f"{uri} by {self.options.engine}, sha256 {self.files.sha256[:12]}"

    def load(self) -> Scorer:
        """Return the model of this process. Raises StepError if its files were changed."""
        return load_once(("embed", self.sha256, self.options), self._load)

    def _load(self) -> Scorer:
        folder = self.files.fetch()
        network: Network
        if self.options.engine == "ONNX":
            name = self.files.names[0] if self.files.is_file else _ONNX
            network = OnnxNetwork.load(folder / name)
        else:
            from pipeline_runtime.models.text.transformers_network import load_network

            network = load_network(folder)
        tokens = self.tokens.fetch() if self.tokens != self.files else folder
        tokenizer = _load_tokenizer(tokens / _TOKENIZER, self.options.max_tokens)
        return Embedder(network=network, tokenizer=tokenizer, options=self.options)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Embedder:
    """Makes vectors of texts; see `steps.engines`."""

    network: Network
    tokenizer: Tokenizer
    options: EmbeddingOptions

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        """Return a vector for each text. Raises OutOfMemory, or StepError."""
        # Not `encode_batch`, whose threads would compete with those of the data worker.
        encoded = [self.tokenizer.encode(text) for text in table[engines.PROMPT].to_pylist()]
        longest = max(1, *(len(each.ids) for each in encoded))
        ids_BT = np.zeros((len(encoded), longest), np.int64)
        mask_BT = np.zeros_like(ids_BT)
        for row, each in enumerate(encoded):
            ids_BT[row, : len(each.ids)] = each.ids
            mask_BT[row, : len(each.ids)] = 1
        return {engines.VECTOR: self._pool(self.network(ids_BT, mask_BT), mask_BT)}

    def _pool(self, found: Floats, mask_BT: Ints) -> Floats:
        if found.ndim == 3 and self.options.pooling == "CLS":
            found = found[:, 0]
        elif found.ndim == 3:
            sums_BL = np.einsum("btl,bt->bl", found, mask_BT.astype(np.float32))
            found = sums_BL / np.maximum(1, mask_BT.sum(1, keepdims=True))
        if found.ndim != 2:
            raise StepError(
                "the model must return vectors of tokens [B, T, L] or of texts [B, L], but "
                f"returned {list(found.shape)}"
            )
        if self.options.normalize:
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        return np.ascontiguousarray(found, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxNetwork:
    """A network in ONNX's format, run by onnxruntime."""

    session: Any
    inputs: Sequence[str]

    @classmethod
    def load(cls, path: Path) -> OnnxNetwork:
        """Return the network in a file. Raises a broken rule if it is none."""
        session = open_session(path.read_bytes(), "Auto")
        inputs = [each.name for each in session.get_inputs()]
        known = {"input_ids", "attention_mask", "token_type_ids"}
        if not {"input_ids"} <= set(inputs) <= known:
            raise broken(
                f"must be a model of the inputs {', '.join(sorted(known))}, but has "
                f"{', '.join(inputs)}; export it again"
            )
        return cls(session=session, inputs=inputs)

    def __call__(self, ids_BT: Ints, mask_BT: Ints) -> Floats:
        values = {
            "input_ids": ids_BT,
            "attention_mask": mask_BT,
            "token_type_ids": np.zeros_like(ids_BT),
        }
        try:
            found: Floats = self.session.run(None, {name: values[name] for name in self.inputs})[0]
        except Exception as error:  # onnxruntime has no common class of its errors
            if "Failed to allocate memory" in str(error):
                raise OutOfMemory("Failed to allocate memory") from error
            raise StepError(f"the model raised {describe(error)}") from error
        return found


def open_embedder(step: EmbedStep, opening: Opening) -> EmbeddingModel:
    """Return a step's model; see `plan.opened_models.open_embedder`."""
    checks = Checks("")
    packages = ("tokenizers",) if step.engine == "ONNX" else ("tokenizers", "transformers")
    for package in packages:
        if find_spec(package) is None:
            checks.add(
                "engine",
                f"must come with the package {package}, which is not installed; {_ADVICE}",
            )
    files = tokens = None
    with checks.at("source"):
        if step.engine == "ONNX":
            files = open_files(step.source, opening, needs=_ONNX, suffixes=(".onnx",))
        else:
            files = open_files(step.source, opening, needs=_CONFIG, suffixes=())
    if step.tokenizer is not None:
        with checks.at("tokenizer"):
            tokens = open_files(step.tokenizer, opening, needs=_TOKENIZER, suffixes=(_TOKENIZER,))
    elif files is not None and _TOKENIZER not in files.names:
        checks.add(
            "tokenizer",
            f"must name the place of {_TOKENIZER}, since {step.source} has none; add it",
        )
    checks.finish()
    assert files is not None
    model = EmbeddingModel(
        files=files,
        tokens=tokens or files,
        options=EmbeddingOptions(
            engine=step.engine,
            pooling=step.pooling,
            normalize=step.normalize,
            max_tokens=step.max_tokens,
        ),
    )
    with checks.at("source"):
        scorer = model.load()
        scorer(_build_text(1))
    with checks.at("maxTokens"):
        _check_context(files, step.max_tokens)
    checks.finish()
    with checks.at("maxTokens"):
        _try_longest(scorer, min(step.max_tokens, _MAX_TRIED_TOKENS))
    checks.finish()
    return model


def _build_text(num_words: int) -> pa.Table:
    """Return the input of a model with one text, which has a token of each word or more."""
    return pa.table({engines.PROMPT: pa.array(["a " * num_words], pa.large_string())})


def _try_longest(scorer: Scorer, num_tokens: int) -> None:
    """Raise a broken rule if the model cannot take a text of so many tokens.

    Not each model says how many it can take, and some take fewer than they have positions.
    """
    try:
        scorer(_build_text(num_tokens))
    except StepError as error:
        raise broken(
            f"must be a number of tokens that the model can take, but with a text of "
            f"{num_tokens:,}, {error}; lower it"
        ) from error


def _check_context(files: ModelFiles, max_tokens: int) -> None:
    """Raise a broken rule if the model has no positions for so many tokens, as far as it says."""
    if _CONFIG not in files.names:
        return
    content = read_file(files.place.join(_CONFIG), "read a model", _MAX_CONFIG_BYTES)
    try:
        settings = json.loads(content or b"{}")
    except ValueError:  # with ONNX, the file is of no other use
        return
    context = settings.get("max_position_embeddings") if isinstance(settings, dict) else None
    if isinstance(context, int) and 0 < context < max_tokens:
        raise broken(
            f"must be at most the model's context of {context:,} tokens, but is {max_tokens:,}; "
            "lower it"
        )


def _load_tokenizer(path: Path, max_tokens: int) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise broken(f"must have a tokenizer, but: {path.name}: {describe(error)}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer
