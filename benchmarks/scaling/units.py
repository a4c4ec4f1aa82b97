"""Sample data whose row groups all have one size, each a unit and a chunk.

Row groups become units of a plan, units groups of one each, which readers lease. The files are not
compressed, so that readers, who share the trainer's cores here, have time to sleep.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

from benchmarks.dataloading.workloads import BATCH_SIZE, Workload, build_experiment
from pipeline_runtime.feed.making.batching import Batching
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.plan import build_plan
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.sample_data import write_sample_data
from pipeline_runtime.sample_data.options import SampleDataOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stream of chunks of `stream.chunk_rows` rows; `units` names it, and is its role."""

    units: str
    stream: Stream

    def groups(self, num_groups: int) -> list[Group]:
        """Return groups in the table's order; a table with fewer starts over, an epoch each."""
        plan, rows = self.stream.plan, self.stream.chunk_rows
        epochs = (plan.groups(epoch, rows) for epoch in count())
        return list(islice(chain.from_iterable(epochs), num_groups))


def make_source(units: str, data: Path, *, rows: int, unit_rows: int) -> Source:
    """Write the table unless it exists, and plan it with all columns and no steps.

    Args:
        units: a name for units of this size.
        data: folder below which tables are kept.
        rows: of the table; its last unit is smaller if units do not divide them.
        unit_rows: rows of a row group.
    """
    folder = data / f"scaling-{rows}-{unit_rows}"
    write_sample_data(
        folder,
        SampleDataOptions(rows=rows, rows_per_group=unit_rows, days=1, compression="none"),
    )
    workload = Workload(level="none", root=str(folder))
    plan = build_plan(build_experiment(workload), workload.root).training
    batching = Batching(batch_size=BATCH_SIZE, weight_column=None, label_column=None)
    stream = Stream(plan=plan, chunk_rows=unit_rows, batching=batching)
    return Source(units=units, stream=stream)
