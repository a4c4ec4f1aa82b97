"""The file `evaluation.parquet` in a run's folder: the rows of its last evaluation.

Owned here: the file's name and its reading. `evaluated_rows` has its columns and bounds.
"""

from __future__ import annotations

from pathlib import Path

from pipeline_runtime.evaluated_rows import (
    MAX_ROWS,
    SCHEMA,
    EvaluationRows,
    build_rows,
    decode_rows,
    encode_rows,
    merge_rows,
)
from pipeline_runtime.files import read_regular

__all__ = [
    "EVALUATION_FILE",
    "MAX_ROWS",
    "SCHEMA",
    "EvaluationRows",
    "build_rows",
    "decode_rows",
    "encode_rows",
    "load_rows",
    "merge_rows",
]

EVALUATION_FILE = "evaluation.parquet"


def load_rows(directory: Path) -> EvaluationRows | None:
    """Load the file in a run's folder; None if the run recorded no rows.

    Raises:
        LastmileError: the file is no such file, or is of another version.
    """
    path = Path(directory) / EVALUATION_FILE
    return decode_rows(read_regular(path), str(path)) if path.exists() else None
