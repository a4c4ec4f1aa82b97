"""kill -9 of any process of a run, at any step: every row is trained once.

A run either survives or goes on from its last checkpoint with --resume. Under preserveOrder its
batches, step by step, are those of a run that nothing happened to.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ray_heads import RealRay
from run_support import (
    LASTMILE,
    Clicks,
    Project,
    checksum_of,
    clicks_spec,
    wait_for,
    workers_called,
)
from warm_lastmile import RUN_SECONDS, Lastmile

# What Ray calls the processes of a run, beside its driver.
KINDS = {
    "reader": "ray::Reader",
    "coordinator": "ray::ReaderPool",
    "trainer": "ray::RayTrainWorker",
    "driver": None,
}
OUTLIVED = ("reader", "coordinator")  # others end the run, which goes on with --resume
LAST_STEP = 36  # of the 42 that the table has
ORDERED: dict[str, Any] = {"preserveOrder": True, "rowsPerBlock": 170}
# Readers make the batches, and their chunks travel compressed.
READY: dict[str, Any] = {"feed": "Readers", "rowsPerBlock": 170, "compression": "lz4"}
CHECKPOINTS: dict[str, Any] = {"checkpoint": {"everySteps": 4, "keep": 2}}
TIMES = 3  # for each kind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMES * 4 * RUN_SECONDS)]


@pytest.fixture
def expected(project: Callable[..., Project], on_cluster: Lastmile) -> dict[int, tuple[int, ...]]:
    """The batches of an undisturbed run, by their step."""
    run = project("undisturbed")
    run.write(clicks_spec(run, options=ORDERED))
    ended = on_cluster.run(*run.args("--address", "auto"))
    assert ended.code == 0, str(ended)
    return run.attempts()[0].batches


@pytest.mark.parametrize("options", [ORDERED, READY], ids=["ordered", "ready"])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_killed_every_row_is_trained_once(
    kind: str,
    options: dict[str, Any],
    expected: dict[int, tuple[int, ...]],
    clicks: Clicks,
    project: Callable[..., Project],
    on_cluster: Lastmile,
    cluster: RealRay,
) -> None:
    made: list[Project] = []

    @settings(
        max_examples=TIMES,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(step=st.integers(1, LAST_STEP))
    def kill_and_compare(step: int) -> None:
        run = project(f"killed-{len(made)}")
        made.append(run)
        config = {"sleepSeconds": 0.1}
        run.write(clicks_spec(run, options=options, training=CHECKPOINTS, config=config))
        code = run_and_kill(run, cluster, kind, step)
        assert (code == 0) is (kind in OUTLIVED)
        if code != 0:
            ended = on_cluster.run(*run.args("--address", "auto", "--resume"))
            assert ended.code == 0, str(ended)
        batches: dict[int, tuple[int, ...]] = {}
        for attempt in run.attempts():
            kept = {s: ids for s, ids in batches.items() if s <= attempt.first_step}
            batches = kept | attempt.batches
        if options is ORDERED:
            assert batches == expected
        trained = sorted(row for batch in batches.values() for row in batch)
        assert trained == sorted(row for batch in expected.values() for row in batch)
        assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)
        assert run.summary.training.samples == len(clicks.kept)

    kill_and_compare()


def run_and_kill(run: Project, cluster: RealRay, kind: str, step: int) -> int:
    """Run, kill one process of the kind once the step is seen; return the driver's exit code."""
    log = run.folder / "rank0.jsonl"
    driver = subprocess.Popen(
        [LASTMILE, *run.args("--address", "auto")],
        env=cluster.driver_env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=run.folder,
    )
    try:
        wait_for(
            lambda: driver.poll() is not None or (log.exists() and num_steps(log) >= step),
            RUN_SECONDS,
            f"step {step}",
        )
        name = KINDS[kind]
        found = [driver.pid] if name is None else workers_called(cluster, name)
        assert found, f"no {kind} at step {step}"
        os.kill(found[step % len(found)], signal.SIGKILL)
        return driver.wait(RUN_SECONDS)
    finally:
        driver.kill()
        driver.wait()


def num_steps(log: Path) -> int:
    return log.read_text().count("step")
