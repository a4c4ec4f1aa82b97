"""The table that describes column chunks to `whole_chunks`, and reports what it decoded.

Apart from the kernels, since who fills the table need not have imported numba yet.
"""

from __future__ import annotations

from typing import Final

import numpy as np

# A chunk's codec, see `decompression`.
UNCOMPRESSED, ZSTD, LZ4, SNAPPY = 0, 1, 2, 3

# What stands in the table of a column chunk; addresses are of memory that the caller keeps.
COLUMN: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            # The chunk.
            *("data", "num_bytes"),  # its address, and its bytes
            *("dictionary", "dictionary_bytes"),  # of a dictionary's page that stands elsewhere
            "is_part",  # pages of a chunk, which may begin within a list: list 0 goes on
            *("codec", "function", "state"),  # see `decompression`
            "uncompressed_bytes",  # by the footer: no page has more
            # By the footer: lists (of a part at most so many) or numbers; levels.
            *("num_rows", "num_values"),
            # The column.
            *("is_list", "empty_level", "max_level"),  # see `parquet.read_levels`
            *("size", "width"),  # bytes of a plain value, 0 for one bit; of an item in Arrow
            "wanted",  # a byte a row, zero if its value may be left out; none: all are wanted
            # Where it goes; of numbers the first two only.
            "values",  # room for num_values, or num_rows numbers
            "valid_items",  # bits of them; room for them, if any may be null
            "starts",  # of each list where it starts and of the last where it ends, 64 bits each
            "valid_lists",  # bits of lists, if any may be null
            # What came of it.
            "told",  # 0, or -1: left to others
            *("num_lists", "num_items"),  # that were written; of numbers the second is num_rows
            *("null_lists", "null_items"),
            "scratch_bytes",  # that would have been enough for it and those before it
        )
    ],
    align=True,
)
