"""Mutate good Parquet files and read each in a forked child, by Lastmile and by pyarrow.

    python mutated_files.py FOLDER SEED COUNT

Prints a line of JSON: the number of readings by outcome, and each failure with its mutation. A
failure is a crash, a hang, an error other than SourceError, a value that differs from pyarrow's, or
any value where pyarrow reports an error. Children are forked from one process that has imported
everything and compiled the kernels, since a signal may end a child.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from pipeline_runtime import kernels
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.convert import ConversionOptions, convert_table
from pipeline_runtime.errors import SourceError
from pipeline_runtime.expressions import parse
from pipeline_runtime.sources import Predicate, open_location, read_flat
from pipeline_runtime.sources.parquet import ParquetTable, open_parquet
from pipeline_runtime.sources.parquet.decoding import pages
from pipeline_runtime.sources.parquet.nested import NestedLayout

CHILD_SECONDS = 60  # a reading takes some milliseconds; the machine may be busy
NUM_ROWS = 1200
WINDOW_ROWS = 170
MAX_FAILURES = 5


def make_table(rng: random.Random) -> pa.Table:
    """Make columns of the types that kernels decode, and some that they leave to pyarrow."""

    def values(make: Callable[[], Any], nulls: float = 0.2) -> list[Any]:
        return [None if rng.random() < nulls else make() for _ in range(NUM_ROWS)]

    def items() -> list[int]:
        return [rng.randrange(50) for _ in range(rng.choice([0, 1, 3, 9]))]

    low = values(lambda: rng.randrange(20))
    return pa.table(
        {
            "request": pa.array([index // 4 for index in range(NUM_ROWS)], pa.int64()),
            "low": pa.array(low, pa.int64()),
            "high": pa.array(values(lambda: rng.randrange(-(2**31), 2**31)), pa.int32()),
            "small": pa.array(values(lambda: rng.randrange(200)), pa.uint8()),
            "real": pa.array(values(rng.random, 0), pa.float64()),
            "half": pa.array(values(rng.random), pa.float32()),
            "flag": pa.array(values(lambda: rng.random() < 0.3), pa.bool_()),
            "time": pa.array(values(lambda: rng.randrange(2**40)), pa.timestamp("us")),
            "items": pa.array(values(items), pa.list_(pa.int64())),
            "weights": pa.array(
                [[rng.random()] * 3 for _ in range(NUM_ROWS)],
                pa.list_(pa.field("element", pa.float32(), nullable=False)),
            ),
            "text": pa.array(values(lambda: rng.choice(["a", "bc", "long" * 9])), pa.string()),
            "pair": pa.array([{"x": v, "y": [v]} for v in low]),
        }
    )


def write_files(folder: Path, rng: random.Random) -> list[Path]:
    """Write a table with several writers and many of their options."""
    table = make_table(rng)
    delta = {
        "low": "DELTA_BINARY_PACKED",
        "high": "DELTA_BINARY_PACKED",
        "real": "BYTE_STREAM_SPLIT",
        "text": "DELTA_LENGTH_BYTE_ARRAY",
    }
    variants: dict[str, dict[str, Any]] = {
        f"{codec}-{version}-{dictionary}": {
            "compression": codec,
            "data_page_version": version,
            "use_dictionary": dictionary,
        }
        for codec in ("none", "snappy", "zstd", "lz4", "gzip")
        for version in ("1.0", "2.0")
        for dictionary in (True, False)
    }
    variants["delta"] = {"use_dictionary": False, "column_encoding": delta}
    variants["index"] = {"write_page_index": True, "write_page_checksum": True}
    variants["bare"] = {"store_schema": False, "write_statistics": False}
    paths = []
    for name, options in variants.items():
        paths.append(folder / f"{name}.parquet")
        size = {"row_group_size": 700, "data_page_size": 512, "write_batch_size": 64}
        pq.write_table(table, paths[-1], **size, **options)
    flat = folder / "none-1.0-True.parquet"
    for codec in ("uncompressed", "snappy", "zstd"):
        for version in ("V1", "V2"):
            paths.append(folder / f"duckdb-{codec}-{version}.parquet")
            duckdb.sql(
                f"copy (select * from '{flat}') to '{paths[-1]}' (format parquet, "
                f"compression {codec}, row_group_size 700, parquet_version {version})"
            )
    for codec in ("zstd", "none"):
        output = folder / f"nested-{codec}"
        options = ConversionOptions(request_key="request", request_columns=("small",), codec=codec)
        convert_table(open_(flat), open_location(str(output)), options)
        paths += sorted(output.rglob("*.parquet"))
    return paths


def open_(path: Path) -> ParquetTable:
    return open_parquet(ParquetSource(uri=str(path)), "", decodes_pages=True)


def mutate(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Return a copy of a file with a few bytes changed, and a description of the change."""
    size = int.from_bytes(data[-8:-4], "little") + 8
    metadata = pq.read_metadata(pa.BufferReader(data))
    group = metadata.row_group(rng.randrange(metadata.num_row_groups))
    chunk = group.column(rng.randrange(group.num_columns))
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    header = (start, min(start + 60, len(data) - 1))
    places = {
        "footer": (len(data) - size, len(data) - 1),
        "header": header,
        "chunk": (start, start + chunk.total_compressed_size - 1),
    }
    where = rng.choice(["footer", "footer", "header", "header", "chunk", "chunk", "end"])
    if where == "end":
        length = rng.randrange(len(data))
        return data[:length], f"cut to {length} bytes"
    changed, told = bytearray(data), []
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randint(*places[where])
        changed[at] = rng.choice([changed[at] ^ (1 << rng.randrange(8)), rng.randrange(256)])
        told.append(f"{at}={changed[at]}")
    return bytes(changed), f"{where} of {chunk.path_in_schema}: {', '.join(told)}"


