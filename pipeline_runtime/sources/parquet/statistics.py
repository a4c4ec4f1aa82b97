"""Prunes row groups by a predicate on columns that the file stores differently.

pyarrow prunes by the statistics of plain columns of the same name and type. This module passes the
statistics of any leaf to pyarrow as a guarantee for the row group, as partition folders are passed,
and pyarrow simplifies the predicate by it. So nested files are pruned by the items of lists, and
files of Iceberg tables by columns that have been renamed or widened since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pipeline_runtime.sources.parquet.footers import Footer
from pipeline_runtime.sources.parquet.nested import NestedLayout

_Kind = Callable[[pa.DataType], bool]
# As in expressions.pushdown: types whose statistics are ordered like their values.
_TEXT: tuple[_Kind, ...] = (pa.types.is_string, pa.types.is_large_string)
_FLOATS: tuple[_Kind, ...] = (pa.types.is_float32, pa.types.is_float64)


def has_statistics(kind: pa.DataType) -> bool:
    """Return whether a predicate on a column of this type can exclude row groups."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or any(is_kind(kind) for is_kind in (*_TEXT, *_FLOATS))
    )


def leaf_path(layout: NestedLayout, name: str) -> str:
    """Return the path in a nested file of a column whose flat values are not nested."""
    return name if layout.is_request_column(name) else f"{name}.list.element"


def has_sound_statistics(footer: Footer, keep: pads.Expression, schema: pa.Schema) -> bool:
    """Return whether a file may be pruned: pyarrow aborts the process on broken statistics."""
    text = str(keep)
    leaves = [leaf for name in schema.names if name in text for leaf in footer.leaves(name)]
    return footer.has_sound_statistics(leaves)


def surviving_row_groups(
    fragment: Any, paths: Mapping[str, str], keep: pads.Expression, schema: pa.Schema
) -> list[int]:
    """Return the indices of row groups that may hold a row for which `keep` is true.

    Args:
        paths: the path in the file of each column of the table, if its statistics bound the values.
    """
    metadata = fragment.metadata
    text = str(keep)  # names every column that it reads; more names only cost time
    columns = [n for n in paths if n in text and has_statistics(schema.field(n).type)]
    leaves = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    known = [(n, leaves[paths[n]]) for n in columns if paths[n] in leaves]
    pieces, nowhere = [], pafs.LocalFileSystem()  # no fragment is opened
    for index in range(metadata.num_row_groups):
        guarantee = fragment.partition_expression
        for name, leaf in known:
            chunk = metadata.row_group(index).column(leaf)
            for bound in _bounds(name, chunk, schema.field(name).type):
                guarantee = guarantee & bound
        pieces.append(
            fragment.format.make_fragment(str(index), nowhere, partition_expression=guarantee)
        )
    dataset = pads.FileSystemDataset(pieces, schema, fragment.format, nowhere)
    return sorted(int(piece.path) for piece in dataset.get_fragments(filter=keep))


def _bounds(name: str, chunk: pq.ColumnChunkMetaData, kind: pa.DataType) -> Iterator[Any]:
    """Yield the conditions that, by its statistics, all values of a column chunk meet."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return
    column = pads.field(name)
    if statistics.null_count == chunk.num_values:
        yield column.is_null()
        return
    if statistics.null_count == 0:
        yield column.is_valid()
    if statistics.has_min_max:
        try:
            low, high = (_scalar(raw, kind) for raw in (statistics.min_raw, statistics.max_raw))
        except UnicodeDecodeError:  # a broken footer: read the rows
            return
        yield _or_null(column >= low, column, statistics.null_count)
        yield _or_null(column <= high, column, statistics.null_count)


def _or_null(test: Any, column: Any, null_count: int) -> Any:
    return test | column.is_null() if null_count else test


def _scalar(raw: Any, kind: pa.DataType) -> pa.Scalar:
    """Convert a bound, as Parquet stores it, to the column's type, exact to the nanosecond."""
    if any(is_kind(kind) for is_kind in _TEXT):
        return pa.scalar(raw.decode(), type=kind)
    if pa.types.is_unsigned_integer(kind):
        return pa.scalar(raw % (1 << max(32, kind.bit_width)), type=kind)
    if pa.types.is_timestamp(kind):
        return pa.scalar(raw, type=pa.int64()).cast(kind)
    if pa.types.is_date32(kind):
        return pa.scalar(raw, type=pa.int32()).cast(kind)
    return pa.scalar(raw, type=kind)
