"""How the rows become a model: batches, epochs, shuffle, entrypoint, evaluation, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from pipeline_runtime.config.base import (
    Column,
    Columns,
    Expression,
    ImportPath,
    PositiveInt,
    Seed,
    SpecModel,
    Uri,
    check_one_of,
    check_options,
)

# One in a hundred rows is enough for an AUC within 0.01 on a table of a million.
MAX_HOLDOUT_PERCENT = 50
# Rows a window of the shuffle: two row groups of 16,384 rows, the size Lastmile writes. A window is
# also what one task makes before the trainer sees any of it, so larger ones start later.
DEFAULT_SHUFFLE_ROWS = 32_768


class Shuffle(SpecModel):
    """How rows are mixed: row groups in a new order each epoch, rows within windows of them."""

    unit: Literal["none", "row", "request"] = "row"
    window_rows: Annotated[int, Field(ge=1, le=100_000_000)] = DEFAULT_SHUFFLE_ROWS


class Evaluation(SpecModel):
    """Rows kept out of training and used to judge the model, by a predicate or a hash."""

    where: Expression | None = None
    holdout_percent: Annotated[int, Field(ge=1, le=MAX_HOLDOUT_PERCENT)] | None = None
    by: Columns | None = None  # a key whose rows stay together; the row's identity when absent
    seed: Seed = 0

    def rules(self) -> Iterator[tuple[str, str]]:
        choices = {"where": self.where, "holdoutPercent": self.holdout_percent}
        given = [name for name, value in choices.items() if value is not None]
        if message := check_one_of(tuple(choices), given):
            yield "", message
        if self.by and self.holdout_percent is None:
            yield "by", "must come with holdoutPercent, got none; add it or remove by"


class CheckpointPolicy(SpecModel):
    """When a checkpoint falls due, and how many whole ones are kept."""

    every_steps: PositiveInt | None = None  # optimiser steps
    every_seconds: PositiveInt = 300
    keep: Annotated[int, Field(ge=1, le=1000)] = 2


class Training(SpecModel):
    """The training job."""

    entrypoint: ImportPath = "pipeline_runtime.training.ranking:train_loop"
    batch_size: Annotated[int, Field(ge=1, le=10_000_000)] = 4096  # rows a step of one trainer
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 1
    max_steps: PositiveInt | None = None  # stop after so many optimiser steps
    columns: Columns | None = None  # what batches carry; all that the pipeline leaves when absent
    label_column: Column | None = None  # a null label is an error, not a zero
    weight_column: Column | None = None
    shuffle: Shuffle = Field(default_factory=Shuffle)
    last_batch: Literal["pad", "drop"] = "pad"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    seed: Seed = 0
    evaluation: Evaluation | None = None
    checkpoint: CheckpointPolicy = Field(default_factory=CheckpointPolicy)
    config: dict[str, JsonValue] = Field(default_factory=dict)  # the entrypoint's own

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from check_options("config", self.config)


class Artifacts(SpecModel):
    """Where checkpoints, metrics history and the report go, a folder an experiment below it."""

    uri: Uri = "experiments/"
