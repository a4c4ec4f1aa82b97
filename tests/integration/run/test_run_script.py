"""Ordinary PyTorch scripts: in the process of the command, and with DDP on several ranks."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_support import LASTMILE, Clicks, Project, checksum_of, clicks_spec, wait_for
from script_ranks import DDP_SCRIPT
from warm_lastmile import RUN_SECONDS, Lastmile

SAMPLES = Path(__file__).parents[3] / "deploy" / "samples"
TWO_RANKS: dict[str, Any] = {"trainers": {"replicas": 2, "gpusPerReplica": 0}}
IN_ORDER: dict[str, Any] = {"preserveOrder": True, "rowsPerBlock": 170}


def script_spec(run: Project, *args: str, **spec: Any) -> dict[str, Any]:
    made = clicks_spec(run, training={"checkpoint": {"everySteps": 4}}, **spec)
    del made["training"]["entrypoint"]
    made["training"] |= {"script": "train.py", "args": ["--folder", str(run.folder), *args]}
    return made


@pytest.mark.parametrize(
    ("address", "spec"),
    [
        pytest.param("local", {"options": IN_ORDER}, id="in this process"),
        pytest.param("auto", TWO_RANKS, id="on two ranks of a cluster"),
        pytest.param("auto", {}, id="on one rank of a cluster", marks=pytest.mark.slow),
        pytest.param("local", TWO_RANKS, id="on two ranks here", marks=pytest.mark.slow),
    ],
)
def test_a_script_trains_the_rows_of_the_run_and_resumes(
    address: str,
    spec: dict[str, Any],
    clicks: Clicks,
    project: Callable[..., Project],
    on_cluster: Lastmile,
) -> None:
    run = project()
    run.write(script_spec(run, "--fail-at", "6", **spec), {"train": DDP_SCRIPT})

    failed = on_cluster.run(*run.args("--address", address))
    assert failed.code == 1, str(failed)
    assert 'train.py", line ' in failed.stdout
    assert "the user's own mistake" in failed.stdout
    (run.folder / "cured").touch()
    ended = on_cluster.run(*run.args("--address", address, "--resume"))

    assert ended.code == 0, str(ended)
    summary = run.summary
    assert summary.checksum.model_dump() == checksum_of(clicks.kept)
    assert [flow.rows_out for flow in summary.steps] == clicks.counts
    assert summary.training.script == f"train.py --folder {run.folder} --fail-at 6"
    assert summary.training.metrics.keys() >= {"loss"}
    assert summary.throughput.rows_per_second > 0
    world_size = spec.get("trainers", {}).get("replicas", 1)
    ranks = [run.attempts(rank) for rank in range(world_size)]
    assert [after.first_step for _, after in ranks] == [4] * world_size
    trained = [row for _, after in ranks for row in after.ids]
    for before, _ in ranks:
        trained += [row for step, ids in before.batches.items() if step <= 4 for row in ids]
    assert sorted(trained) == sorted(clicks.kept)
    weights = [last_record(run, rank)["weight"] for rank in range(world_size)]
    assert weights == [weights[0]] * world_size  # DDP kept the models equal


def last_record(run: Project, rank: int) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(
        (run.folder / f"rank{rank}.jsonl").read_text().splitlines()[-1]
    )
    return record


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "signalled"),
    [({}, "local"), (TWO_RANKS, "local")],
    ids=["in this process", "two ranks"],
)
def test_ctrl_c_leaves_a_checkpoint_of_the_script(
    spec: dict[str, Any],
    signalled: str,
    clicks: Clicks,
    project: Callable[..., Project],
    on_cluster: Lastmile,
) -> None:
    run = project()
    run.write(script_spec(run, "--sleep", "0.3", **spec), {"train": DDP_SCRIPT})
    process = run.start("--address", signalled)
    log = run.folder / "rank0.jsonl"
    wait_for(lambda: log.exists() and log.read_text().count("\n") > 2, RUN_SECONDS, "two steps")

    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=RUN_SECONDS)

    assert process.returncode == 130, stdout + stderr
    assert "--resume" in stderr
    assert run.summary.run.outcome == "Interrupted"
    ended = on_cluster.run(*run.args("--resume", "--address", "auto"))
    assert ended.code == 0, str(ended)
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)


def test_the_sample_script_trains(tmp_path: Path) -> None:
    made = [LASTMILE, "sample-data", "--rows", "10000", "--output", str(tmp_path / "data")]
    subprocess.run(made, check=True, capture_output=True)
    for name in ("script.yaml", "train.py"):
        shutil.copy(SAMPLES / name, tmp_path)
    command = [LASTMILE, "run", "-f", "script.yaml", "--storage-root", ".", "--json"]

    ended = subprocess.run(
        [*command, "--metrics-port", "0"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=RUN_SECONDS,
    )

    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["training"]["script"] == "train.py --lr 0.1"
    assert summary["training"]["steps"] > 1
    assert summary["checkpoints"]["last"] is not None
