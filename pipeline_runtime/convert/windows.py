"""A file's flat rows in windows of bounded size that end, where they can, between two requests.

Runs before `grouping`, which sees one window at a time: rows of one request that a window does not
hold become an entry of their own. So the request at a window's end is carried into the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from pipeline_runtime.convert.grouping import first_places
from pipeline_runtime.sources import Source, Unit, read_flat
from pipeline_runtime.sources.gather import one_chunk

# Rows decoded at once: a window grows by so many.
READ_ROWS = 16_384
# A window of wide rows is cut short: grouping holds it, its reordered copy and its nested form.
MAX_WINDOW_BYTES = 256 << 20


def read_windows(
    table: Source, units: Sequence[Unit], columns: Sequence[str], key: str, max_rows: int
) -> Iterator[pa.Table]:
    """All rows of some units of one file, in order, about `max_rows` a window, never more.

    Dictionaries are decoded: what they spare in a flat table is stored once in a nested one.
    Raises SourceError as `Source.read` does.
    """
    held = pa.schema([table.schema.field(name) for name in columns]).empty_table()
    held = _decode(held)
    for unit in units:
        for part in read_flat(table, unit, columns, min(READ_ROWS, max_rows)):
            held = pa.concat_tables([held, _decode(part)])
            while held.num_rows > max_rows or (
                held.num_rows > 1 and held.nbytes >= MAX_WINDOW_BYTES
            ):
                cut = cut_between_requests(held, key, min(max_rows, held.num_rows - 1))
                yield held.slice(0, cut)
                held = held.slice(cut)
    if held.num_rows:
        yield held


def cut_between_requests(window: pa.Table, key: str, max_rows: int) -> int:
    """Return how many of the first rows to take: `max_rows`, less those of an open request.

    All of them where no other request is among them. A row must stand after them.
    """
    keys = one_chunk(window.column(key).slice(0, max_rows + 1))
    places = first_places(keys)
    if places[-1] != places[-2]:
        return max_rows
    before = np.flatnonzero(places != places[-1])
    return int(before[-1]) + 1 if len(before) else max_rows


def _decode(rows: pa.Table) -> pa.Table:
    schema = flat_types(rows.schema)
    return rows if schema == rows.schema else rows.cast(schema)


def flat_types(schema: pa.Schema) -> pa.Schema:
    """The schema with dictionary columns as what they stand for."""
    return pa.schema(
        [
            field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
            for field in schema
        ]
    )
