"""Lays the sample data out in files, and finds out if they are already there.

Owns the layout, the manifest file and the replacement of an earlier call's files. `arrow_tables`
runs before it and makes the tables; `sources` reads the files after it. `lake` uses its plan of
days and its manifest.

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
from typing import Any, Final

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
class DayPlan:
    """The rows of a day and the files that hold them; `first_row` counts over all days."""

    day: int
    first_row: int
    rows: int
    files: tuple[_FilePlan, ...]


def write_sample_data(
    directory: Path,
    options: SampleDataOptions,
    on_progress: Callable[[int], None] | None = None,
) -> SampleDataSummary:
    """Write the sample data, or nothing if a call with equal options has already done so.

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
    report = on_progress if on_progress is not None else ignore_progress
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


def ignore_progress(rows: int) -> None:
    """Take the place of a callback that nobody gave."""
    del rows


def _get_current_files(directory: Path, options: SampleDataOptions) -> dict[str, int] | None:
    """Return the sizes of the files in bytes, by path; None if any is missing or different."""
    manifest = read_manifest(directory / MANIFEST_NAME)
    if manifest.get("version") != FORMAT_VERSION or manifest.get("options") != asdict(options):
        return None
    expected = manifest.get("files")
    if not isinstance(expected, dict) or not expected:
        return None
    return expected if _get_file_sizes(directory) == expected else None


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the content of the manifest; empty if it is absent or torn."""
    try:
        content = from_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_manifest(path: Path, content: dict[str, Any]) -> None:
    """Write the manifest."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def _get_file_sizes(directory: Path) -> dict[str, int]:
    """Return all files below the two folders: a foreign one would be read as data too."""
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
    manifest = directory / MANIFEST_NAME
    content: dict[str, Any] = {"version": FORMAT_VERSION, "options": asdict(options)}
    # Without files: these files are the sample's, and not complete.
    write_manifest(manifest, {**content, "files": None})
    population = build_population(options.seed)
    _write_spam_users(directory, population, options)
    _write_days(directory, population, options, report)
    file_sizes = _get_file_sizes(directory)
    write_manifest(manifest, {**content, "files": file_sizes})
    return file_sizes


def _remove_earlier(directory: Path) -> None:
    """Remove the files of an earlier call; a directory without its manifest is somebody's data."""
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
    def build(key: ChunkKey) -> pa.Table:
        return build_chunk(population, key)

    rows_written = 0
    for plan in plan_days(options):
        group_sizes = [size for file in plan.files for size in file.group_sizes]
        groups = _iter_groups(iter_chunks(plan, build), group_sizes)
        for file in plan.files:
            with _open_writer(directory / file.path, build_schema(), options) as writer:
                for table in islice(groups, len(file.group_sizes)):
                    writer.write_table(table, row_group_size=table.num_rows)
                    rows_written += table.num_rows
                    report(rows_written)


def _write_spam_users(directory: Path, population: Population, options: SampleDataOptions) -> None:
    table = build_spam_table(population)
    path = directory / SPAM_FOLDER / name_part(0)
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


def name_part(index: int) -> str:
    """Return the name of a file of a folder."""
    return f"part-{index:05d}.parquet"


def plan_days(options: SampleDataOptions) -> list[DayPlan]:
    """Spread the rows evenly over the days; skip days without rows (fewer rows than days)."""
    bounds = [options.rows * day // options.days for day in range(options.days + 1)]
    return [
        DayPlan(
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
        _FilePlan(path=f"{folder}/{name_part(index)}", group_sizes=_plan_groups(file_rows, options))
        for index, file_rows in enumerate(_cut(rows, options.rows_per_file))
    )


def _plan_groups(file_rows: int, options: SampleDataOptions) -> tuple[int, ...]:
    small_file_size = -(-file_rows // MIN_GROUPS_PER_FILE)
    return _cut(file_rows, min(options.rows_per_group, small_file_size))


def _cut(rows: int, size: int) -> tuple[int, ...]:
    """Return sizes of at most `size` that add up to `rows`; the last may be smaller."""
    return tuple(min(size, rows - first) for first in range(0, rows, size))


def iter_chunks(plan: DayPlan, build: Callable[[ChunkKey], pa.Table]) -> Iterator[pa.Table]:
    """Yield the chunks of a day, which `build` makes, without the rows past the day's end."""
    for index, first in enumerate(range(0, plan.rows, CHUNK_ROWS)):
        key = ChunkKey(
            day=plan.day, index=index, first_row=plan.first_row + first, rows_in_day=plan.rows
        )
        yield build(key).slice(0, plan.rows - first)


def _iter_groups(chunks: Iterator[pa.Table], sizes: Iterable[int]) -> Iterator[pa.Table]:
    """Yield the chunks' rows in tables of the given sizes; one group and one chunk are held."""
    held: list[pa.Table] = []
    for size in sizes:
        while sum(table.num_rows for table in held) < size:
            held.append(next(chunks))
        rows = pa.concat_tables(held)
        held = [rows.slice(size)]
        yield rows.slice(0, size)
