"""The rows of an evaluation: bounded by hash, merged over trainers, and checked when read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from pipeline_runtime import evaluated_rows
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.report.files.evaluation_rows import (
    EVALUATION_FILE,
    EvaluationRows,
    build_rows,
    decode_rows,
    encode_rows,
    load_rows,
    merge_rows,
)


def make_columns(rows: list[int]) -> dict[str, npt.NDArray[Any]]:
    hashes = np.array(rows, dtype=np.uint64)
    values = hashes.astype(np.float32)
    floats = dict.fromkeys(("label", "prediction", "loss", "weight"), values)
    return {"row": hashes, "group": hashes // np.uint64(2), **floats}


def make_rows(rows: list[int], *, step: int = 3, num_rows: int | None = None) -> EvaluationRows:
    count = len(rows) if num_rows is None else num_rows
    return build_rows(make_columns(rows), step=step, epoch=1, num_rows=count)


def test_rows_survive_their_file(tmp_path: Path) -> None:
    rows = make_rows([2**64 - 1, 7, 0], num_rows=9)
    (tmp_path / EVALUATION_FILE).write_bytes(encode_rows(rows))
    assert load_rows(tmp_path) == rows
    assert rows.column("row").tolist() == [0, 7, 2**64 - 1]


def test_a_run_without_recorded_rows_has_none(tmp_path: Path) -> None:
    assert load_rows(tmp_path) is None
    assert merge_rows([]) is None


def test_smallest_hashes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluated_rows, "MAX_ROWS", 3)
    rows = make_rows([9, 1, 8, 2, 7])
    assert (rows.column("row").tolist(), rows.num_rows) == ([1, 2, 7], 5)


def test_merge_takes_latest_evaluation_of_all_trainers() -> None:
    parts = [make_rows([5, 3], step=4), make_rows([4], step=4), make_rows([1, 2], step=3)]
    merged = merge_rows(parts)
    assert merged is not None
    assert (merged.column("row").tolist(), merged.num_rows, merged.step) == ([3, 4, 5], 3, 4)


def test_merge_does_not_depend_on_order_of_trainers() -> None:
    one, other = make_rows([5, 3]), make_rows([4, 1])
    assert merge_rows([one, other]) == merge_rows([other, one])


@pytest.mark.parametrize("content", [b"", b"no parquet", encode_rows(make_rows([1]))[:-9]])
def test_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(LastmileError, match=r"runs/a/evaluation\.parquet"):
        decode_rows(content, "runs/a/evaluation.parquet")


def change_table(change: Callable[[pa.Table], pa.Table]) -> bytes:
    rows = make_rows([1, 2])
    return encode_rows(replace(rows, table=change(rows.table)))


def with_a_null(table: pa.Table) -> pa.Table:
    return table.set_column(0, "row", pa.array([None, 2], pa.uint64()))


def test_nulls_are_refused() -> None:
    with pytest.raises(LastmileError, match="null"):
        decode_rows(change_table(with_a_null), "evaluation.parquet")


def test_more_rows_than_a_run_writes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode_rows(make_rows([1, 2, 3]))
    monkeypatch.setattr(evaluated_rows, "MAX_ROWS", 2)
    with pytest.raises(LastmileError, match="at most 2"):
        decode_rows(content, "evaluation.parquet")


def test_a_damaged_byte_never_raises_another_error() -> None:
    content = bytearray(encode_rows(make_rows(list(range(100)))))
    for index in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[index] ^= 0x55
        with contextlib.suppress(LastmileError):
            decode_rows(bytes(damaged), "evaluation.parquet")


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(evaluated_rows, "_VERSION", 2)
        content = encode_rows(make_rows([1]))
    with pytest.raises(LastmileError, match="version"):
        decode_rows(content, "evaluation.parquet")
