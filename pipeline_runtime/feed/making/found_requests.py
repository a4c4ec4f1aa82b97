"""Find requests in flat rows, for a table that is not stored by request.

Consecutive rows share an entry if their keys are equal and all request columns are equal byte by
byte. Steps that read only those columns then run once per request (`stage_rows`). A null key never
matches. Rows of a request that are not adjacent have several entries; `lastmile convert` stores
them together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline_runtime.sources.equality import equal_to_previous
from pipeline_runtime.sources.gather import one_chunk, take_rows
from pipeline_runtime.sources.rows import RequestRows

# With fewer, comparing the rows costs more than it saves, as was measured in November 2026.
MIN_ROWS_PER_REQUEST = 4.0


def find_requests(rows: pa.Table, key: str, request_columns: Sequence[str]) -> RequestRows | None:
    """The rows by request, in their order; None if there are too few rows a request to pay.

    Args:
        rows: with the key and the request columns among their columns.
        request_columns: that are kept once a request; the key may be one of them.
    """
    if rows.num_rows < 2:
        return None
    values = _array(rows, key)
    same = equal_to_previous(values)
    if values.null_count:
        same &= values.is_valid().to_numpy(zero_copy_only=False)[1:]
    if not _pays(same):
        return None
    for name in request_columns:
        if name != key:
            same &= equal_to_previous(_array(rows, name))
    if not _pays(same):
        return None
    starts = np.flatnonzero(np.append(True, ~same))
    each = [name for name in rows.schema.names if name not in request_columns]
    once = rows.select(list(request_columns))
    taken = [take_rows(column, starts) for column in once.columns]
    return RequestRows(
        requests=pa.Table.from_arrays(taken, schema=once.schema),
        impressions=rows.select(each),
        counts=np.diff(np.append(starts, rows.num_rows)),
    )


def _pays(same: np.ndarray) -> bool:
    num_rows = len(same) + 1
    return num_rows >= MIN_ROWS_PER_REQUEST * (num_rows - int(same.sum()))


def _array(rows: pa.Table, name: str) -> pa.Array:
    return one_chunk(rows.column(name))
