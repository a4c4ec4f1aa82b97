"""Step `downsample`: keep a share of the rows that a condition selects, weights corrected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.config.decimals import parse_percent
from pipeline_runtime.hashing import keep_mask
from pipeline_runtime.sources.gather import one_chunk
from pipeline_runtime.steps.base import BindContext, BoundStep, Transform
from pipeline_runtime.steps.checks import (
    Checks,
    check_weight,
    parse_condition,
    replace_types,
    row_hashes,
    set_column,
)
from pipeline_runtime.steps.downsample.model import DownsampleStep
from pipeline_runtime.steps.draws import draw_seed
from pipeline_runtime.steps.training_only import keep_for_evaluation

_BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Downsample(BoundStep):
    """Keeps `keep_percent` of the rows for which `where` is true, and all other rows.

    A row is kept by a hash of seed and identity: the same rows whatever block, worker or order.
    """

    kind: ClassVar[str] = "downsample"
    changes_rows: bool = True

    keep_percent: Fraction
    seed: int
    where: expressions.Expression | None = None
    weight_column: str | None = None
    is_training_only: bool = False
    draw: int = 0  # earlier steps of the pipeline that drew with the same seed: see `draws`

    @property
    def needs_row_hash(self) -> bool:
        return True

    @classmethod
    def bind(
        cls, config: DownsampleStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        where, weight = None, config.weight_column
        if config.where is not None:
            with checks.at("where"):
                where = parse_condition(config.where, input_schema)
        output_schema, inputs = input_schema, set(where.columns if where else ())
        if weight is not None:
            with checks.at("weightColumn"):
                check_weight(input_schema, weight)
            if weight in input_schema.names:
                inputs.add(weight)
            else:
                output_schema = replace_types(input_schema, {weight: pa.float32()})
        checks.finish()
        return cls(
            keep_percent=parse_percent(config.keep_percent),
            seed=config.seed,
            where=where,
            weight_column=weight,
            is_training_only=config.apply_to == "Training",
            inputs=frozenset(inputs),
            outputs=frozenset([weight] if weight else []),
            output_schema=output_schema,
        )

    def for_evaluation(self) -> Transform | None:
        if not self.is_training_only:
            return None
        created = None if self.weight_column in self.inputs else self.weight_column
        return keep_for_evaluation(self.output_schema, created)

    @property
    def draws_by(self) -> tuple[object, ...] | None:
        return self.seed, ()

    def numbered(self, draw: int) -> Self:
        return replace(self, draw=draw)

    @property
    def keeps_places(self) -> bool:
        return True

    @property
    def is_filter(self) -> bool:
        return self.weight_column is None

    def mask(self, table: pa.Table) -> pa.BooleanArray:
        """Return true for the rows that are kept; weights are not looked at."""
        return pa.array(self._kept(table, self._thinned(table)))

    def __call__(self, table: pa.Table) -> pa.Table:
        thinned = self._thinned(table)
        kept = self._kept(table, thinned)
        rows = table.filter(pa.array(kept))
        return rows if self.weight_column is None else self._weigh(rows, thinned[kept])

    def _thinned(self, table: pa.Table) -> _BoolArray:
        if self.where is None:
            return np.ones(table.num_rows, dtype=np.bool_)
        return to_bools(expressions.mask(self.where, table))

    def _kept(self, table: pa.Table, thinned: _BoolArray) -> _BoolArray:
        hashes = row_hashes(table, self.kind).to_numpy()
        drawn = keep_mask(hashes, draw_seed(self.seed, self.draw), self.keep_percent)
        return np.asarray(drawn | ~thinned)

    def _weigh(self, rows: pa.Table, thinned: _BoolArray) -> pa.Table:
        """Multiply the weights: each thinned row stands for 100 / keepPercent rows."""
        name = self.weight_column
        assert name is not None
        share = float(100 / self.keep_percent) if self.keep_percent else 1.0
        factor = np.where(thinned, share, 1.0)
        if name in rows.schema.names:
            return set_column(rows, name, multiply(rows.column(name), factor))
        if name in self.inputs:  # an existing column that nothing downstream wants
            return rows
        return set_column(rows, name, pa.array(factor.astype(np.float32)))


def to_bools(mask: pa.Array | pa.ChunkedArray) -> _BoolArray:
    """Return a boolean array without nulls as a numpy array."""
    if isinstance(mask, pa.ChunkedArray):
        return np.asarray(mask.to_numpy(), dtype=np.bool_)
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)


def multiply(column: pa.ChunkedArray, factor: npt.NDArray[np.float64]) -> pa.Array:
    """Return a float column times a factor for each row, in the column's type; null stays null."""
    dtype = column.type.to_pandas_dtype()
    array = one_chunk(column)
    null = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
    product = (array.to_numpy(zero_copy_only=False) * factor).astype(dtype)
    return pa.array(product, mask=null)
