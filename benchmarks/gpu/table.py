"""The table that is read: sample rows, each file written by a process of its own."""

from __future__ import annotations

import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from pipeline_runtime.sample_data import SampleDataOptions, write_sample_data

_FIRST_SEED = 17
_SPAM = "spam_users"


def make_table(root: Path, rows: int, files: int) -> None:
    """Write sample rows in a number of files to a folder, which is kept for later runs.

    Each file is a sample of its own seed, so that all cores can write at once. Row keys repeat from
    file to file, which does not affect any measurement.
    """
    if root.exists():  # it gets this name when it is complete
        return
    made = root.with_name(f".{root.name}")
    shutil.rmtree(made, ignore_errors=True)
    write = partial(_write_part, made, rows // files)
    if files == 1:
        write(0)
    else:
        with ProcessPoolExecutor(files, multiprocessing.get_context("spawn")) as processes:
            list(processes.map(write, range(files)))
    made.rename(root)


def _write_part(root: Path, rows: int, number: int) -> None:
    part = root / f"part-{number}"
    options = SampleDataOptions(rows=rows, seed=_FIRST_SEED + number, days=1, rows_per_file=rows)
    write_sample_data(part, options)
    [file] = (part / "impressions").rglob("*.parquet")
    folder = root / "impressions" / f"day=2026-01-{number + 1:02d}"
    folder.mkdir(parents=True)
    file.rename(folder / file.name)
    if number == 0:
        (part / _SPAM).rename(root / _SPAM)
    shutil.rmtree(part)
