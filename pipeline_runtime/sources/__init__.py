"""Sources: where the rows come from. `open_source` is the one door, `Source` the one interface.

    manifest ─▶ open_source ─▶ Source ─▶ scan ─▶ units and statistics ─▶ plan ─▶ read, on workers

1. A source is a frozen, picklable value. It has a schema, and opens files only while it reads.
2. `scan` prunes by predicates and returns units: the parts that a worker reads as a whole, such as
   a row group. A unit has its rows, bytes and place, perhaps partition values and a bucket.
3. `read` returns columns of a unit, of some rows only if asked. Rows come as a table, or with the
   columns of their request once (`rows`), which is all that the feed knows of nested storage.
4. A row's identity is its key, or else its place: the unit's place and index, and its number.
5. `digest` names the content that a checkpoint's position counts. `version` is a key for caches.
6. Formats, footers, pages and nesting are private to a source's own package, such as `parquet`.

Before this package runs `config`, whose model of a source names the module that opens it; after it
`plan`, which decides what is read. `filesystem`, `stores` and `durable` open places in a store for
all packages above.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module

from pipeline_runtime.config import SourceChoice
from pipeline_runtime.config.dataset import Catalog
from pipeline_runtime.errors import SourceError
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.sources.base import (
    ROW_ID_COLUMN,
    Bucketing,
    ColumnSize,
    Identity,
    PartitionField,
    Predicate,
    Pruning,
    Scan,
    Source,
    Unit,
    find_identity,
    read_flat,
)
from pipeline_runtime.sources.filesystem import Location, open_location, resolve_uri

__all__ = [
    "ROW_ID_COLUMN",
    "Bucketing",
    "ColumnSize",
    "Identity",
    "Location",
    "Opening",
    "PartitionField",
    "Predicate",
    "Pruning",
    "Scan",
    "Source",
    "Unit",
    "find_identity",
    "open_location",
    "open_source",
    "read_flat",
    "resolve_uri",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The arguments with which a source is opened, besides its model.

    Attributes:
        storage_root: the URI that relative URIs are below.
        catalogs: those of the manifest, which a source may refer to by name.
        pins: the states of tables that the run reads; a source that has states adds its own.
        kernels: False copies rows by Arrow's own ways (`pipelineOptions`).
        decodes_pages: True decodes stored numbers by compiled kernels, where a source can.
    """

    storage_root: str
    catalogs: tuple[Catalog, ...] = ()
    pins: Pins = field(default_factory=Pins)
    kernels: bool = True
    decodes_pages: bool = False


def open_source(choice: SourceChoice, opening: Opening) -> Source:
    """Open the one source that a manifest gives.

    Raises SourceError if it cannot be found or read, or if this release cannot read its kind.
    """
    module = choice.source.module
    if not module:
        readable = [kind for kind, model in choice.source_models().items() if model.module]
        raise SourceError(
            f"{choice.source_kind}: this release cannot read such tables; give one of these "
            f"instead: {', '.join(readable)}"
        )
    source: Source = import_module(module).open_source(choice.source, opening)
    return source
