"""The fields of the step `downsample`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline_runtime.config.base import Column, Expression, Seed
from pipeline_runtime.config.decimals import KeepPercent
from pipeline_runtime.config.step_model import ApplyTo, StepModel


class DownsampleStep(StepModel):
    """Keep a share of the rows, or of those in `where`, by a hash of the seed and row identity."""

    keep_percent: KeepPercent
    """Percentage of the rows that is kept, 0 to 100: an integer, or a decimal number as a text,
    such as `"0.5"`."""
    where: Expression | None = None
    """Condition for the rows that are thinned; all others are kept."""
    seed: Seed = 0
    """The same seed keeps the same rows."""
    weight_column: Column | None = None
    """Column that is multiplied by 100 / keepPercent in thinned rows; created as 1.0 if absent."""
    apply_to: ApplyTo = "Training"
    """`Training`: all rows evaluate the model, with the weights that they had before; `All`: the
    rows of the evaluation are thinned too."""

    def describe(self) -> str:
        return f"{self.keep_percent} % of rows" + (f" where {self.where}" if self.where else "")

    def find_expressions(self) -> Iterator[tuple[str, str]]:
        if self.where:
            yield "where", self.where

    def find_inputs(self) -> Iterable[str]:
        return self.find_outputs()

    def find_outputs(self) -> frozenset[str]:
        return frozenset([self.weight_column] if self.weight_column else ())

    def find_seed(self) -> int:
        return self.seed
