"""The form in which a source returns rows: a table, or rows that share columns of their requests.

A source returns `RequestRows` if it stores some columns once per request, as a nested Parquet table
does. The feed makes the same form from flat rows of one request (`feed.making.found_requests`), so
that steps compute on these columns once per request (`feed.making.stage_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from pipeline_runtime.sources.gather import Int64s, take_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRows:
    """Rows that have the columns of their requests once.

    The first `counts[0]` rows belong to the first request, and so on.
    """

    requests: pa.Table  # one row per request
    impressions: pa.Table  # one row per flat row, requests one after another
    counts: Int64s  # flat rows of each request, at least 1

    @property
    def num_rows(self) -> int:
        """Number of flat rows."""
        return int(self.counts.sum())

    @property
    def codes(self) -> Int64s:
        """The request of each flat row."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def slice(self, first: int, num_rows: int) -> RequestRows:
        """Return flat rows [first, first + num_rows). Requests at the ends may lose rows."""
        ends = np.cumsum(self.counts)
        last = first + num_rows
        start = int(np.searchsorted(ends, first, side="right"))
        stop = int(np.searchsorted(ends, last, side="left")) + 1 if num_rows else start
        kept = ends[start:stop].clip(max=last) - (ends - self.counts)[start:stop].clip(min=first)
        return RequestRows(
            requests=self.requests.slice(start, stop - start),
            impressions=self.impressions.slice(first, num_rows),
            counts=kept,
        )

    def expand(self, columns: Sequence[str]) -> pa.Table:
        """Return the flat rows with these columns, in this order."""
        table = pa.table({"": pa.nulls(self.num_rows)}).select([])  # knows its rows, has no column
        codes = self.codes
        for name in columns:
            if name in self.requests.column_names:
                field, column = self.requests.field(name), take_rows(self.requests[name], codes)
            else:
                field, column = self.impressions.field(name), self.impressions[name]
            table = table.append_column(field, column)
        return table


SourceRows: TypeAlias = pa.Table | RequestRows


def expand_rows(rows: SourceRows, columns: Sequence[str]) -> pa.Table:
    """Return flat rows; a table is returned as it is."""
    return rows if isinstance(rows, pa.Table) else rows.expand(columns)


def join_rows(parts: Sequence[RequestRows]) -> RequestRows:
    """Return the rows of all parts, at least one, in their order."""
    return RequestRows(
        requests=pa.concat_tables([part.requests for part in parts]),
        impressions=pa.concat_tables([part.impressions for part in parts]),
        counts=np.concatenate([part.counts for part in parts]),
    )
