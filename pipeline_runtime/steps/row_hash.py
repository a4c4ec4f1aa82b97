"""The identity hash of rows, by which `downsample` and `sample` choose rows.

The planner adds it where a step needs it; from Python, `add_row_hash` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipeline_runtime.errors import StepError
from pipeline_runtime.hashing import hash_columns
from pipeline_runtime.steps.base import ROW_HASH_COLUMN
from pipeline_runtime.steps.checks import set_column

# The identity hash has no seed of its own: each step's seed enters when it draws.
IDENTITY_SEED = 0


def add_row_hash(table: pa.Table, row_key: Sequence[str]) -> pa.Table:
    """Return the table with `ROW_HASH_COLUMN`, the hash of the columns that identify a row."""
    try:
        hashes = hash_columns([table.column(name) for name in row_key], IDENTITY_SEED)
    except TypeError as error:
        raise StepError(f"rowKey: {error}") from error
    return set_column(table, ROW_HASH_COLUMN, pa.array(hashes))
