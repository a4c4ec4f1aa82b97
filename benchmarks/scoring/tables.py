"""The table to score, and the models that score it.

A row has a key, four inputs, and carried columns, which no model reads: a fifth each integers,
floats, strings, lists of eight floats, and integers with nulls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

ROWS, MICROS, CPU = "rows", "microsPerRow", "cpuMicrosPerRow"
KEY: Final = "row_key"
INPUTS: Final = ("x0", "x1", "x2", "x3")
TEXT: Final = "text"
PROMPT: Final = "Name a colour that suits item {row_key}."
_LIST_LENGTH: Final = 8
_NULL_SHARE: Final = 0.1
_ROWS_PER_GROUP: Final = 12_500
_ROWS_PER_FILE: Final = 50_000
_HIDDEN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A table, and what scores it.

    Attributes:
        folder: the storage root of the table `rows/`.
        num_models: number of models; none for a table that is only read.
        num_groups: groups of inputs whose importance for the first model is measured.
        is_narrow: True if the result has the key and the scores alone.
        language_model: a folder or file; an engine that answers at once if empty. None for a table
            without prompts.
    """

    folder: str
    num_models: int = 1
    num_groups: int = 0
    is_narrow: bool = False
    language_model: str | None = None

    @property
    def table(self) -> str:
        """The folder of the Parquet files."""
        return f"{self.folder}/rows"

    @property
    def scores(self) -> tuple[str, ...]:
        """The columns that the models add."""
        if self.language_model is not None:
            return (TEXT,)
        return tuple(map(name_score, range(self.num_models)))


class Clock:
    """The time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return wall seconds, and CPU seconds of this process."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {MICROS: wall, CPU: cpu}


# Scores a table, and notes what it found by the name of a metric.
Program = Callable[[Scored, dict[str, float]], Iterator[pa.Table]]


def name_score(model: int) -> str:
    """Return the column that the model with this number adds."""
    return f"score_{model}"


def make_table(data: Path, *, rows: int, carried: int, factor: int = 1) -> str:
    """Write the table unless it exists, its files `factor` times; return the storage root."""
    folder = data.absolute() / f"scored-{rows}-{carried}-{factor}"
    if folder.exists():
        return str(folder)
    made = folder.with_name(f".{folder.name}")
    (made / "rows").mkdir(parents=True, exist_ok=True)
    if factor > 1:  # hard links, so that disks need not grow
        base = Path(make_table(data, rows=rows, carried=carried), "rows")
        for path in base.iterdir():
            for copy in range(factor):
                os.link(path, made / "rows" / f"{copy:02d}-{path.name}")
    for first in range(0, rows if factor == 1 else 0, _ROWS_PER_FILE):
        table = draw_rows(first, min(_ROWS_PER_FILE, rows - first), carried)
        path = made / "rows" / f"part-{first:09d}.parquet"
        pq.write_table(table, path, row_group_size=_ROWS_PER_GROUP)
    made.rename(folder)  # it gets this name when it is complete
    return str(folder)


def draw_rows(first: int, num_rows: int, carried: int) -> pa.Table:
    """Draw rows with keys from `first` on; the same for the same arguments."""
    random = np.random.default_rng([first, carried])
    columns: dict[str, pa.Array] = {KEY: pa.array(np.arange(first, first + num_rows))}
    for name in INPUTS:
        columns[name] = pa.array(random.standard_normal(num_rows, dtype=np.float32))
    kinds = (_integers, _floats, _strings, _lists, _integers_with_nulls)
    for index in range(carried):
        columns[f"carried_{index:03d}"] = kinds[index % len(kinds)](random, num_rows)
    return pa.table(columns)


def _integers(random: np.random.Generator, num_rows: int) -> pa.Array:
    return pa.array(random.integers(-(2**62), 2**62, num_rows))


def _floats(random: np.random.Generator, num_rows: int) -> pa.Array:
    return pa.array(random.standard_normal(num_rows, dtype=np.float32))


def _strings(random: np.random.Generator, num_rows: int) -> pa.Array:
    return pa.array(random.integers(0, 10**9, num_rows)).cast(pa.string())


def _lists(random: np.random.Generator, num_rows: int) -> pa.Array:
    values = pa.array(random.standard_normal(_LIST_LENGTH * num_rows, dtype=np.float32))
    offsets = pa.array(np.arange(num_rows + 1, dtype=np.int32) * _LIST_LENGTH)
    return pa.ListArray.from_arrays(offsets, values)


def _integers_with_nulls(random: np.random.Generator, num_rows: int) -> pa.Array:
    # `ray.data.llm` fails at larger ones: it makes them floats.
    mask = random.random(num_rows) < _NULL_SHARE
    return pa.array(random.integers(-(2**52), 2**52, num_rows), mask=mask)


class Model(nn.Module):
    """A small network, as the cost of carrying columns does not depend on the model."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(
            nn.Linear(len(INPUTS), _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1), nn.Sigmoid()
        )

    @torch.inference_mode()
    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the scores [B]."""
        inputs_BC = torch.stack([batch[name] for name in INPUTS], 1)
        scores_B: torch.Tensor = self.layers(inputs_BC)[:, 0]
        return scores_B


def load(seed: int) -> Callable[[Any], torch.Tensor]:
    """Return a model, as `predict.models[].function` loads it."""
    return Model(seed).eval()
