"""The cells: some work on a table. Every arm delivers the same rows of a cell.

plain      the sample data, with the levels of work of the loading benchmark
selective  wide rows (200 columns), of which a filter keeps few, alone or in blocks
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.dataloading.tables import convert_to_nested, make_table
from benchmarks.dataloading.workloads import PLAIN_COLUMNS

# The form of batches for each layout.
_FORMS: Final = (("flat", "expanded"), ("nested", "deduplicated"))
_NUM_COLUMNS: Final = 200  # that batches of the wide table carry
_BLOCK_ROWS: Final = 1024  # neighbours that the filter on `block` keeps or drops together
# As `lastmile convert` writes them: several pages of each column, so that pages can be skipped.
_ROWS_PER_GROUP: Final = 131_072
_MODULUS: Final = 1000
_SHARES_PER_MILLE: Final = (1, 10, 100)
_SEED: Final = 7
# Columns that the filters read: a random number of each row, and of each block.
_ALONE, _BLOCK = "alone", "block"
_WIDE_COLUMNS: Final = tuple(f"wide_{i:03d}" for i in range(_NUM_COLUMNS - len(PLAIN_COLUMNS)))


@dataclass(frozen=True, slots=True)
class Cell:
    """Some work on a table.

    Attributes:
        arguments: of the loading benchmark's `Workload`.
    """

    name: str
    arguments: tuple[tuple[str, Any], ...]

    @property
    def workload(self) -> dict[str, Any]:
        """The arguments by name."""
        return dict(self.arguments)


def build_cells(kind: str, data: Path, rows: int, works: Sequence[str]) -> list[Cell]:
    """Return the cells of a kind, and make their tables below `data` if they do not exist.

    Args:
        works: levels of work, one cell each; wide rows have no other work than the filter.
    """
    return list(_KINDS[kind](data.absolute(), rows, works))


def _plain(data: Path, rows: int, works: Sequence[str]) -> Iterator[Cell]:
    table = make_table(data, rows, ("flat", "nested"))
    for work in works:
        for layout, form in _FORMS:
            yield _cell(f"{work}, {layout}", table.roots, work, layout, form)


def _selective(data: Path, rows: int, _: Sequence[str]) -> Iterator[Cell]:
    roots = _make_wide(data, rows)
    for layout, form in _FORMS:
        for column, name in ((_ALONE, "rows"), (_BLOCK, "blocks")):
            for share in _SHARES_PER_MILLE:
                yield _cell(
                    f"{layout}, {share / 10:g} % in {name}",
                    roots,
                    "none",
                    layout,
                    form,
                    # The statistics of row groups do not answer a modulus.
                    keep=f"{column} % {_MODULUS} < {share}",
                    more_columns=_WIDE_COLUMNS,
                )


def _make_wide(data: Path, rows: int) -> dict[str, str]:
    """Write the sample data with more columns, flat and nested, and return their folders."""
    flat, nested = data / f"wide-{rows}", data / f"wide-{rows}-nested"
    if not flat.exists():  # it gets this name when it is complete
        plain = Path(make_table(data, rows).roots["flat"])
        made = flat.with_name(f".{flat.name}")
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(plain, made)
        rng = np.random.default_rng(_SEED)
        for path in sorted((made / "impressions").rglob("*.parquet")):
            _widen(path, rng)
        made.rename(flat)
    convert_to_nested(flat, nested)
    return {"flat": str(flat), "nested": str(nested)}


def _widen(path: Path, rng: np.random.Generator) -> None:
    """Write a file anew with the columns of the wide table."""
    table = pq.ParquetFile(path).read()
    blocks = rng.integers(0, 2**31, -(-table.num_rows // _BLOCK_ROWS))
    columns = {
        _ALONE: rng.integers(0, 2**31, table.num_rows),
        _BLOCK: np.repeat(blocks, _BLOCK_ROWS)[: table.num_rows],
    }
    for index, name in enumerate(_WIDE_COLUMNS):
        if index % 4:  # a quarter are ids, as in logs
            columns[name] = rng.standard_normal(table.num_rows, dtype=np.float32)
        else:
            columns[name] = rng.integers(0, 10_000, table.num_rows)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table, path, row_group_size=_ROWS_PER_GROUP, compression="zstd")


_KINDS: Final[Mapping[str, Callable[[Path, int, Sequence[str]], Iterator[Cell]]]] = {
    "plain": _plain,
    "selective": _selective,
}
KINDS: Final = tuple(_KINDS)


def _cell(
    name: str, roots: Mapping[str, str], level: str, layout: str, form: str, **more: Any
) -> Cell:
    arguments = {"level": level, "root": roots[layout], "layout": layout, "form": form, **more}
    return Cell(name, tuple(arguments.items()))
