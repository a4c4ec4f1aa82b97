"""Reads the footers of a table's files, and builds pyarrow's fragments from them.

A fragment is built from the file's footer alone, which `footers` inspects before pyarrow interprets
it. Fragments serve planning and pruning; `opening` opens a file to read its rows. `table` calls
this module while it discovers a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads

from pipeline_runtime.errors import SourceError, StoreError
from pipeline_runtime.sources.parquet.footers import Footer, check_encryption, read_tail
from pipeline_runtime.sources.parquet.other_formats import explain_conversion

# Footers are small: the latency of the object store, not CPU, limits reading them.
FOOTER_THREADS = 16


def read_fragments(
    filesystem: Any, paths: Sequence[str], below: Sequence[str], partitioning: Any
) -> tuple[tuple[Any, ...], tuple[Footer, ...]]:
    """Read the footers of these files.

    Args:
        below: paths of the files below the table's folder, which include partition folders.
        partitioning: the partitioning of these folders; None if there is none.

    Raises:
        SourceError: a footer is invalid or encrypted; names the file.
        StoreError: the store did not answer; names the file.
    """
    form, everywhere = pads.ParquetFileFormat(), pads.scalar(True)

    def read(path: str, relative: str) -> tuple[Any, Footer]:
        with _reading_footer(filesystem, path):
            try:
                with filesystem.open_input_file(path) as stream:
                    tail = read_tail(stream)
            except pa.ArrowException:
                raise
            except Exception as error:  # clients of fsspec raise errors of any type
                raise StoreError(
                    f"{path}: cannot read the Parquet footer: {error}; check that the store can be "
                    "reached from here, then try again"
                ) from error
            check_encryption(tail)
            values = partitioning.parse(relative) if partitioning else everywhere
            fragment = form.make_fragment(pa.py_buffer(tail), partition_expression=values)
            fragment.ensure_complete_metadata()
            return fragment, Footer.of(tail, fragment.metadata)

    with ThreadPoolExecutor(min(FOOTER_THREADS, max(1, len(paths)))) as pool:
        found = list(pool.map(read, paths, below))
    return tuple(fragment for fragment, _ in found), tuple(footer for _, footer in found)


@contextmanager
def _reading_footer(filesystem: Any, path: str) -> Iterator[None]:
    """Raise errors about a file's footer as SourceError."""
    try:
        yield
    except (OSError, pa.ArrowException, ValueError) as error:
        with suppress(OSError):
            if conversion := explain_conversion(filesystem, path):
                raise SourceError(f"{path}: {conversion}") from error
        raise SourceError(
            f"{path}: cannot read the Parquet footer: {error}; replace the file, or "
            "leave it out of the uri"
        ) from error
