"""A node of data workers that joins a run is put to work, and one that is killed costs no row."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from run_support import (
    CLICKS_PIPELINE,
    RAY,
    RUN_SECONDS,
    Clicks,
    Cluster,
    Lastmile,
    Project,
    checksum_of,
    clicks_spec,
    wait_for,
)

# A name of its own: the process of the runs imports a module once.
NOTES_ITS_NODE = """
import os, pathlib

def notes(table, folder):
    if table.num_rows:  # planning calls it too, with none
        raylet = os.getppid()
        pathlib.Path(folder, str(raylet)).touch()
    return table
"""


@contextmanager
def second_node(cluster: Cluster, log: Path) -> Iterator[Callable[[], None]]:
    """A node that joins the cluster; the function kills all of it at once."""
    command = [RAY, "start", f"--address={cluster.env['RAY_ADDRESS']}", "--block"]
    command += ["--num-cpus=2", "--object-store-memory=200000000", "--node-ip-address=127.0.0.1"]
    with log.open("wb") as output:
        node = subprocess.Popen(
            command,
            env={**os.environ, **cluster.env, "RAY_ADDRESS": ""},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def kill() -> None:
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()

    try:
        yield kill
    finally:
        kill()


def test_a_node_joins_works_and_is_killed(
    clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile, cluster: Cluster
) -> None:
    run = project()
    nodes = run.folder / "nodes"
    step = {"map": {"function": "noting_steps:notes", "options": {"folder": str(nodes)}}}
    spec = clicks_spec(
        run,
        pipeline=[*CLICKS_PIPELINE, step],
        options={"rowsPerBlock": 170},
        training={"epochs": 2},
        config={"sleepSeconds": 2.0},
    )
    run.write(spec, {"noting_steps": NOTES_ITS_NODE})
    nodes.mkdir()

    with ThreadPoolExecutor(1) as beside:
        ending = beside.submit(on_cluster.run, *run.args("--address", "auto"))
        wait_for(lambda: (run.folder / "rank0.jsonl").exists(), RUN_SECONDS, "training")
        with second_node(cluster, run.folder / "node.log") as kill:
            wait_for(lambda: len(list(nodes.iterdir())) == 2, RUN_SECONDS, "work on the node")
            kill()
            (run.folder / "hurry").touch()
            ended = ending.result(RUN_SECONDS)

    assert ended.code == 0, ended
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept, times=2)
    assert run.summary.training.samples == 2 * len(clicks.kept)
