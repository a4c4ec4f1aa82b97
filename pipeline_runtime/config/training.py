"""The training settings: entrypoint or script, batches, epochs, shuffle, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from pipeline_runtime.config.base import (
    MAX_LIST_ITEMS,
    Column,
    Columns,
    Expression,
    ImportPath,
    PositiveInt,
    Script,
    Seed,
    SpecModel,
    StoreUri,
    check_arguments,
    check_one_of,
    check_options,
)
from pipeline_runtime.config.decimals import HoldoutPercent

# Rows of a shuffle window: two row groups of 16,384 rows, the size that Lastmile writes. One task
# makes a whole window before the trainer gets any of it, so larger windows start later.
DEFAULT_SHUFFLE_ROWS = 32_768


# Stands for the module of a function that was given to `Pipeline.train`.
FUNCTION_MODULE = "__function__"


class Shuffle(SpecModel):
    """The shuffle: a new order of row groups each epoch, and of the rows within windows of them."""

    unit: Literal["None", "Row", "Request"] = "Row"
    """The unit that moves: single rows, or whole requests (needs `dataset.requestKey`)."""
    window_rows: Annotated[int, Field(ge=1, le=100_000_000)] = DEFAULT_SHUFFLE_ROWS
    """Rows of a window, which are mixed with each other."""


class Evaluation(SpecModel):
    """Rows that are kept out of training to evaluate the model, chosen by a condition or a hash."""

    where: Expression | None = None
    """Condition for the rows that evaluate the model."""
    holdout_percent: HoldoutPercent | None = None
    """Percentage of the rows that evaluate the model, above 0 and at most 50, chosen by a hash: an
    integer, or a decimal number as a text, such as `"0.5"`."""
    by: Columns | None = None
    """A key whose rows stay together; the row's identity if absent."""
    seed: Seed = 0
    """Seed of the hash."""
    max_rows: PositiveInt | None = None
    """Largest number of rows that evaluate the model: of those that match, the ones with the
    smallest hashes of their identity. The other ones train nothing either."""

    def rules(self) -> Iterator[tuple[str, str]]:
        choices = {"where": self.where, "holdoutPercent": self.holdout_percent}
        given = [name for name, value in choices.items() if value is not None]
        if message := check_one_of(tuple(choices), given):
            yield "", message
        if self.by and self.holdout_percent is None:
            yield "by", "must come with holdoutPercent, got none; add it or remove by"


class KeepBest(SpecModel):
    """The metric by which the best checkpoint is kept, beside the newest ones."""

    metric: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """Name of a metric that is reported with a checkpoint, such as `eval_auc`."""
    mode: Literal["Max", "Min"]
    """The better values: higher ones (Max) or lower ones (Min)."""


class CheckpointPolicy(SpecModel):
    """The intervals between checkpoints, and the number of whole ones to keep."""

    every_steps: PositiveInt | None = None
    """Optimiser steps from one checkpoint to the next."""
    every_seconds: PositiveInt = 300
    """Seconds from one checkpoint to the next."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Number of whole checkpoints to keep, beside the best one."""
    keep_best: KeepBest | None = None
    trust_pickle: bool | None = None
    """True lets checkpoints hold Python objects of any type. Loading them can run any code, so
    everybody who can write to the artifacts must be trusted."""


Argument = Annotated[str, StringConstraints(max_length=4096)]

BUILT_IN_ENTRYPOINT = "pipeline_runtime.training.ranking:train_loop"


