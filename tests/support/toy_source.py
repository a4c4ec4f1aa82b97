"""A kind of source that is nothing like Parquet: rows that are computed, in units with buckets.

It shows what a new kind of source needs, and that nothing else in Lastmile knows which kinds exist.
`model` and `source` would be two files; `ToyExperiment` does here what one line in
`config.dataset.SourceChoice` does for a kind that Lastmile ships. The whole-run test starts `main`
in a process of its own.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from pipeline_runtime.config import Dataset, DatasetExperiment, ExperimentSpec
from pipeline_runtime.config.dataset import SourceModel
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources import (
    ColumnSize,
    Identity,
    Opening,
    Predicate,
    Pruning,
    Scan,
    Unit,
    find_identity,
)
from pipeline_runtime.sources.gather import Int64s

BUCKETS = 4


class ToySource(SourceModel):
    """A table of the numbers from 0 to `rows` - 1."""

    rows: int
    unit_rows: int = 100
    revision: int = 1
    """Other revisions have other content."""

    module: ClassVar[str] = "toy_source"

    @property
    def label(self) -> str:
        return f"toy of {self.rows}"


class ToyDataset(Dataset):
    toy: ToySource | None = None


class ToySpec(ExperimentSpec):
    dataset: ToyDataset


class ToyExperiment(DatasetExperiment):
    spec: ToySpec


def open_source(model: ToySource, opening: Opening) -> ToyTable:
    """Open a table for `sources.open_source`."""
    if not model.rows:
        raise SourceError(f"{opening.storage_root}/{model.label}: no rows")
    return ToyTable(model=model)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyTable:
    """A Source whose units are split by bucket: unit i holds rows of bucket i % BUCKETS."""

    model: ToySource

    @property
    def description(self) -> str:
        return self.model.label

    @property
    def schema(self) -> pa.Schema:
        return self._rows(0).schema

    @property
    def identity(self) -> Identity:
        return find_identity(self.schema)

    def scan(self, predicates: Sequence[Predicate], columns: Collection[str] = ()) -> Scan:
        every = [self._unit(index) for index in range(-(-self.model.rows // self.model.unit_rows))]
        units = [unit for unit in every if self._may_hold(unit, predicates)]
        return Scan(
            units=tuple(units),
            pruning=Pruning(
                files_total=1,
                files_read=min(1, len(units)),
                row_groups_total=len(every),
                row_groups_read=len(units),
                rows_total=self.model.rows,
                rows_read=sum(unit.num_rows for unit in units),
            ),
            notes=(f"computed, {BUCKETS} buckets",),
        )

    def sizes(self, units: Sequence[Unit], columns: Sequence[str]) -> dict[str, ColumnSize]:
        total = dict.fromkeys(columns, 0)
        for unit in units:
            for name in columns:
                total[name] += self._rows(unit.index).column(name).nbytes
        return {name: ColumnSize(num_bytes=size) for name, size in total.items()}

    def digest(self, units: Sequence[Unit]) -> str:
        text = repr((self.model.revision, [(unit.index, unit.num_rows) for unit in units]))
        return hashlib.sha256(text.encode()).hexdigest()

    version = digest

    def read(
        self,
        unit: Unit,
        columns: Sequence[str],
        max_rows: int,
        *,
        rows: Int64s | None = None,
        foldable: Collection[str] = (),
    ) -> Iterator[pa.Table]:
        table = self._rows(unit.index).select(list(columns))
        if rows is not None:
            yield table.take(pa.array(rows))
            return
        for first in range(0, unit.num_rows, max_rows):
            yield table.slice(first, max_rows)

    def _unit(self, index: int) -> Unit:
        rows = self._rows(index)
        return Unit(
            place="numbers",
            index=index,
            num_rows=rows.num_rows,
            num_bytes=rows.nbytes,
            partition={"half": rows.column("half")[0].as_py()},
            bucket=index % BUCKETS,
        )

    def _may_hold(self, unit: Unit, predicates: Sequence[Predicate]) -> bool:
        """Decide exactly, which real statistics cannot."""
        rows = self._rows(unit.index)
        return all(rows.filter(predicate.filter).num_rows for predicate in predicates)

    def _rows(self, index: int) -> pa.Table:
        first = index * self.model.unit_rows
        ids = range(first, min(first + self.model.unit_rows, self.model.rows))
        return pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "half": pa.array([2 * number // self.model.rows for number in ids], pa.int32()),
                "score": pa.array([number * self.model.revision % 7 / 7 for number in ids]),
                "items": pa.array([[number] * (number % 3) for number in ids]),
            }
        )


def build_experiment(spec: Mapping[str, Any], name: str = "toy") -> ToyExperiment:
    """Parse a spec as the part of a manifest."""
    return ToyExperiment.model_validate(
        {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": name},
            "spec": spec,
        },
        strict=False,
    )


def main(folder: str, *flags: str) -> None:
    """Run the experiment in `folder`/spec.json on the Ray of the environment."""
    import json

    from pipeline_runtime.run.prepare import RunOptions
    from pipeline_runtime.run.session import run_experiment

    text = Path(folder, "spec.json").read_text()
    options = RunOptions(
        output=Path(folder, "output"),
        storage_root=folder,
        address="auto",
        code_paths=(folder, str(Path(__file__).parent)),
    )
    options = replace(options, resume="--resume" in flags)
    finished = run_experiment(build_experiment(json.loads(text)), text, options)
    sys.exit(0 if finished.outcome.kind == "Complete" else 1)


if __name__ == "__main__":
    # Workers find the classes by the module's name, not as `__main__`.
    from toy_source import main as run

    run(*sys.argv[1:])
