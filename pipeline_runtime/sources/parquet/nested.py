"""The nested layout: a request's own columns once, its impressions' columns as lists.

The key-value metadata of a nested file describe it, as JSON under `METADATA_KEY`:

    {"version": 1, "requestKey": "request_id",
     "columns": [{"name": "user_id", "type": "int64", "of": "request"}, …],   in flat order
     "rowGroups": [{"requests": 820, "rows": 16384}, …]}

So a reader needs no manifest, and knows the flat rows of every row group from the footer alone.
`COUNT_COLUMN` holds the number of impressions of each request, so that request columns are read
without an impression column. `convert` writes these files. `table` reads them as the flat table
that they were made from; `RequestRows` keep a request's columns once on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import from_json

from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.gather import take_rows
from pipeline_runtime.sources.parquet.decoding.pages import OpenFile
from pipeline_runtime.sources.rows import RequestRows, join_rows

METADATA_KEY = "lastmile.nested"
VERSION = 1
COUNT_COLUMN = "_lastmile_num_rows"
_REQUEST, _IMPRESSION = "request", "impression"

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedLayout:
    """The columns that a nested file holds once per request, and those once per impression."""

    request_key: str
    request_columns: tuple[str, ...]  # the key among them
    columns: tuple[str, ...]  # all, in the flat table's order

    def is_request_column(self, name: str) -> bool:
        return name in self.request_columns

    def flat_schema(self, stored: pa.Schema) -> pa.Schema:
        """The schema of the flat rows, from that of the file."""
        return pa.schema([self._flat_field(stored.field(name)) for name in self.columns])

    def _flat_field(self, field: pa.Field) -> pa.Field:
        if self.is_request_column(field.name):
            return field
        return pa.field(field.name, field.type.value_type, field.type.value_field.nullable)

    def stored_schema(self, flat: pa.Schema) -> pa.Schema:
        """The schema of the file, from that of the flat rows: `flat_schema` the other way."""
        fields = [
            field if self.is_request_column(field.name) else _listed(field)
            for field in (flat.field(name) for name in self.columns)
        ]
        return pa.schema([pa.field(COUNT_COLUMN, pa.int32(), nullable=False), *fields])


def _listed(field: pa.Field) -> pa.Field:
    element = pa.field("element", field.type, field.nullable)
    return pa.field(field.name, pa.list_(element), nullable=False)


def build_metadata(
    layout: NestedLayout, flat: pa.Schema, row_groups: Sequence[tuple[int, int]]
) -> dict[str, str]:
    """The description in the footer of a nested file; `row_groups` are (requests, flat rows)."""
    columns = [
        {
            "name": name,
            "type": str(flat.field(name).type),
            "of": _REQUEST if layout.is_request_column(name) else _IMPRESSION,
        }
        for name in layout.columns
    ]
    document = {
        "version": VERSION,
        "requestKey": layout.request_key,
        "columns": columns,
        "rowGroups": [{"requests": requests, "rows": rows} for requests, rows in row_groups],
    }
    return {METADATA_KEY: json.dumps(document)}


def parse_footer(
    metadata: pq.FileMetaData, stored: pa.Schema, path: str
) -> tuple[NestedLayout, tuple[int, ...]] | None:
    """A nested file's layout and the flat rows of its row groups; None for a flat file.

    Raises SourceError if the file was written by a newer release, or rewritten by a tool that
    copied the metadata without knowing what they say.
    """
    text = (metadata.metadata or {}).get(METADATA_KEY.encode())
    if text is None:
        return None
    try:
        document = from_json(text)
        if document["version"] != VERSION:
            raise SourceError(
                f"{path}: nested layout of version {document['version']!r}, this release reads "
                f"{VERSION}; read it with the release that wrote it, or convert the table again"
            )
        layout = _parse_layout(document)
        groups = [(int(group["requests"]), int(group["rows"])) for group in document["rowGroups"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(_rewritten(path, f"its {METADATA_KEY} metadata do not parse")) from error
    _check_layout(layout, stored, path)
    requests = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    if [group[0] for group in groups] != requests:
        raise SourceError(_rewritten(path, "its row groups are not those it was written with"))
    return layout, tuple(rows for _, rows in groups)


def _parse_layout(document: Any) -> NestedLayout:
    columns = document["columns"]
    return NestedLayout(
        request_key=document["requestKey"],
        request_columns=tuple(c["name"] for c in columns if c["of"] == _REQUEST),
        columns=tuple(c["name"] for c in columns),
    )


def _check_layout(layout: NestedLayout, stored: pa.Schema, path: str) -> None:
    if set(stored.names) != {COUNT_COLUMN, *layout.columns}:
        raise SourceError(_rewritten(path, "its columns are not those it was written with"))
    for name in layout.columns:
        kind = stored.field(name).type
        if not layout.is_request_column(name) and not pa.types.is_list(kind):
            raise SourceError(_rewritten(path, f"impression column {name!r} is {kind}, no list"))


def _rewritten(path: str, what: str) -> str:
    return (
        f"{path}: not a whole nested file: {what}; another tool rewrote it: convert the flat table "
        "again with `lastmile convert`"
    )


def read_nested(
    opened: OpenFile,
    row_group: int,
    layout: NestedLayout,
    columns: Sequence[str],
    max_requests: int | None,
) -> Iterator[RequestRows]:
    """A row group's requests in order, at most `max_requests` at once; None: all of them.

    Raises ArrowInvalid if lists and counts disagree.
    """
    stored = [COUNT_COLUMN, *columns]
    if max_requests is None:
        tables: Iterable[pa.Table] = [opened.read_row_group(row_group, stored)]
    else:
        tables = opened.iter_row_group(row_group, stored, max_requests)
    return (_unnest(table, layout, columns) for table in tables)


def read_nested_rows(
    opened: OpenFile,
    row_group: int,
    layout: NestedLayout,
    columns: Sequence[str],
    rows: Int64Array,
    *,
    kernels: bool = True,
) -> RequestRows:
    """Return the flat rows at ascending places of a row group, and their requests.

    Of requests' columns only pages are decoded that have one of them; impressions' columns are
    decoded whole. `kernels` as in `take_rows`; raises as `read_nested` does.
    """
    once = [name for name in columns if layout.is_request_column(name)]
    each = [name for name in columns if name not in once]
    [whole] = read_nested(opened, row_group, layout, each, None)
    requests, counts = np.unique(whole.codes[rows], return_counts=True)
    taken = (take_rows(whole.impressions.column(n), rows, kernels=kernels) for n in each)
    return RequestRows(
        requests=opened.read_rows(row_group, once, requests, kernels=kernels),
        impressions=pa.table(dict(zip(each, taken, strict=True))),
        counts=counts,
    )


def _unnest(table: pa.Table, layout: NestedLayout, columns: Sequence[str]) -> RequestRows:
    counts = table.column(COUNT_COLUMN).to_numpy().astype(np.int64)
    once = [name for name in columns if layout.is_request_column(name)]
    flat = {name: _flatten(table.column(name)) for name in columns if name not in once}
    total = counts.sum()
    if counts.min(initial=1) < 1 or any(len(column) != total for column in flat.values()):
        raise pa.ArrowInvalid("lists and counts of rows disagree")
    return RequestRows(requests=table.select(once), impressions=pa.table(flat), counts=counts)


def _flatten(column: pa.ChunkedArray) -> pa.ChunkedArray:
    chunks = [chunk.flatten() for chunk in column.chunks]
    return pa.chunked_array(chunks, type=column.type.value_type)


def cut_rows(parts: Iterable[RequestRows], max_rows: int) -> Iterator[RequestRows]:
    """The same rows with exactly `max_rows` flat rows each, but for the last."""
    held: RequestRows | None = None
    for part in parts:
        held = part if held is None else join_rows([held, part])
        while held.num_rows >= max_rows:
            yield held.slice(0, max_rows)
            held = held.slice(max_rows, held.num_rows - max_rows)
    if held is not None and held.num_rows:
        yield held
