"""Lays the sample data out in files and knows when they are already there.

Owns the layout, the manifest file and the replacement of what an earlier call left. `arrow_tables`
runs before it and makes the tables; `sources` reads the files after it.

    DIRECTORY/_lastmile_sample.json                          options, files and sizes; written last
    DIRECTORY/impressions/day=2026-01-01/part-00000.parquet  several row groups each
    DIRECTORY/spam_users/part-00000.parquet
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import from_json

from pipeline_runtime.errors import SourceError
from pipeline_runtime.files import replacing, write_atomically
from pipeline_runtime.sample_data.arrow_tables import (
    LIST_COLUMNS,
    build_chunk,
    build_day_name,
    build_schema,
    build_spam_table,
)
from pipeline_runtime.sample_data.impressions import CHUNK_ROWS, ChunkKey
from pipeline_runtime.sample_data.options import SampleDataOptions, SampleDataSummary
from pipeline_runtime.sample_data.population import Population, build_population

# Raise it with any change to the rows or the layout: directories of another version are rewritten.
FORMAT_VERSION: Final = 1
MANIFEST_NAME: Final = "_lastmile_sample.json"
IMPRESSIONS_FOLDER: Final = "impressions"
SPAM_FOLDER: Final = "spam_users"
MIN_GROUPS_PER_FILE: Final = 4  # so that a small sample too has units to shuffle and to share out

# Encoded by dictionary: few different values. The rest is plain; for the actions, with 5 values,
# plain under zstd was 1.7 times faster to write and half the size (pyarrow 26).
_DICTIONARY_COLUMNS: Final = (
    *("user_country", "user_age_days", "device", "position", "saves"),
    *("user_id", "request_id"),
    *(f"cat_{index:02d}" for index in range(10)),  # up to 1,000 values
    *(f"dense_{index:02d}" for index in range(6)),  # one value a request
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FilePlan:
    path: str  # relative to the directory, with slashes
    group_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _DayPlan:
    day: int
    first_row: int
    rows: int
    files: tuple[_FilePlan, ...]


def write_sample_data(
    directory: Path,
    options: SampleDataOptions,
    on_progress: Callable[[int], None] | None = None,
) -> SampleDataSummary:
    """Writes the sample data, or nothing where a call with equal options has already done so.

    Args:
        directory: made if absent; what this function wrote there with other options is replaced.
        options: what to write.
        on_progress: called with the number of rows written so far, after every row group.

    Raises:
        SourceError: the directory holds impressions or spam users that this function did not write.
    """
    started = time.monotonic()
    file_sizes = _get_current_files(directory, options)
    was_current = file_sizes is not None
    report = on_progress if on_progress is not None else _ignore_progress
    if file_sizes is None:
        file_sizes = _rewrite(directory, options, report)
    else:
        report(options.rows)
    return SampleDataSummary(
        rows=options.rows,
        files=len(file_sizes),
        file_bytes=sum(file_sizes.values()),
        elapsed_seconds=time.monotonic() - started,
        was_current=was_current,
    )


def _ignore_progress(rows: int) -> None:
    del rows


def _get_current_files(directory: Path, options: SampleDataOptions) -> dict[str, int] | None:
    """The sizes of the files in bytes, by path; None where anything is missing or different."""
    manifest = _read_manifest(directory)
    if manifest.get("version") != FORMAT_VERSION or manifest.get("options") != asdict(options):
        return None
    expected = manifest.get("files")
    if not isinstance(expected, dict) or not expected:
        return None
    return expected if _get_file_sizes(directory) == expected else None


def _read_manifest(directory: Path) -> dict[str, object]:
    """Return the content of the manifest; empty if it is absent or torn."""
    try:
        content = from_json((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_manifest(
    directory: Path, options: SampleDataOptions, files: dict[str, int] | None
) -> None:
    content = {"version": FORMAT_VERSION, "options": asdict(options), "files": files}
    write_atomically(directory / MANIFEST_NAME, json.dumps(content, indent=2) + "\n")


def _get_file_sizes(directory: Path) -> dict[str, int]:
    """Everything below the two folders: a file that is not ours would be read as data too."""
    return {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for folder in (IMPRESSIONS_FOLDER, SPAM_FOLDER)
        for path in sorted((directory / folder).rglob("*"))
        if path.is_file()
    }


def _rewrite(
    directory: Path, options: SampleDataOptions, report: Callable[[int], None]
) -> dict[str, int]:
    directory.mkdir(parents=True, exist_ok=True)
    _remove_earlier(directory)
    # Without files: says that what lies here is ours, and not whole.
    _write_manifest(directory, options, None)
    population = build_population(options.seed)
    _write_spam_users(directory, population, options)
    _write_days(directory, population, options, report)
    file_sizes = _get_file_sizes(directory)
    _write_manifest(directory, options, file_sizes)
    return file_sizes


def _remove_earlier(directory: Path) -> None:
    """Removes what an earlier call wrote; a directory without its manifest is somebody's data."""
    paths = [directory / path for path in _get_file_sizes(directory)]
    foreign = [path for path in paths if not path.name.lstrip(".").startswith("part-")]
    if paths and not (directory / MANIFEST_NAME).exists():
        foreign = paths
    if foreign:
        raise SourceError(
            f"{foreign[0]}: sample data replaces only files that it wrote itself, and this is not "
            "one of them; choose another directory"
        )
    for path in paths:
        path.unlink()
    for folder in (directory / IMPRESSIONS_FOLDER).glob("day=*"):
        folder.rmdir()


