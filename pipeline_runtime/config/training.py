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
    StoreUri,
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
    """What moves: single rows, or whole requests (needs `dataset.requestKey`)."""
    window_rows: Annotated[int, Field(ge=1, le=100_000_000)] = DEFAULT_SHUFFLE_ROWS
    """Rows that are mixed with each other."""


class Evaluation(SpecModel):
    """Rows kept out of training and used to judge the model, by a predicate or a hash."""

    where: Expression | None = None
    """Rows for which this is true judge the model."""
    holdout_percent: Annotated[int, Field(ge=1, le=MAX_HOLDOUT_PERCENT)] | None = None
    """Percentage of the rows that judges the model, chosen by hash."""
    by: Columns | None = None
    """A key whose rows stay together; the row's identity if absent."""
    seed: Seed = 0
    """Seed of that hash."""

    def rules(self) -> Iterator[tuple[str, str]]:
        choices = {"where": self.where, "holdoutPercent": self.holdout_percent}
        given = [name for name, value in choices.items() if value is not None]
        if message := check_one_of(tuple(choices), given):
            yield "", message
        if self.by and self.holdout_percent is None:
            yield "by", "must come with holdoutPercent, got none; add it or remove by"


class CheckpointPolicy(SpecModel):
    """When a checkpoint falls due, and how many whole ones are kept."""

    every_steps: PositiveInt | None = None
    """Optimiser steps from one checkpoint to the next."""
    every_seconds: PositiveInt = 300
    """Seconds from one checkpoint to the next."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Whole checkpoints that are kept."""
    trust_pickle: bool | None = None
    """True lets checkpoints hold Python objects of any type. Loading them runs whatever code they
    name, so trust whoever can write to the artifacts."""


BUILT_IN_ENTRYPOINT = "pipeline_runtime.training.ranking:train_loop"


class Training(SpecModel):
    """The training job."""

    entrypoint: ImportPath = BUILT_IN_ENTRYPOINT
    """`package.module:function` of the training loop."""
    batch_size: Annotated[int, Field(ge=1, le=10_000_000)] = 4096
    """Rows of one step of one trainer."""
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Passes over the table."""
    max_steps: PositiveInt | None = None
    """Stop after so many optimiser steps."""
    columns: Columns | None = None
    """What batches carry; all that the pipeline leaves if absent."""
    label_column: Column | None = None
    """The label; a null is an error, not a zero."""
    weight_column: Column | None = None
    """Weights of the rows in the loss."""
    shuffle: Shuffle = Field(default_factory=Shuffle)
    last_batch: Literal["pad", "drop"] = "pad"
    """The remainder is filled up with rows of weight zero, or dropped."""
    deduplicated: bool | None = None
    """Batches carry a request's columns once, with an index of them for the rows; the default for
    the built-in entrypoint alone."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of the forward and backward pass."""
    seed: Seed = 0
    """Seed of everything random in training."""
    evaluation: Evaluation | None = None
    checkpoint: CheckpointPolicy = Field(default_factory=CheckpointPolicy)
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """The entrypoint's own settings; no credentials."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from check_options("config", self.config)

    @property
    def takes_requests(self) -> bool:
        """Whether the entrypoint takes batches with a request's columns once."""
        if self.deduplicated is None:
            return self.entrypoint == BUILT_IN_ENTRYPOINT
        return self.deduplicated


class Artifacts(SpecModel):
    """Where checkpoints, metrics history and the report go, a folder an experiment below it."""

    uri: StoreUri = "experiments/"
    """Checkpoints, metrics and reports go into a folder an experiment below it."""
