"""Rows on their way through a stage: steps that only drop rows copy nothing until one must.

A filter, anti-join, sample or split is asked for its mask over the rows that are left, with just
the columns it reads; the wide rest of the table is copied once, when a step needs whole rows or
the stage ends. With fusion off a stage holds one step, and every step copies: the rows are the
same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.plan.model import PlannedStep
from pipeline_runtime.steps.base import INTERNAL_PREFIX


@dataclass(slots=True)
class Rows:
    """A table, and which of its rows are left (None: all of them)."""

    table: pa.Table
    kept: npt.NDArray[np.int64] | None = None

    @property
    def num_rows(self) -> int:
        return self.table.num_rows if self.kept is None else len(self.kept)

    @property
    def num_bytes(self) -> int:
        """Arrow bytes of the rows that are left; their share of the table's while not copied."""
        if self.kept is None or self.table.num_rows == 0:
            return int(self.table.nbytes)
        return int(self.table.nbytes * self.num_rows / self.table.num_rows)

    def run(self, step: PlannedStep) -> None:
        """Run a step, and let go of the columns that nothing after it uses."""
        mask_of = getattr(step.transform, "mask", None)
        if mask_of is not None and not step.transform.outputs:
            self._narrow(mask_of(self._view(step.transform.inputs)))
        else:
            self.table = step.transform(self.copied())
        names = self.table.column_names
        self.table = self.table.select(
            [name for name in names if name in step.live or name.startswith(INTERNAL_PREFIX)]
        )

    def copied(self) -> pa.Table:
        """The rows that are left as a table of their own."""
        if self.kept is not None:
            self.table = self.table.take(pa.array(self.kept))
            self.kept = None
        return self.table

    def _view(self, columns: frozenset[str]) -> pa.Table:
        """The rows that are left with these columns and Lastmile's own."""
        names = self.table.column_names
        wanted = [name for name in names if name in columns or name.startswith(INTERNAL_PREFIX)]
        view = self.table.select(wanted)
        return view if self.kept is None else view.take(pa.array(self.kept))

    def _narrow(self, mask: Any) -> None:
        kept = np.asarray(mask)
        if kept.all():
            return
        self.kept = np.flatnonzero(kept) if self.kept is None else self.kept[kept]
