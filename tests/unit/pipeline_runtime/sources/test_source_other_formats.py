"""Files of other formats are refused with a command that converts them."""

import bz2
import gzip
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from failing_store import store_in_memory

from pipeline_runtime.config import ParquetSource
from pipeline_runtime.config.texts.storage_uri import SCHEMES_VARIABLE
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.parquet.table import open_parquet

CSV, LINES = b"a,b\n1,x\n2,y\n", b'{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n'
ARRAY = b'[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]'


def refuse(name: str, content: bytes, folder: Path) -> str:
    (folder / name).write_bytes(content)
    with pytest.raises(SourceError) as caught:
        open_parquet(ParquetSource(uri=name), str(folder))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("it's.csv", CSV, id="CSV"),
        pytest.param("Flights.CSV.gz", gzip.compress(CSV), id="packed CSV"),
        pytest.param("t.tsv", CSV.replace(b",", b"\t"), id="TSV"),
        pytest.param("t.jsonl", LINES, id="JSON lines"),
        pytest.param("t.ndjson.zst", pa.compress(LINES, "zstd", asbytes=True), id="packed ndjson"),
        pytest.param("t.json", b"\xef\xbb\xbf" + ARRAY, id="JSON array"),
        pytest.param("t.json.bz2", bz2.compress(ARRAY), id="packed JSON array"),
        pytest.param("part-0", b"Obj\x01" + ARRAY, id="Avro"),
    ],
)
def test_the_printed_conversion_works(
    name: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = refuse(name, content, tmp_path)
    found = re.search(r"name (\S+) instead: (?:after .*, )?(\S+ -c .*)", text, re.DOTALL)
    assert found, text
    folder, command = found.groups()
    assert Path(folder).name == f"{name.split('.')[0]}-parquet"
    # It stands for the package, which is not installed here.
    reader = "import json\n\ndef reader(file):\n    return json.loads(file.read()[4:])\n"
    (tmp_path / "fastavro.py").write_text(reader)
    monkeypatch.syspath_prepend(str(tmp_path))
    if name == "it's.csv":  # once by the shell, which takes seconds
        subprocess.run(command, shell=True, check=True)
    else:
        program, option, code = shlex.split(command)
        assert (Path(program).resolve(), option) == (Path(sys.executable).resolve(), "-c")
        exec(code, {})
    table = open_parquet(ParquetSource(uri=folder), "")
    assert table.schema.names == ["a", "b"]
    assert sum(map(sum, table.row_counts)) == 2


@pytest.mark.parametrize("name", ["T.csv", "t.json.gz", "t.avro"])
def test_a_file_of_a_store_has_to_be_downloaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCHEMES_VARIABLE, "away")
    with store_in_memory() as store:
        store.pipe(f"/shelf/{name}", CSV)
        with pytest.raises(SourceError, match="Download") as caught:
            open_parquet(ParquetSource(uri=f"away://shelf/{name}"), "")
    assert " -c " not in str(caught.value)


def test_a_damaged_parquet_file_gets_no_conversion(tmp_path: Path) -> None:
    assert " -c " not in refuse("t.parquet", b"PAR1" + bytes(100), tmp_path)
