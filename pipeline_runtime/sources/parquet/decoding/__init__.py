"""Decodes numbers and lists of numbers from Parquet pages, with compiled kernels.

`leaves` chooses the columns, `chunk_pages` reads the page headers of a chunk, and `codecs` finds
the functions that decompress pages. `row_group` decodes all columns of a row group at once,
`chunk_windows` one chunk window by window; `pages` chooses between them, and leaves the other
columns to pyarrow.
"""
