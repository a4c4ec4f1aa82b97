"""Recognises CSV, JSON and Avro files that were named as a table, and says how to convert them.

`fragments` asks once a file has no Parquet footer. The conversions need no more than this
environment has, except for Avro, which Arrow does not read.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

_DELIMITED = {".csv": ",", ".tsv": "\t"}
_JSON = (".json", ".jsonl", ".ndjson")
_PACKED = (".gz", ".bz2", ".zst")
_HEAD_BYTES = 256
_AVRO_MAGIC = b"Obj\x01"


def explain_conversion(filesystem: Any, path: str) -> str | None:
    """Return a file's format and the command that converts it; None if it is not one of these."""
    name = path.lower()
    for suffix in _PACKED:
        name = name.removesuffix(suffix)
    suffix = os.path.splitext(name)[1]
    head = _read_head(filesystem, path)
    folder = str(Path(path).with_name(Path(name).stem + "-parquet"))
    if head.startswith(_AVRO_MAGIC) or suffix == ".avro":
        rows = f"pyarrow.Table.from_pylist(list(fastavro.reader(open({path!r}, 'rb'))))"
        code = (
            "import fastavro, pathlib, pyarrow, pyarrow.parquet; "
            f"pathlib.Path({folder!r}).mkdir(); "
            f"pyarrow.parquet.write_table({rows}, {folder!r} + '/0.parquet')"
        )
        return _describe("Avro", code, folder, "after `pip install fastavro`, ")
    if suffix in _DELIMITED:
        options = f"c.ParseOptions(delimiter={_DELIMITED[suffix]!r})"
        form = f"d.CsvFileFormat(parse_options={options})"
        return _describe("CSV", _stream(path, folder, form), folder)
    if suffix in _JSON and head.lstrip().startswith(b"["):  # Arrow reads one object per line only
        code = (
            "import json, pathlib, pyarrow, pyarrow.parquet; "
            f"pathlib.Path({folder!r}).mkdir(); pyarrow.parquet.write_table("
            f"pyarrow.Table.from_pylist(json.load(open({path!r}))), {folder!r} + '/0.parquet')"
        )
        return _describe("JSON", code, folder)
    if suffix in _JSON:
        return _describe("JSON", _stream(path, folder, "'json'"), folder)
    return None


def _read_head(filesystem: Any, path: str) -> bytes:
    with filesystem.open_input_file(path) as stream:
        return bytes(stream.read(_HEAD_BYTES))


def _stream(path: str, folder: str, form: str) -> str:
    """Return Python code that converts a file without holding all of it in memory."""
    return (
        "import pyarrow.csv as c, pyarrow.dataset as d; "
        f"d.write_dataset(d.dataset({path!r}, format={form}), {folder!r}, format='parquet')"
    )


def _describe(form: str, code: str, folder: str, before: str = "") -> str:
    python = os.path.relpath(sys.executable)
    python = sys.executable if python.startswith("..") else python
    return (
        f"is a {form} file, and Lastmile reads Parquet. Convert it, then name {folder} instead: "
        f"{before}{shlex.quote(python)} -c {shlex.quote(code)}"
    )