def _write_days(
    directory: Path,
    population: Population,
    options: SampleDataOptions,
    report: Callable[[int], None],
) -> None:
    rows_written = 0
    for plan in _plan_days(options):
        group_sizes = [size for file in plan.files for size in file.group_sizes]
        groups = _iter_groups(_iter_chunks(population, plan), group_sizes)
        for file in plan.files:
            with _open_writer(directory / file.path, build_schema(), options) as writer:
                for table in islice(groups, len(file.group_sizes)):
                    writer.write_table(table, row_group_size=table.num_rows)
                    rows_written += table.num_rows
                    report(rows_written)


def _write_spam_users(directory: Path, population: Population, options: SampleDataOptions) -> None:
    table = build_spam_table(population)
    path = directory / SPAM_FOLDER / _name_part(0)
    with _open_writer(path, table.schema, options) as writer:
        writer.write_table(table)


@contextmanager
def _open_writer(
    path: Path, schema: pa.Schema, options: SampleDataOptions
) -> Iterator[pq.ParquetWriter]:
    """Open a writer of a file that has a hidden name, which readers skip, until it is whole."""
    with (
        replacing(path) as file,
        pq.ParquetWriter(
            file,
            schema,
            compression=options.compression,
            use_dictionary=list(_DICTIONARY_COLUMNS),
            write_statistics=[name for name in schema.names if name not in LIST_COLUMNS],
        ) as writer,
    ):
        yield writer


def _name_part(index: int) -> str:
    return f"part-{index:05d}.parquet"


def _plan_days(options: SampleDataOptions) -> list[_DayPlan]:
    """Rows spread evenly over the days; a day without rows (fewer rows than days) has no folder."""
    bounds = [options.rows * day // options.days for day in range(options.days + 1)]
    return [
        _DayPlan(
            day=day,
            first_row=first,
            rows=last - first,
            files=_plan_files(day, last - first, options),
        )
        for day, (first, last) in enumerate(pairwise(bounds))
        if last > first
    ]


def _plan_files(day: int, rows: int, options: SampleDataOptions) -> tuple[_FilePlan, ...]:
    folder = f"{IMPRESSIONS_FOLDER}/day={build_day_name(day)}"
    return tuple(
        _FilePlan(
            path=f"{folder}/{_name_part(index)}", group_sizes=_plan_groups(file_rows, options)
        )
        for index, file_rows in enumerate(_cut(rows, options.rows_per_file))
    )


def _plan_groups(file_rows: int, options: SampleDataOptions) -> tuple[int, ...]:
    small_file_size = -(-file_rows // MIN_GROUPS_PER_FILE)
    return _cut(file_rows, min(options.rows_per_group, small_file_size))


def _cut(rows: int, size: int) -> tuple[int, ...]:
    """Chunks of `size` that add up to `rows`; the last may be smaller."""
    return tuple(min(size, rows - first) for first in range(0, rows, size))


def _iter_chunks(population: Population, plan: _DayPlan) -> Iterator[pa.Table]:
    for index, first in enumerate(range(0, plan.rows, CHUNK_ROWS)):
        key = ChunkKey(
            day=plan.day, index=index, first_row=plan.first_row + first, rows_in_day=plan.rows
        )
        yield build_chunk(population, key).slice(0, plan.rows - first)


def _iter_groups(chunks: Iterator[pa.Table], sizes: Iterable[int]) -> Iterator[pa.Table]:
    """The rows of the chunks in tables of the given sizes; holds one group and one chunk."""
    held: list[pa.Table] = []
    for size in sizes:
        while sum(table.num_rows for table in held) < size:
            held.append(next(chunks))
        rows = pa.concat_tables(held)
        held = [rows.slice(size)]
        yield rows.slice(0, size)
