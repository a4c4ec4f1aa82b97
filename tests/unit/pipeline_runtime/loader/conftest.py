"""A table of rows 0 to 999 for the loader's tests, and what it is like."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline

NUM_ROWS = 1000


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the table `t`: three files, row groups of 70 rows, 4 rows a request."""
    folder = tmp_path_factory.mktemp("clicks")
    (folder / "t").mkdir()
    x = np.arange(NUM_ROWS)
    lists = [[int(i)] * int(i % 3) for i in x]
    table = pa.table({"x": x, "even": x % 2 == 0, "request": x // 4, "items": lists})
    for name, start, rows in (("a", 0, 400), ("b", 400, 400), ("c", 800, 200)):
        pq.write_table(table.slice(start, rows), folder / f"t/{name}.parquet", row_group_size=70)
    return folder


@pytest.fixture(scope="session")
def pipeline(clicks: Path) -> Pipeline:
    """Return all rows of the table; chunks have at most 90, so that groups have several."""
    return Pipeline.read_parquet(f"{clicks}/t/", request_key="request").with_options(
        rows_per_block=90
    )
