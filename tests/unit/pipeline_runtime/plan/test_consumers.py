"""A consumer of a test stands where training stands: planned, leased, counted and explained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline
from pipeline_runtime.config import Shuffle
from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.local.thread_readers import ThreadReaders
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.pieces import Piece, StepCount, add_counts
from pipeline_runtime.plan import Plan, StreamPlan, build_plan, explain, plan_document
from pipeline_runtime.plan.consumers.base import IN_ORDER, Consumer
from pipeline_runtime.plan.model import FeedChoice, Stage
from pipeline_runtime.run.summarise import step_flows


@dataclass(frozen=True)
class Sum:
    """Adds up a column, which its readers do for each piece."""

    column: str

    @property
    def roles(self) -> tuple[str, ...]:
        return ("sum",)

    @property
    def seed(self) -> int:
        return 0

    @property
    def request_key(self) -> str | None:
        return None

    def shuffle(self, role: str) -> Shuffle:
        return IN_ORDER

    def find_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        if self.column not in schema.names:
            raise ManifestError([Problem(path="sum", message="must be a column")])
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedPiece(Piece):
    total: int


def add_up(piece: Piece) -> SummedPiece:
    total = sum(piece.table["id"].to_pylist())
    return SummedPiece(header=piece.header, table=piece.table.slice(0, 0), total=total)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    table = pa.table({"id": np.arange(1000), "other": np.arange(1000)})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=100)
    return Pipeline.read_parquet(str(tmp_path / "in.parquet"), row_key="id").filter("id % 2 = 0")


def plan_for(pipeline: Pipeline, consumer: Consumer) -> Plan:
    return build_plan(pipeline.experiment("sum"), "", consumer)


def test_a_plan_serves_any_consumer(pipeline: Pipeline) -> None:
    plan = plan_for(pipeline, Sum("id"))
    assert list(plan.streams) == ["sum"]
    assert plan.main.read_columns == ("id",)  # the other column is not read
    assert explain(plan).splitlines()[-2:] == [
        "Then: the sum of id",
        "Warning: the sum of id may overflow",
    ]
    assert plan_document(plan)["sum"] == "id"


def test_a_consumer_refuses_what_it_cannot_take(pipeline: Pipeline) -> None:
    with pytest.raises(ManifestError, match="sum"):
        plan_for(pipeline, Sum("nothing"))


def test_a_consumer_shares_leases_waiting_and_the_funnel(pipeline: Pipeline) -> None:
    stream = plan_for(pipeline, Sum("id")).main
    readers = ThreadReaders(
        streams={"sum": Stream(plan=stream, piece_rows=100, finish=add_up)}, num_threads=2
    )
    waited, usage = Waited(), WorkerUsage()
    feed = readers.open("sum", 0, stream.groups(0, 100), in_order=False)
    total, counts = 0, tuple[StepCount, ...]()
    for piece in feed.pieces(waited, usage):
        assert isinstance(piece, SummedPiece)
        total += piece.total
        counts = add_counts(counts, piece.header.counts)
    assert total == sum(range(0, 1000, 2))
    assert [flow.rows_out for flow in step_flows(stream, counts)] == [1000, 500]
    assert usage.units == 10
    assert waited.production > 0
