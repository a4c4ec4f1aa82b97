"""The streams that a sum takes, and their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline_runtime.config import ExperimentSpec
from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.plan import Plan, StreamPlan
from pipeline_runtime.plan.consumers.base import TakesInOrder
from pipeline_runtime.plan.model import FeedChoice, Stage
from toy_consumer.model import ToySpec


@dataclass(frozen=True)
class SumConsumer(TakesInOrder):
    """Adds up a column, which its readers do for each chunk."""

    column: str
    runner: str = "toy_consumer.running"

    @property
    def roles(self) -> tuple[str, ...]:
        return ("sum",)

    def find_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        if self.column not in schema.names:
            raise ManifestError([Problem(path="spec.sum.column", message="must be a column")])
        return (self.column,)

    def takes_once(self, columns: frozenset[str]) -> frozenset[str]:
        return frozenset()

    def choose_feed(self, stages: Sequence[Stage]) -> FeedChoice:
        return FeedChoice(engine="Readers", reason="a sum needs no more", may_be_threads=True)

    def warn(self, stream: StreamPlan) -> Iterator[str]:
        yield f"the sum of {self.column} may overflow"

    def describe(self, plan: Plan) -> Iterator[str]:
        yield f"Then: the sum of {self.column}"

    def document(self, plan: Plan) -> dict[str, Any]:
        return {"sum": self.column}


def open_consumer(spec: ExperimentSpec) -> SumConsumer:
    """Return the consumer of a manifest with this section."""
    assert isinstance(spec, ToySpec)
    assert spec.sum is not None
    return SumConsumer(spec.sum.column)
