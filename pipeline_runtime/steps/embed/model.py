"""The fields of the step `embed`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from pipeline_runtime.config.base import Column, PositiveInt, StoreUri, check_unique_names
from pipeline_runtime.config.step_model import StepModel, TypedColumn

# Tokens of a text. No embedding model reads more than some ten thousand.
MAX_TOKENS = 1_000_000


class EmbedStep(StepModel):
    """Add a vector that an embedding model computes of a text column."""

    unhashed_fields: ClassVar[tuple[str, ...]] = ("batchSize",)

    engine: Literal["ONNX", "Transformers"]
    """Library that runs the model."""
    source: StoreUri
    """Folder with `model.onnx`, or as `save_pretrained` writes it, or an ONNX file. Nothing is
    downloaded from a hub."""
    tokenizer: StoreUri | None = None
    """Folder with `tokenizer.json`, or that file; by default the model's."""
    column: Column
    """Column of the text. A null has a null vector."""
    outputs: Annotated[
        tuple[TypedColumn, ...],
        Field(min_length=1, max_length=1),
        AfterValidator(check_unique_names),
    ]
    """The column of the vector, of type `fixed_size_list<float32>[N]`."""
    pooling: Literal["Mean", "CLS"] = "Mean"
    """Vector of a text: the mean of those of its tokens, or the first one."""
    normalize: bool = True
    """`true`: each vector has length 1, so that a dot product is the cosine."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 256
    """Tokens of a text that count, special tokens included; the rest is cut off."""
    batch_size: PositiveInt = 64
    """Texts of a batch."""

    def describe(self) -> str:
        return f"{self.outputs[0].name} of {self.column} ({self.source})"

    def find_inputs(self) -> Iterable[str]:
        return (self.column,)

    def find_outputs(self) -> frozenset[str]:
        return frozenset(self.find_scores())

    def find_scores(self) -> tuple[str, ...]:
        return (self.outputs[0].name,)