def read_here(path: Path) -> tuple[ParquetTable, list[pa.Table]]:
    """Read all rows in two ways, and everything that a plan needs. Raises SourceError."""
    table = open_(path)
    names, scan = table.schema.names, table.scan(())
    table.sizes(scan.units, names)
    table.footer_digests([0])
    table.scan((), names)
    for name in ("low", "real", "text"):
        if name in names:
            tests = pads.field(name).is_null(), pads.field(name).is_valid()
            table.scan([Predicate(expression=parse(name), filter=test) for test in tests])
    if "low" in names and pa.types.is_integer(table.schema.field("low").type):
        table.scan([Predicate(expression=parse("low > 5"), filter=pads.field("low") > 5)])
    parts = [
        pa.concat_tables(
            part for unit in scan.units for part in read_flat(table, unit, names, max_rows)
        )
        for max_rows in (1 << 20, WINDOW_ROWS)
        if scan.units
    ]
    return table, parts


def read_by_arrow(path: Path, layout: NestedLayout | None) -> pa.Table:
    with pq.ParquetFile(path) as file:
        groups = [file.read_row_group(i, use_threads=False) for i in range(file.num_row_groups)]
    table = pa.concat_tables(groups)
    return table if layout is None else unnest(table, layout)


def unnest(table: pa.Table, layout: NestedLayout) -> pa.Table:
    lists = [name for name in layout.columns if not layout.is_request_column(name)]
    counts, *others = [pc.list_value_length(table[name]).to_pylist() for name in lists]
    assert all(other == counts for other in others)
    rows = [row for row, count in enumerate(counts) for _ in range(count)]
    return pa.table(
        {
            name: table[name].take(pa.array(rows, pa.int64()))
            if layout.is_request_column(name)
            else pa.chunked_array([c.flatten() for c in table[name].chunks])
            for name in layout.columns
        }
    )


def is_same(ours: pa.Table, theirs: pa.Table) -> bool:
    if ours.column_names != theirs.column_names or ours.num_rows != theirs.num_rows:
        return False
    for one, other in zip(ours.columns, theirs.columns, strict=True):
        one = one.cast(other.type)
        if not one.equals(other) and repr(one.to_pylist()) != repr(other.to_pylist()):
            return False  # compared as texts, since NaN does not equal NaN
    return True


