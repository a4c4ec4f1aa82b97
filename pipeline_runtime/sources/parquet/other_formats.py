"""Recognises CSV, JSON and Avro files that were named as a table, and says how to convert them.

`fragments` asks once a file has no Parquet footer. The conversions need no more than this
environment has, except for Avro, which Arrow does not read. They read files of this machine: one on
a store has to be downloaded first, since its keys and address may be those of the manifest alone.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

_JSON = (".json", ".jsonl", ".ndjson")
# Arrow unpacks files with these suffixes, in lower case.
_PACKED = (".gz", ".bz2", ".zst")
_HEAD_BYTES = 256
_AVRO_MAGIC = b"Obj\x01"
_SPACE = b"\xef\xbb\xbf \t\r\n"  # and the mark that some programs begin a UTF-8 text with


def explain_conversion(filesystem: Any, path: str) -> str | None:
    """Return a file's format and how to convert it; None if it is not one of these formats."""
    whole = path
    for suffix in _PACKED:
        whole = whole.removesuffix(suffix)
    stem, suffix = os.path.splitext(whole)
    found = _find_reader(path, suffix.lower(), _read_head(filesystem, path))
    if found is None:
        return None
    form, modules, rows = found
    start = f"is a {form} file, and Lastmile reads Parquet. "
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return (
            f"{start}Download it and name the copy instead: the error then has the command that "
            "converts it. Name the converted table, on this machine or uploaded"
        )
    folder = f"{stem}-parquet"
    code = (
        f"import {modules}, pyarrow.dataset as d; "
        f"d.write_dataset({rows}, {folder!r}, format='parquet')"
    )
    before = "after `pip install fastavro`, " if form == "Avro" else ""
    python = os.path.relpath(sys.executable)
    python = sys.executable if python.startswith("..") else python
    return (
        f"{start}Convert it, then name {folder} instead: "
        f"{before}{shlex.quote(python)} -c {shlex.quote(code)}"
    )


def _find_reader(path: str, suffix: str, head: bytes) -> tuple[str, str, str] | None:
    """Return a file's format, the modules to import, and the Python expression that reads it.

    Text is read in blocks. A JSON array, which Arrow does not read, and Avro have to fit in memory.
    """
    if head.startswith(_AVRO_MAGIC) or suffix == ".avro":
        rows = f"p.Table.from_pylist(list(fastavro.reader(p.input_stream({path!r}))))"
        return "Avro", "fastavro, pyarrow as p", rows
    if suffix == ".csv":
        return "CSV", "pyarrow.csv as c", f"c.open_csv({path!r})"
    if suffix == ".tsv":
        rows = f"c.open_csv({path!r}, parse_options=c.ParseOptions(delimiter='\\t'))"
        return "CSV", "pyarrow.csv as c", rows
    if suffix in _JSON and head.lstrip(_SPACE).startswith(b"["):
        rows = f"p.Table.from_pylist(json.load(p.input_stream({path!r})))"
        return "JSON", "json, pyarrow as p", rows
    if suffix in _JSON:
        return "JSON", "pyarrow.json as j", f"j.open_json({path!r})"
    return None


def _read_head(filesystem: Any, path: str) -> bytes:
    """Return the first bytes of a file, unpacked; none if it cannot be read."""
    try:
        with filesystem.open_input_stream(path) as stream:
            return bytes(stream.read(_HEAD_BYTES))
    except (OSError, pa.ArrowException):
        return b""
