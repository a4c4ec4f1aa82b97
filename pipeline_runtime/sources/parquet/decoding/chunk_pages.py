"""Lists the pages of a Parquet column chunk by their headers; `chunk_windows` cuts between them.

pyarrow reads the headers but does not show them, so `kernels.page_headers` reads them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline_runtime.kernels import Kernels

DICTIONARY_PAGE = 2  # PageType of parquet.thrift
_FEW_PAGES, _NO_ROOM = 16, -2


class PageError(ValueError):
    """The bytes are no page header, or the header of an unknown kind of page."""


class Page(NamedTuple):
    """The place of a page's body in its chunk, and the values of its header."""

    kind: int
    start: int
    stop: int
    num_bytes: int  # uncompressed; of version 2 with its levels
    num_values: int  # levels of a data page, values of a dictionary
    encoding: int
    definition_encoding: int  # of version 1
    repetition_encoding: int
    repetition_bytes: int  # of version 2
    definition_bytes: int
    is_compressed: int


def read_pages(chunk: npt.NDArray[np.uint8], kernels: Kernels) -> Iterator[Page]:
    """Yield the pages of a column chunk. Raises PageError before the first page."""
    room, told = _FEW_PAGES, _NO_ROOM
    while told == _NO_ROOM:
        found = np.empty((room, len(Page._fields)), dtype=np.int64)
        told = kernels.parquet.read_headers(chunk, found)
        room *= 4
    if told < 0:
        raise PageError("no page header where one should be")
    return (Page._make(row.tolist()) for row in found[:told])
