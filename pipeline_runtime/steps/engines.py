"""Language and embedding models of steps: the interface between a step and the model's library.

The planner opens a model (`BindContext.open_generator`, `open_embedder`) and so checks it. A worker
loads it once per process. A loaded model is a `Scorer` of tables with the columns below alone.
"""

from __future__ import annotations

from typing import Protocol

from pipeline_runtime.steps.base import Scorer

# Input of a generator: uint64, which random draws depend on, and large_string.
KEY, PROMPT = "key", "prompt"
# Output of a generator: a text or an error (string, the other is null), and numbers of tokens.
TEXT, ERROR = "text", "error"
PROMPT_TOKENS, GENERATED_TOKENS = "promptTokens", "generatedTokens"
# Output of an embedder: a float32 array [B, L].
VECTOR = "vector"


class OpenedEngine(Protocol):
    """A model that was found and checked; picklable, and loaded where it is used."""

    @property
    def sha256(self) -> str:
        """The digest of the model's files."""
        ...

    @property
    def note(self) -> str:
        """The model and its engine, for people."""
        ...

    def load(self) -> Scorer:
        """Return the model, which stays in the memory of the process."""
        ...
