"""The fields of the step `hashBucket`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pipeline_runtime.config.base import Columns, PositiveInt, Seed
from pipeline_runtime.config.step_model import StepModel


class HashBucketStep(StepModel):
    """Replace ids (integers, strings, lists of them) by a hash in [0, buckets); null stays null."""

    is_preprocessing: ClassVar[bool] = True

    columns: Columns
    """Integer or string columns, or lists of them."""
    buckets: PositiveInt
    """Number of buckets; ids become 0 to `buckets` - 1."""
    seed: Seed = 0
    """Different seeds give different hashes."""

    def describe(self) -> str:
        return f"{', '.join(self.columns)} into {self.buckets}"

    def find_inputs(self) -> Iterable[str]:
        return self.columns

    def find_outputs(self) -> frozenset[str]:
        return frozenset(self.columns)

    def find_seed(self) -> int:
        return self.seed
