"""The tokens of prompts, and the prompts that a model cannot take.

A prompt's text has no special tokens: a `<|im_end|>` in a row is plain text, so a row cannot end
its own turn or begin another one. With `Chat`, the model's template is around it. The engines run
after this module, and get numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline_runtime.steps.checks import broken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Stands for the message while a chat template is rendered, which may strip spaces.
_MESSAGE = "6c6173746d696c65-message-of-the-user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The tokens of a prompt, or the reason why it has none."""

    ids: tuple[int, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEncoder:
    """Makes tokens of prompts.

    Attributes:
        before, after: tokens around each prompt.
        max_tokens: tokens that are to be generated.
        context: tokens of a prompt and its answer together, at most.
    """

    tokenizer: PreTrainedTokenizerBase
    before: tuple[int, ...]
    after: tuple[int, ...]
    is_chat: bool
    max_tokens: int
    context: int | None

    def encode(self, prompts: Sequence[str]) -> list[Encoded]:
        """Return the tokens of each prompt."""
        # Slow tokenizers have no batches without special tokens, and encode one text at a time.
        found = self.tokenizer(
            list(prompts), add_special_tokens=not self.is_chat, split_special_tokens=True
        )["input_ids"]
        return [self._check((*self.before, *ids, *self.after)) for ids in found]

    def _check(self, ids: tuple[int, ...]) -> Encoded:
        if not ids:
            return Encoded(error="the prompt has no tokens")
        if self.context is not None and len(ids) + self.max_tokens > self.context:
            return Encoded(
                error=f"the prompt does not fit into the model's context: it has {len(ids):,} "
                f"tokens, and maxTokens is {self.max_tokens:,} of the context's {self.context:,}"
            )
        return Encoded(ids=ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def load_tokenizer(folder: Path, gguf: str | None) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a model's folder. Raises a broken rule if there is none."""
    from transformers import AutoTokenizer

    file = {"gguf_file": gguf} if gguf else {}
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, **file)
    except Exception as error:  # the library has no common class of its errors
        raise broken(
            f"must have a tokenizer that transformers can load, but: {describe(error)}", "source"
        ) from error


def build_encoder(
    tokenizer: PreTrainedTokenizerBase, *, is_chat: bool, max_tokens: int, context: int | None
) -> PromptEncoder:
    """Return the encoder of a model's prompts.

    Raises a broken rule if the model has no chat template, or the context no room for a prompt.
    """
    if context is not None and max_tokens >= context:
        raise broken(
            f"must be below the model's context of {context:,} tokens, which has the prompt too, "
            f"but is {max_tokens:,}; lower it",
            "maxTokens",
        )
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    if is_chat:
        before, after = _encode_template(tokenizer)
    return PromptEncoder(
        tokenizer=tokenizer,
        before=before,
        after=after,
        is_chat=is_chat,
        max_tokens=max_tokens,
        context=context,
    )


def _encode_template(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens before and after a user's message."""
    if not tokenizer.chat_template:
        raise broken("must be Plain with a model that has no chat template; set that", "format")
    messages = [{"role": "user", "content": _MESSAGE}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template may raise anything
        raise broken(
            f"must be Plain, since the chat template raised {describe(error)}", "format"
        ) from error
    parts = text.split(_MESSAGE)
    if len(parts) != 2:
        raise broken(
            "must be Plain, since the model's chat template has not the user's message once",
            "format",
        )
    before, after = (tuple(tokenizer.encode(part, add_special_tokens=False)) for part in parts)
    return before, after


def describe(error: Exception) -> str:
    """Return an error of a library as one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
