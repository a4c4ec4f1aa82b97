"""The rows of a run's last evaluation, and the content of the file that holds them.

Each trainer records its rows (`training.evaluation_records`) and `run.training` merges them into
`evaluation.parquet` (`report.files.evaluation_rows`). A comparison of runs pairs those of two runs
by `row`.

A file has at most `MAX_ROWS` rows: those with the smallest `row`. Since `row` is a hash of a row's
identity, two runs that evaluate the same rows keep the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.errors import LastmileError

# Enough for an interval of an AUC difference of 0.001; 32 MB in memory.
MAX_ROWS = 1_000_000
_VERSION = 1
SCHEMA = pa.schema(
    [
        ("row", pa.uint64()),  # hash of the row's identity, by which `sample` draws too
        ("group", pa.uint64()),  # hash of `dataset.requestKey`; that of the row without one
        ("label", pa.float32()),
        ("prediction", pa.float32()),
        ("loss", pa.float32()),
        ("weight", pa.float32()),  # before sampling
    ]
)
_HEADER = ("version", "step", "epoch", "numRows")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRows:
    """Rows of one evaluation, sorted by `row`.

    Attributes:
        step: optimiser steps before the evaluation.
        epoch: its epoch, from 0.
        num_rows: number of all rows of the evaluation; the table may have fewer.
        table: the columns of `SCHEMA`.
    """

    step: int
    epoch: int
    num_rows: int
    table: pa.Table

    @property
    def moment(self) -> tuple[int, int]:
        """Epoch and step; a later evaluation has a larger one."""
        return self.epoch, self.step

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of the table."""
        values: npt.NDArray[Any] = self.table.column(name).to_numpy()
        return values


def bound_columns(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the rows with the smallest `row`, at most `MAX_ROWS` of them, in any order."""
    rows = columns["row"]
    if len(rows) <= MAX_ROWS:
        return dict(columns)
    kept = np.argpartition(rows, MAX_ROWS)[:MAX_ROWS]
    return {name: values[kept] for name, values in columns.items()}


def build_rows(
    columns: Mapping[str, npt.NDArray[Any]], *, step: int, epoch: int, num_rows: int
) -> EvaluationRows:
    """Return the rows of an evaluation, given the columns of `SCHEMA` in any order of the rows.

    Args:
        columns: one array of equal length for each column.
        step: optimiser steps before the evaluation.
        epoch: its epoch, from 0.
        num_rows: number of all rows of the evaluation.
    """
    bounded = bound_columns(columns)
    order = np.lexsort([bounded[name] for name in reversed(SCHEMA.names)])
    arrays = [pa.array(bounded[field.name][order], field.type) for field in SCHEMA]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    return EvaluationRows(step=step, epoch=epoch, num_rows=num_rows, table=table)


def merge_rows(parts: Sequence[EvaluationRows]) -> EvaluationRows | None:
    """Return the rows that all trainers recorded of the latest evaluation; None without parts."""
    if not parts:
        return None
    latest = max(part.moment for part in parts)
    mine = [part for part in parts if part.moment == latest]
    table = pa.concat_tables([part.table for part in mine])
    return build_rows(
        {name: table.column(name).to_numpy() for name in SCHEMA.names},
        epoch=latest[0],
        step=latest[1],
        num_rows=sum(part.num_rows for part in mine),
    )


def encode_rows(rows: EvaluationRows) -> bytes:
    """Return the content of the file."""
    values = (_VERSION, rows.step, rows.epoch, rows.num_rows)
    metadata = {name: str(value) for name, value in zip(_HEADER, values, strict=True)}
    sink = pa.BufferOutputStream()
    pq.write_table(rows.table.replace_schema_metadata(metadata), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def decode_rows(content: bytes, place: str) -> EvaluationRows:
    """Return the rows in the content of a file.

    Args:
        content: of the file.
        place: path or URI of the file, for errors.

    Raises:
        LastmileError: the content is no such file, or is of another version.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        if file.metadata.num_rows > MAX_ROWS:  # a small file may hold any number of equal rows
            raise ValueError(f"it holds {file.metadata.num_rows:,} rows of at most {MAX_ROWS:,}")
        table = file.read(columns=SCHEMA.names)
        header = _parse_header(file.schema_arrow.metadata or {})
        table = table.select(SCHEMA.names).cast(SCHEMA)
        if any(column.null_count for column in table.columns):
            raise ValueError("it holds nulls")
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        raise LastmileError(
            f"{place}: must be the rows of an evaluation, as a run writes them: {error}; run again "
            "to write it again"
        ) from error
    if header["version"] != _VERSION:
        raise LastmileError(
            f"{place}: the version must be {_VERSION}, but is {header['version']}; read it with "
            "the release that wrote it"
        )
    return EvaluationRows(
        step=header["step"],
        epoch=header["epoch"],
        num_rows=header["numRows"],
        table=table,
    )


def _parse_header(metadata: Mapping[bytes, bytes]) -> dict[str, int]:
    return {name: int(metadata[name.encode()]) for name in _HEADER}


def join_columns(
    parts: Iterable[Mapping[str, npt.NDArray[Any]]],
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of `SCHEMA` of several parts, one after another."""
    listed = list(parts)
    return {
        field.name: np.concatenate(
            [np.empty(0, field.type.to_pandas_dtype()), *(part[field.name] for part in listed)]
        )
        for field in SCHEMA
    }
