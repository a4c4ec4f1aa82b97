"""The footers of a table's files, and pyarrow's fragments over them.

A fragment is made of its file's footer alone, which is read here and looked through before pyarrow
is asked anything of it (see `footers`): it plans and prunes, and `opening` opens the file to read.
`parquet` calls this while it discovers a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads

from pipeline_runtime.errors import SourceError, StoreError
from pipeline_runtime.sources.footers import Footer, check_encryption, read_tail

# Footers are small and far away on an object store: latency, not CPU, bounds reading them.
FOOTER_THREADS = 16


def read_fragments(
    filesystem: Any, paths: Sequence[str], below: Sequence[str], partitioning: Any
) -> tuple[tuple[Any, ...], tuple[Footer, ...]]:
    """Read the footers of these files.

    Args:
        below: the files' paths below the table's folder, which have their partition folders.
        partitioning: of these folders; None: there are none.

    Raises:
        SourceError: a footer is not one, or is encrypted; names the file.
        StoreError: the store did not answer; names the file.
    """
    form, everywhere = pads.ParquetFileFormat(), pads.scalar(True)

    def read(path: str, relative: str) -> tuple[Any, Footer]:
        with _reading_footer(path):
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
def _reading_footer(path: str) -> Iterator[None]:
    """Raise what goes wrong with a file's footer as SourceError."""
    try:
        yield
    except (OSError, pa.ArrowException, ValueError) as error:
        raise SourceError(
            f"{path}: cannot read the Parquet footer: {error}; replace the file, or "
            "leave it out of the uri"
        ) from error
