"""Merges the rows that the ranks evaluated into the run's `evaluation.parquet`.

Each rank writes a file of its own into a folder of the run on the artifacts store
(`training.evaluation_records`). Once the trainers have ended, the driver merges the files, and
writes the result beside the run's other files, there and in the folder of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyarrow import fs as pafs

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.files import write_atomically
from pipeline_runtime.report.files.evaluation_rows import (
    EVALUATION_FILE,
    EvaluationRows,
    decode_rows,
    encode_rows,
    merge_rows,
)
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import asking, list_folder, read_file, write_files

_PARTS_FOLDER = "evaluation"
_ASKING = "merge the evaluated rows"
# A million rows of 32 bytes do not compress to more; twice that is no file of ours.
_MAX_BYTES = 64 << 20


def locate_parts(run: Location) -> Location:
    """Return the folder of the rows that each rank evaluated."""
    return run.join(_PARTS_FOLDER)


def collect_rows(run: Location, output: Path) -> tuple[str, ...]:
    """Write the rows of the last evaluation into both folders of a run; return warnings.

    It is called when an attempt begins, for the parts that a killed one left, and when it ends. So
    the parts of two attempts, which may have evaluated the same rows at the same step, never meet.

    Args:
        run: folder of the run on the artifacts store.
        output: folder of the run on this machine.
    """
    try:
        # The file of an earlier attempt stays the last one if this attempt evaluated no row.
        parts = list(_read_parts(run)) or list(_read(run.join(EVALUATION_FILE)))
        merged = merge_rows(parts)
        if merged is None:
            return ()
        content = encode_rows(merged)
        write_atomically(output / EVALUATION_FILE, content)
        write_files(run, {EVALUATION_FILE: content}, _ASKING)
        _remove_parts(run)
    except (LastmileError, OSError) as error:
        return (f"the rows of the last evaluation are not all kept: {error}",)
    return ()


def _read_parts(run: Location) -> Iterator[EvaluationRows]:
    for info in list_folder(locate_parts(run), _ASKING):
        yield from _read(locate_parts(run).join(info.base_name))


def _read(place: Location) -> Iterator[EvaluationRows]:
    content = read_file(place, _ASKING, _MAX_BYTES)
    if content is not None:
        yield decode_rows(content, place.uri)


def _remove_parts(run: Location) -> None:
    parts = locate_parts(run)
    with asking(parts.uri, _ASKING):
        if parts.filesystem.get_file_info(parts.path).type == pafs.FileType.Directory:
            parts.filesystem.delete_dir(parts.path)
