"""Step `sample`: keep a share of the rows, or of the values of a key with all their rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

import pyarrow as pa

from pipeline_runtime.config.decimals import parse_percent
from pipeline_runtime.hashing import U64, check_hashable, hash_columns, keep_mask
from pipeline_runtime.steps.base import BindContext, BoundStep, Transform
from pipeline_runtime.steps.checks import Checks, broken, find_field, row_hashes
from pipeline_runtime.steps.draws import draw_seed
from pipeline_runtime.steps.sample.model import SampleStep
from pipeline_runtime.steps.training_only import keep_for_evaluation

# Keys are hashed apart from row identities, so that a sample by the row's own key does not follow a
# `downsample` of the same seed. Any constant would do.
_KEY_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(BoundStep):
    """Keeps rows by a hash of the seed and the row's identity, or of the seed and the key `by`.

    With `by`, rows of one key are kept or dropped together; null is a key like any other.
    """

    kind: ClassVar[str] = "sample"
    changes_rows: bool = True

    keep_percent: Fraction
    seed: int
    by: tuple[str, ...] = ()
    is_training_only: bool = False
    draw: int = 0  # earlier steps of the pipeline that drew with the same seed: see `draws`

    @property
    def needs_row_hash(self) -> bool:
        return not self.by

    @classmethod
    def bind(
        cls, config: SampleStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        by = tuple(config.by or ())
        for index, name in enumerate(by):
            with checks.at(f"by[{index}]"):
                _check_key(input_schema, name)
        checks.finish()
        return cls(
            keep_percent=parse_percent(config.keep_percent),
            seed=config.seed,
            by=by,
            is_training_only=config.apply_to == "Training",
            inputs=frozenset(by),
            output_schema=input_schema,
        )

    def for_evaluation(self) -> Transform | None:
        return keep_for_evaluation(self.output_schema) if self.is_training_only else None

    @property
    def draws_by(self) -> tuple[object, ...] | None:
        return self.seed, self.by

    def numbered(self, draw: int) -> Self:
        return replace(self, draw=draw)

    @property
    def is_filter(self) -> bool:
        return True

    def mask(self, table: pa.Table) -> pa.BooleanArray:
        """Return true for the rows that are kept."""
        seed = draw_seed(self.seed, self.draw)
        return pa.array(keep_mask(self._hashes(table), seed, self.keep_percent))

    def __call__(self, table: pa.Table) -> pa.Table:
        return table.filter(self.mask(table))

    def _hashes(self, table: pa.Table) -> U64:
        if self.by:
            return hash_columns([table.column(name) for name in self.by], _KEY_SEED)
        hashes: U64 = row_hashes(table, self.kind).to_numpy()
        return hashes


def _check_key(schema: pa.Schema, name: str) -> None:
    try:
        check_hashable(find_field(schema, name).type)
    except TypeError as error:
        raise broken(f"column {name!r} {error}") from error
