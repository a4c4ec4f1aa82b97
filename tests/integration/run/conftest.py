"""Tables, a warm command line and a Ray cluster for the tests of whole runs."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

# Tests are no package: this makes `run_support` importable for the modules beside it.
sys.path.insert(0, str(Path(__file__).parent))

from ray_heads import RealRay, running_head
from run_support import Clicks, Project, sampled
from warm_lastmile import Lastmile

NUM_FILES = 6
FILE_ROWS = 2000
GROUP_ROWS = 500

# Several runs a test, and the machine may be busy with other work.
TEST_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


def _clicks() -> pa.Table:
    rng = np.random.default_rng(5)
    rows = NUM_FILES * FILE_ROWS
    country = np.array(["DE", "FR", "JP", None], dtype=object)[rng.integers(0, 4, rows)]
    return pa.table(
        {
            "id": pa.array(rng.permutation(rows), pa.int64()),
            "ts": pa.array(np.arange(rows), pa.int32()),
            "user": pa.array(rng.integers(0, 200, rows), pa.int32()),
            "country": pa.array(country, pa.string()),
            "score": pa.array(rng.random(rows)),
            "items": pa.array([list(range(n)) for n in rng.integers(0, 9, rows)]),
            "unused": pa.array(rng.random(rows)),
        }
    )


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Clicks:
    root = tmp_path_factory.mktemp("clicks")
    table = _clicks()
    (root / "clicks").mkdir()
    for index in range(NUM_FILES):
        part = table.slice(index * FILE_ROWS, FILE_ROWS)
        pq.write_table(part, root / "clicks" / f"part-{index}.parquet", row_group_size=GROUP_ROWS)
    blocked = [3, 3, None, *range(50, 80)]
    (root / "blocked").mkdir()
    pq.write_table(
        pa.table({"user": pa.array(blocked, pa.int64())}), root / "blocked" / "all.parquet"
    )
    return Clicks(root=root, **_reference(table, set(blocked)))


def _reference(table: pa.Table, blocked: set[int | None]) -> dict[str, list[int]]:
    """The rows of `clicks_spec`, one after another; an equal plan prunes the first four groups."""
    rows = [row for row in table.to_pylist() if row["ts"] >= 2000]
    counts = [len(rows), len(rows)]
    for keep in (
        lambda row: row["user"] not in blocked,
        lambda row: row["country"] is not None and row["score"] < 0.9,
    ):
        rows = [row for row in rows if keep(row)]
        counts.append(len(rows))
    drawn = sampled([row["id"] for row in rows], seed=3, keep_percent=50)
    rows = [row for row, kept in zip(rows, drawn, strict=True) if row["score"] > 0.5 or kept]
    counts += [counts[-1], len(rows), len(rows)]
    return {"kept": [row["id"] for row in rows], "counts": counts}


@pytest.fixture
def project(tmp_path: Path, clicks: Clicks) -> Callable[..., Project]:
    """Makes projects over the clicks, a folder each, whose artifacts stay below the test's own."""

    def make(name: str = "clicks", root: str | None = None) -> Project:
        folder = tmp_path / name
        (folder / "data").mkdir(parents=True)
        if root is None:
            for table in ("clicks", "blocked"):
                (folder / table).symlink_to(clicks.root / table)
        return Project(folder=folder, root=root or str(folder), name=name)

    return make


@pytest.fixture(scope="package")
def shared_ray() -> Iterator[RealRay]:
    """Run a Ray that the modules of this folder share."""
    with running_head() as ray:
        yield ray


@pytest.fixture(scope="module")
def cluster(shared_ray: RealRay) -> Iterator[RealRay]:
    """Yield the shared Ray; fail a module that leaves nodes, jobs or actors there."""
    yield shared_ray
    shared_ray.check_nothing_is_left()


@pytest.fixture(scope="package")
def warm_lastmile(
    shared_ray: RealRay, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lastmile]:
    """Run a process that has paid for its imports, and whose `--address auto` is the shared Ray."""
    lastmile = Lastmile(tmp_path_factory.mktemp("on-cluster"), shared_ray.driver_env)
    yield lastmile
    lastmile.close()


@pytest.fixture
def on_cluster(warm_lastmile: Lastmile, cluster: RealRay) -> Lastmile:
    """Return a `lastmile` whose `--address auto` is the shared Ray."""
    return warm_lastmile
