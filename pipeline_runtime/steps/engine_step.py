"""The base of the steps that call a language or embedding model with one text per row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.steps.base import BoundStep
from pipeline_runtime.steps.engines import OpenedEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep(BoundStep):
    """A step that calls a model with one text per row, in batches, and adds its answers.

    Attributes:
        output: the column of the answers.
        type: its type.
    """

    opened: OpenedEngine
    output: str
    type: pa.DataType
    batch_size: int

    @property
    def is_elementwise(self) -> bool:
        return False  # a batch of a model is cut from rows of several requests

    @property
    def digests(self) -> tuple[str, ...]:
        return (self.opened.sha256,)

    @property
    def way(self) -> str:
        return self.opened.note


def sort_by_length(texts: pa.Array) -> tuple[npt.NDArray[np.int64], int]:
    """Return the places of texts, the shortest first and nulls last, and the number of texts.

    Texts of one batch should be equally long, since the shorter ones are padded.
    """
    lengths = pa.table({"length": pc.utf8_length(texts), "row": np.arange(len(texts))})
    order = lengths.sort_by([("length", "ascending"), ("row", "ascending")])["row"].to_numpy()
    return order, len(texts) - texts.null_count