class Training(SpecModel):
    """The training job."""

    entrypoint: ImportPath = BUILT_IN_ENTRYPOINT
    """`package.module:function` of the training loop."""
    model: ImportPath | None = None
    """`package.module:function` that builds the torch module which the built-in loop trains."""
    script: Script | None = None
    """An ordinary PyTorch script instead of an entrypoint; a path beside the manifest or in
    `code.workingDir`."""
    args: Annotated[tuple[Argument, ...], Field(max_length=MAX_LIST_ITEMS)] = ()
    """The script's command-line arguments; no credentials."""
    batch_size: Annotated[int, Field(ge=1, le=10_000_000)] = 4096
    """Rows per step of one trainer."""
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Passes over the table."""
    max_steps: PositiveInt | None = None
    """Optimiser steps after which training stops."""
    columns: Columns | None = None
    """Columns of the batches; all columns of the pipeline's output if absent."""
    label_column: Column | None = None
    """The label; a null is an error, not a zero."""
    weight_column: Column | None = None
    """Weights of the rows in the loss."""
    shuffle: Shuffle = Field(default_factory=Shuffle)
    last_batch: Literal["Pad", "Drop"] = "Pad"
    """The last, partial batch is padded with rows of weight zero, or dropped."""
    deduplicated: bool | None = None
    """Batches hold a request's columns once, with an index for the rows; the default for the
    built-in entrypoint alone."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number type of the forward and backward pass."""
    seed: Seed = 0
    """Seed of everything random in training."""
    evaluation: Evaluation | None = None
    checkpoint: CheckpointPolicy = Field(default_factory=CheckpointPolicy)
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the entrypoint or model, in its own words; no credentials."""

    def rules(self) -> Iterator[tuple[str, str]]:
        yield from check_options("config", self.config)
        yield from check_arguments("args", self.args)
        if self.entrypoint.startswith(f"{FUNCTION_MODULE}:"):
            yield (
                "entrypoint",
                "must name a function of a file as module:function, but stands for one that was "
                f"given in Python ({self.entrypoint!r}), which no manifest can hold. Write the "
                "function to a file beside the manifest, and name it here",
            )
        yield from self._check_model()
        if self.script is None:
            if self.args:
                yield "args", "must come with script, got none; add it, or use config"
            return
        if self.entrypoint != BUILT_IN_ENTRYPOINT:
            yield "entrypoint", f"must not come with script ({self.script!r}), got both; keep one"
        if self.precision != "float32":
            yield (
                "precision",
                f"must not come with script, which chooses its own, got {self.precision!r}; "
                "remove it, and use torch.autocast in the script",
            )

    def _check_model(self) -> Iterator[tuple[str, str]]:
        best = self.checkpoint.keep_best
        is_evaluated = self.evaluation is not None or not self.uses_built_in_loop
        if best and best.metric.startswith("eval_") and not is_evaluated:
            rule = f"must come with evaluation, got metric {best.metric!r} without it"
            yield "checkpoint.keepBest", f"{rule}; add training.evaluation"
        if self.model is None:
            return
        if self.script is not None:
            yield "model", f"must not come with script ({self.script!r}), got both; keep one"
        elif not self.uses_built_in_loop:
            rule = f"must not come with entrypoint ({self.entrypoint!r}), got both"
            yield "model", f"{rule}; keep one: the built-in loop trains a model"
        if self.label_column is None:
            yield "labelColumn", "must come with model, got none; name the column to predict"

    @property
    def uses_built_in_loop(self) -> bool:
        """True if the built-in loop trains: the built-in model, or the user's (`model`)."""
        return self.script is None and self.entrypoint == BUILT_IN_ENTRYPOINT

    @property
    def is_built_in(self) -> bool:
        """True if the built-in model trains."""
        return self.uses_built_in_loop and self.model is None

    @property
    def program(self) -> str:
        """The field and value of the training program, as errors begin with them."""
        if self.script is not None:
            return f"spec.training.script: {self.script}"
        if self.model is not None:
            return f"spec.training.model: {self.model}"
        return f"spec.training.entrypoint: {self.entrypoint}"

    @property
    def takes_requests(self) -> bool:
        """True if the entrypoint takes batches that hold a request's columns once."""
        if self.deduplicated is None:
            return self.is_built_in
        return self.deduplicated


class Artifacts(SpecModel):
    """The location of checkpoints, metrics history and reports."""

    uri: StoreUri = "experiments/"
    """Location in which each experiment has a folder for checkpoints, metrics and reports."""
