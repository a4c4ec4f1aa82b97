"""A node of data workers that joins a run is put to work; one that goes, however, costs no row."""

import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from ray_heads import RAY, RealRay, kill, running_node
from run_support import (
    CLICKS_PIPELINE,
    Clicks,
    Project,
    checksum_of,
    clicks_spec,
    command_line,
    descendants,
    wait_for,
)
from warm_lastmile import RUN_SECONDS, Lastmile

# A name of its own: the process of the runs imports a module once.
NOTES_ITS_NODE = """
import os, pathlib

def notes(table, folder):
    if table.num_rows:  # planning calls it too, with none
        raylet = os.environ["RAY_RAYLET_PID"]
        pathlib.Path(folder, raylet).touch()
    return table
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that joined the cluster."""

    process: subprocess.Popen[bytes]

    def ids(self) -> set[str]:
        """Return Ray's id of the node while its raylet runs; `ray start` itself lives longer."""
        lines = " ".join(map(command_line, descendants(self.process.pid)))
        return set(re.findall(r"raylet/raylet .*?--node_id=(\w+)", lines))


@contextmanager
def second_node(cluster: RealRay, log: Path) -> Iterator[Node]:
    with running_node(cluster, log, num_cpus=2) as process:
        yield Node(process=process)


def drain(cluster: RealRay, node: Node) -> None:
    """Announce that a node goes, as the operator does, and a raylet whose pod is ended."""
    [node_id] = node.ids()
    command = [str(RAY), "drain-node", f"--address=127.0.0.1:{cluster.gcs}"]
    command += [f"--node-id={node_id}", "--reason=DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message=its pod ends", "--deadline-remaining-seconds=60"]
    subprocess.run(command, env=cluster.env, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "drained"])
def test_a_node_joins_works_and_goes(
    end: str,
    clicks: Clicks,
    project: Callable[..., Project],
    on_cluster: Lastmile,
    cluster: RealRay,
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
        with second_node(cluster, run.folder / "node.log") as node:
            wait_for(lambda: len(list(nodes.iterdir())) == 2, RUN_SECONDS, "work on the node")
            if end == "killed":
                kill(node.process)
            else:
                drain(cluster, node)
                wait_for(lambda: not node.ids(), RUN_SECONDS, "end of the drained node")
                assert not ending.done()
            (run.folder / "hurry").touch()
            ended = ending.result(RUN_SECONDS)

    assert ended.code == 0, str(ended)
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept, times=2)
    assert run.summary.training.samples == 2 * len(clicks.kept)