def judge(path: Path, say: Callable[[str], None]) -> str:
    """Return the outcome of a reading; it begins with "BAD" for a failure."""
    say("reading here")
    try:
        table, parts = read_here(path)
    except SourceError:
        return "an error"
    except Exception as error:  # noqa: BLE001 - a user would see any of them as a traceback
        return f"BAD {type(error).__name__}: {error}"
    say("reading by pyarrow")
    try:
        theirs = read_by_arrow(path, table.layouts[0])
    except Exception as error:  # noqa: BLE001 - pyarrow's own, or lists of unequal lengths
        if not parts:
            return "no rows"
        return f"BAD values where pyarrow says {type(error).__name__}: {error}"
    same = all(is_same(part, theirs) for part in parts)
    return "pyarrow's values" if same else "BAD values unlike pyarrow's"


def judge_in_child(path: Path, judge: Callable[[Path, Callable[[str], None]], str]) -> str:
    """Return the outcome of `judge` in a forked child, or how the child died."""
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hide the output of a crash
        try:
            _say(telling, judge(path, lambda text: _say(telling, text)))
        except Exception as error:  # noqa: BLE001 - of the comparison itself
            _say(telling, f"BAD comparison, {type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.close(telling)
    said = b""
    while select.select([told], [], [], CHILD_SECONDS)[0]:
        part = os.read(told, 65_536)
        if not part:
            break
        said += part
    else:
        os.kill(child, signal.SIGKILL)
    os.close(told)
    _, status = os.waitpid(child, 0)
    last = said.decode(errors="replace").rsplit("\n", 1)[-1]
    if not os.WIFSIGNALED(status):
        return last
    if last == "reading by pyarrow":
        return "an end of pyarrow"
    number = os.WTERMSIG(status)
    return "BAD hang" if number == signal.SIGKILL else f"BAD end by signal {number}, {last}"


def _say(telling: int, text: str) -> None:
    os.write(telling, f"\n{' '.join(text.split())}".encode()[:2000])


def judge_pyarrow(path: Path, say: Callable[[str], None]) -> str:
    """Read metadata and rows with pyarrow, to find out whether pyarrow itself crashes.

    It does for a chunk whose histogram of levels has the wrong length for its column. Lastmile does
    not check that beforehand, since it would cost 20 microseconds per chunk.
    """
    say("reading by pyarrow")
    try:
        metadata = pq.read_metadata(path)
        for row_group in range(metadata.num_row_groups):
            for leaf in range(metadata.num_columns):
                metadata.row_group(row_group).column(leaf)
        read_by_arrow(path, None)
    except Exception:  # noqa: BLE001 - pyarrow's own
        return "an error"
    return "pyarrow's values"


def run(folder: Path, seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Yield the outcome of each reading, and its mutation."""
    files = [(path, path.read_bytes()) for path in write_files(folder, random.Random(seed))]
    assert kernels.warm()
    pages._MIN_VALUES = 0  # otherwise pyarrow reads small chunks
    for path, _ in files:
        yield judge_in_child(path, judge), f"{path} as it is"
    for index in range(count):
        rng = random.Random(f"{seed}/{index}")
        path, good = files[rng.randrange(len(files))]
        data, done = mutate(good, rng)
        mutated = folder / "mutated.parquet"
        mutated.write_bytes(data)
        end = judge_in_child(mutated, judge)
        if "signal" in end and judge_in_child(mutated, judge_pyarrow) == "an end of pyarrow":
            end = "an end of pyarrow"
        if end.startswith("BAD"):
            mutated.rename(folder / f"failed-{index}.parquet")
        yield end, f"mutation {index} of {path.name}, {done}"


def main() -> None:
    folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ends: Counter[str] = Counter()
    failures: list[str] = []
    for end, done in run(folder, seed, count):
        ends[end if not end.startswith("BAD") else "BAD"] += 1
        if end.startswith("BAD"):
            failures.append(f"{end} ({done})")
        if len(failures) == MAX_FAILURES:
            break
    print(json.dumps({"ends": ends, "failures": failures}))


if __name__ == "__main__":
    main()
