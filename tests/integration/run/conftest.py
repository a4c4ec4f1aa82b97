"""Tables, a warm command line and a Ray cluster for the tests of whole runs."""

import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

# Tests are no package: this makes `run_support` importable for the modules beside it.
sys.path.insert(0, str(Path(__file__).parent))

from loopback import free_ports
from ray_heads import NO_DRAIN, wait_until_started
from run_support import RAY, Clicks, Cluster, Lastmile, Project, sampled

NUM_FILES = 6
FILE_ROWS = 2000
GROUP_ROWS = 500
# What ray[default] brings, and its Jobs API needs.
DASHBOARD_MODULES = ("aiohttp_cors", "colorful", "opencensus", "smart_open")

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
def cluster() -> Iterator[Cluster]:
    """A Ray cluster of its own ports, folder and token."""
    # Not pytest's folder: Ray's sockets live there, whose paths may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="lm-", dir="/tmp"))
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    port, dashboard_port, agent_port = free_ports(3)
    has_dashboard = all(map(_is_installed, DASHBOARD_MODULES))
    env = {
        "RAY_ADDRESS": f"127.0.0.1:{port}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [RAY, "start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1"]
    command += ["--num-cpus=4", "--object-store-memory=400000000", f"--temp-dir={folder}"]
    command += [f"--dashboard-port={dashboard_port}", f"--include-dashboard={has_dashboard}"]
    command += [f"--dashboard-agent-listen-port={agent_port}", "--include-log-monitor=False"]
    log = folder / "start.log"
    path = os.pathsep.join([str(Path(RAY).parent), os.environ["PATH"]])  # jobs call `lastmile`
    with log.open("wb") as output:
        head = subprocess.Popen(
            command,
            env={**os.environ, **env, **NO_DRAIN, "RAY_ADDRESS": "", "PATH": path},
            stdout=output,
            stderr=output,
        )
    try:
        wait_until_started(head, log)
        dashboard = f"http://127.0.0.1:{dashboard_port}" if has_dashboard else None
        yield Cluster(env=env, dashboard=dashboard)
    finally:
        head.terminate()
        head.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def _is_installed(module: str) -> bool:
    """`find_spec` raises for `colorful` once it was imported, which leaves no spec behind."""
    return module in sys.modules or importlib.util.find_spec(module) is not None


@pytest.fixture(scope="package")
def on_cluster(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lastmile]:
    """`lastmile` whose `--address auto` is the cluster of these tests."""
    lastmile = Lastmile(tmp_path_factory.mktemp("on-cluster"), cluster.env)
    yield lastmile
    lastmile.close()
