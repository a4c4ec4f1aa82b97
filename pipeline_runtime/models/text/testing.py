"""Fakes of the models of `generate` and `embed`, for tests: they need no files and no library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline_runtime.steps import engines
from pipeline_runtime.steps.base import Scorer

NO_DIGEST = "0" * 64


@dataclass(frozen=True, kw_only=True, eq=False)
class EchoGenerator:
    """A model that answers each prompt with itself, and refuses those that contain `refused`.

    A prompt has a token per character, and an answer has one. `calls` has the table of each batch.
    """

    refused: str = "bad"
    calls: list[pa.Table] = field(default_factory=list)
    sha256: str = NO_DIGEST
    note: str = "echo"

    def load(self) -> Scorer:
        return self

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        """Return the answers of a batch."""
        self.calls.append(table)
        texts = table[engines.PROMPT].to_pylist()
        errors = [f"refused: {len(t)} characters" if self.refused in t else None for t in texts]
        return {
            engines.TEXT: [t if e is None else None for t, e in zip(texts, errors, strict=True)],
            engines.ERROR: errors,
            engines.PROMPT_TOKENS: [len(text) for text in texts],
            engines.GENERATED_TOKENS: [1] * len(texts),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthEmbedder:
    """A model whose vectors have the length of the text in each of their `size` numbers."""

    size: int
    calls: list[pa.Table] = field(default_factory=list)
    sha256: str = NO_DIGEST
    note: str = "length"

    def load(self) -> Scorer:
        return self

    def __call__(self, table: pa.Table) -> Mapping[str, Any]:
        """Return the vectors of a batch."""
        self.calls.append(table)
        lengths_B = np.array([len(text) for text in table[engines.PROMPT].to_pylist()], np.float32)
        return {engines.VECTOR: np.repeat(lengths_B[:, None], self.size, axis=1)}
