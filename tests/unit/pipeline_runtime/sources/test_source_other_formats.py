"""Files of other formats are refused with a command that converts them."""

import gzip
import re
import subprocess
from pathlib import Path

import pytest

from pipeline_runtime.config import ParquetSource
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.parquet.table import open_parquet

CSV, LINES = b"a,b\n1,x\n2,y\n", b'{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n'


def refuse(name: str, content: bytes, folder: Path) -> str:
    (folder / name).write_bytes(content)
    with pytest.raises(SourceError) as caught:
        open_parquet(ParquetSource(uri=name), str(folder))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("it's.csv", CSV, id="CSV"),
        pytest.param("t.CSV.gz", gzip.compress(CSV), id="packed CSV"),
        pytest.param("t.tsv", CSV.replace(b",", b"\t"), id="TSV"),
        pytest.param("t.jsonl", LINES, id="JSON lines"),
        pytest.param("t.ndjson", LINES, id="ndjson"),
        pytest.param("t.json", b'[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]', id="JSON array"),
    ],
)
def test_the_printed_conversion_works(name: str, content: bytes, tmp_path: Path) -> None:
    text = refuse(name, content, tmp_path)
    found = re.search(r"name (\S+) instead: (.*)", text, re.DOTALL)
    assert found, text
    subprocess.run(found[2], shell=True, check=True)
    table = open_parquet(ParquetSource(uri=found[1]), "")
    assert table.schema.names == ["a", "b"]
    assert sum(map(sum, table.row_counts)) == 2


def test_avro_is_recognised_by_its_content(tmp_path: Path) -> None:
    assert "Avro" in refuse("part-0", b"Obj\x01" + bytes(100), tmp_path)


def test_a_damaged_parquet_file_gets_no_conversion(tmp_path: Path) -> None:
    assert " -c " not in refuse("t.parquet", b"PAR1" + bytes(100), tmp_path)
