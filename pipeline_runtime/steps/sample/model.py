"""The fields of the step `sample`."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline_runtime.config.base import Columns, Seed
from pipeline_runtime.config.decimals import KeepPercent
from pipeline_runtime.config.step_model import ApplyTo, StepModel


class SampleStep(StepModel):
    """Keep a share of the rows or, with `by`, of a key's values with all their rows."""

    keep_percent: KeepPercent
    """Percentage of the rows, or of the key's values, that is kept, 0 to 100: an integer, or a
    decimal number as a text, such as `"0.5"`."""
    by: Columns | None = None
    """The key whose rows stay together."""
    seed: Seed = 0
    """The same seed keeps the same rows."""
    apply_to: ApplyTo = "All"
    """`All`: the rows that evaluate the model are sampled too; `Training`: all of them remain."""

    def describe(self) -> str:
        return f"{self.keep_percent} % of " + (", ".join(self.by) if self.by else "rows")

    def find_inputs(self) -> Iterable[str]:
        return self.by or ()

    def find_seed(self) -> int:
        return self.seed
