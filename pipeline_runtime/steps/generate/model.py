"""The fields of the step `generate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, JsonValue, StringConstraints

from pipeline_runtime.config.base import (
    MAX_EXPRESSION_CHARS,
    Column,
    PositiveInt,
    Seed,
    StoreUri,
    check_options,
    check_unique_names,
    rule_error,
)
from pipeline_runtime.config.decimals import KeepPercent, Temperature
from pipeline_runtime.config.step_model import StepModel, TypedColumn
from pipeline_runtime.config.texts.prompt_template import TemplateError, parse_template

# Tokens of a row. No context of a model is longer than some ten million tokens.
MAX_TOKENS = 1_000_000


def check_prompt(value: str) -> str:
    """Refuse a text that is no prompt template."""
    try:
        parse_template(value)
    except TemplateError as error:
        raise rule_error(str(error)) from error
    return value


Prompt = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_EXPRESSION_CHARS),
    AfterValidator(check_prompt),
]


class GenerateStep(StepModel):
    """Add a text that a language model generates from a prompt for each row."""

    # A resumed run may allow more errors than the attempt before.
    unhashed_fields: ClassVar[tuple[str, ...]] = ("batchSize", "maxErrorPercent")
    limits: ClassVar[tuple[str, ...]] = ("max_error_percent",)

    engine: Literal["Transformers", "VLLM"]
    """Library that runs the model; `VLLM` needs GPUs."""
    source: StoreUri
    """Folder as `save_pretrained` writes it, or a GGUF file. Nothing is downloaded from a hub."""
    prompt: Prompt
    """Prompt, with names of columns in braces; `{{` and `}}` are braces."""
    format: Literal["Plain", "Chat"] = "Plain"
    """`Chat` puts the prompt into the chat template of the model; `Plain` continues it."""
    outputs: Annotated[
        tuple[TypedColumn, ...],
        Field(min_length=1, max_length=1),
        AfterValidator(check_unique_names),
    ]
    """Column of the text, `string` or `large_string`; null in an error row."""
    error_column: Column | None = None
    """Column of the reason why a row has no text; none if absent."""
    max_error_percent: KeepPercent = 0
    """Largest share of error rows, in percent; with 0 the first one fails the run."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 128
    """Largest number of tokens to generate per row."""
    temperature: Temperature = 0
    """Temperature of sampling, such as `"0.7"`. With 0, the likeliest token is taken."""
    seed: Seed = 0
    """Seed of sampling: each row draws by it and its own identity."""
    batch_size: PositiveInt | None = None
    """Rows of a batch; if absent, 16 with `Transformers`, all at hand with `VLLM`."""
    engine_args: dict[str, JsonValue] | None = None
    """Further arguments of the engine, for sampling or loading, by their names; no credentials."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if any(output.name == self.error_column for output in self.outputs):
            yield "errorColumn", "must be another column than the one in outputs; rename it"
        yield from check_options("engineArgs", self.engine_args or {})

    def describe(self) -> str:
        return f"{self.outputs[0].name} ({self.source})"

    def find_inputs(self) -> Iterable[str]:
        return [part.text for part in parse_template(self.prompt) if part.is_column]

    def find_outputs(self) -> frozenset[str]:
        return frozenset(self.find_scores())

    def find_scores(self) -> tuple[str, ...]:
        names = (self.outputs[0].name, self.error_column)
        return tuple(name for name in names if name is not None)

    def find_measured(self) -> str | None:
        return "generate"

    def find_seed(self) -> int | None:
        return None if self.temperature == 0 else self.seed
