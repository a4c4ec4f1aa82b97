"""The models of the steps `generate` and `embed`.

    plan ─▶ open_generator ─▶ a picklable model ─▶ load, once per process ─▶ scorer ─▶ answers

Opening a model finds its files, pins them by digest, and checks what does not need its weights.
`folders` has the files, `encoding` the tokens of prompts. Each engine is a module, whose library is
imported when it is used: it is an extra of Lastmile's package.
"""

from __future__ import annotations

from pipeline_runtime.models.text.embedding import open_embedder
from pipeline_runtime.models.text.generating import open_generator

__all__ = ["open_embedder", "open_generator"]
