"""Sources: where the rows come from. `open_table` is the one door, `Source` the one interface.

    manifest ─▶ open_table ─▶ Source ─▶ scan ─▶ splits and statistics ─▶ plan ─▶ read, on workers

1. A source is a frozen, picklable value. It has a schema, and needs no connection until it reads.
2. `scan` prunes by predicates and returns splits: the parts that a worker reads as a whole, such as
   one row group. A split has its rows, bytes and place, perhaps partition values and a bucket.
3. `read` returns columns of a split, of some rows only if asked. Rows come as tables, or with the
   columns of their request once (`rows`), which is all that the feed knows of nested storage.
4. A row's identity is its key, or else its place: the split's place and index, and its number.
5. `digest` names the content that a checkpoint's position counts. `version` is a key for caches.
6. Formats, footers, pages and nesting are private to a source's own package, such as `parquet`.

Before this package runs `config`, which parsed the manifest; after it `plan`, which decides what
is read. `filesystem`, `stores` and `durable` open places in a store for all packages above.
"""

from __future__ import annotations

from pipeline_runtime.config import SourceChoice
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.base import Pruning, RawTable, Scan, Unit
from pipeline_runtime.sources.filesystem import Location, open_location, resolve_uri

__all__ = [
    "Location",
    "Pruning",
    "RawTable",
    "Scan",
    "Unit",
    "open_location",
    "open_table",
    "resolve_uri",
]


def open_table(choice: SourceChoice, storage_root: str, *, decodes_pages: bool = False) -> RawTable:
    """Open the one source that a manifest gives; `decodes_pages` as in `open_parquet`.

    Raises SourceError if it cannot be found or read, or its kind has no reader here.
    """
    if choice.parquet is not None:
        from pipeline_runtime.sources.parquet import open_parquet

        return open_parquet(choice.parquet, storage_root, decodes_pages=decodes_pages)
    raise SourceError(
        "iceberg: this release reads parquet tables only; give dataset.parquet instead"
    )
