"""A run that was killed, stopped or failed goes on where it was, and its rows are the same."""

import json
import os
import signal
import time
from collections.abc import Callable

import pytest
from run_support import (
    CLICKS_PIPELINE,
    Clicks,
    Process,
    Project,
    checksum_of,
    clicks_spec,
    descendants,
    still_there,
    wait_for,
)
from warm_lastmile import RUN_SECONDS, Lastmile

EVERY_STEPS = {"checkpoint": {"everySteps": 4, "keep": 2}}
SLOW = {"sleepSeconds": 0.25}
# Workers end when they notice that their raylet is gone, the trainer within half a second.
ORPHANS_SECONDS = 30.0
# Ray's log monitor looks for its lost cluster for a minute before it gives up.
MONITORS_SECONDS = 120.0
# Less than the minute that a stop has for its checkpoint; most of it is Ray's own end.
STOP_SECONDS = 40.0

SAVES_NOTHING = """
import pathlib, time

def loop(ctx):
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            pathlib.Path(ctx.config["folder"], "stepped").touch()
            time.sleep(ctx.config["stepSeconds"])
"""


SLOW_END = """
import pathlib, time

def loop(ctx):
    folder = pathlib.Path(ctx.config["folder"])
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            ctx.report({}, {"step": ctx.step})
        if not (folder / "cured").exists():
            (folder / "ended").touch()
            time.sleep(600)
        ctx.report({"eval_rows": 1.0})
"""


def kill_after_checkpoints(run: Project, count: int, address: str) -> set[Process]:
    """Start a run, kill -9 its driver once it has checkpoints; return the processes it had."""
    driver = run.start("--address", address)
    try:
        wait_for(lambda: len(run.checkpoints) >= count, RUN_SECONDS, f"{count} checkpoints")
        below = descendants(driver.pid)
    finally:
        driver.kill()
        driver.communicate()
    workers = {process for process in below if process.group != driver.pid}
    assert len(workers) > 3 if address == "ray" else not workers
    wait_for(lambda: not still_there(workers), ORPHANS_SECONDS, "end of the killed run's workers")
    return below


def test_a_killed_run_in_order_repeats_the_batches_that_are_left(
    clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    options = {"preserveOrder": True, "rowsPerBlock": 170}
    undisturbed = project("undisturbed")
    undisturbed.write(clicks_spec(undisturbed, options=options))
    ended = on_cluster.run(*undisturbed.args("--address", "auto"))
    assert ended.code == 0, str(ended)

    run = project("killed")
    run.write(clicks_spec(run, options=options, training=EVERY_STEPS, config=SLOW))
    kill_after_checkpoints(run, 2, "local")
    left = {path.name for path in run.checkpoints[0].parents[1].iterdir()}
    assert {"plan.json", "manifest.yaml"} < left
    assert "summary.json" not in left

    refused = on_cluster.run(*run.args("--resume", "--set", "spec.training.batchSize=50"))
    assert refused.code == 4, refused
    assert "training.batchSize: 100 → 50" in refused.stderr
    refused = on_cluster.run(
        *run.args("--resume", "--set", "spec.pipelineOptions.debug.pushdown=false")
    )
    assert refused.code == 4, refused
    assert "pipelineOptions.debug.pushdown" in refused.stderr

    ended = on_cluster.run(*run.args("--resume", "--address", "auto"))
    assert ended.code == 0, str(ended)
    killed, resumed = run.attempts()
    expected = undisturbed.attempts()[0].batches
    assert killed.batches.items() <= expected.items()
    last = run.summary.run.resumed_from
    assert last is not None
    assert last.step == resumed.first_step >= 8
    assert resumed.batches == {s: ids for s, ids in expected.items() if s > last.step}
    assert list(resumed.batches) == sorted(resumed.batches)
    assert run.summary.checksum == undisturbed.summary.checksum
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)
    assert run.summary.training.samples == len(clicks.kept)
    assert [flow.rows_out for flow in run.summary.steps] == clicks.counts


@pytest.mark.slow
def test_a_killed_run_out_of_order_trains_the_rows_that_are_left_on_more_ranks(
    clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    metrics = [
        {"name": "ids", "mean": {"column": "id"}},
        {"name": "different", "distinct": {"column": "id"}},
    ]
    spec = clicks_spec(
        run,
        pipeline=[*CLICKS_PIPELINE, {"measure": {"metrics": metrics}}],
        options={"preserveOrder": False, "rowsPerBlock": 170},
        training={**EVERY_STEPS, "epochs": 2},
        config=SLOW,
    )
    run.write(spec)
    below = kill_after_checkpoints(run, 2, "ray")
    older, newest = run.checkpoints[-2:]
    state = newest / "state.pt"
    state.write_bytes(state.read_bytes()[:-100])
    torn = newest.with_name("step-9999999999")
    torn.mkdir()
    (torn / "state.pt").write_bytes(b"half")

    run.write({**spec, "trainers": {"replicas": 2, "gpusPerReplica": 0}})
    ended = on_cluster.run(*run.args("--resume", "--address", "auto"))

    assert ended.code == 0, str(ended)
    summary = run.summary
    assert summary.run.resumed_from is not None
    assert summary.run.resumed_from.checkpoint.endswith(older.name)
    assert summary.training.world_size == 2
    first = run.attempts()[0]
    trained = [row for step, ids in first.batches.items() for row in ids if step <= first_step(run)]
    trained += [row for rank in (0, 1) for row in run.attempts(rank)[-1].ids]
    assert sorted(trained) == sorted(clicks.kept * 2)
    assert summary.checksum.model_dump() == checksum_of(clicks.kept, times=2)
    assert summary.training.samples == 2 * len(clicks.kept)
    ids, different = summary.measures
    assert ids.rows == different.value == len(clicks.kept)  # of the first epoch, each once
    assert ids.value == sum(clicks.kept) / len(clicks.kept)
    wait_for(lambda: not still_there(below), MONITORS_SECONDS, "end of the killed run's Ray")


def first_step(run: Project) -> int:
    return run.attempts()[-1].first_step


@pytest.mark.slow
def test_a_run_killed_after_its_last_batch_does_what_followed_it(
    clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    run.write(clicks_spec(run), {run.module: SLOW_END})
    driver = run.start()
    try:
        wait_for((run.folder / "ended").exists, RUN_SECONDS, "end of the last batch")
    finally:
        driver.kill()
        driver.communicate()
    (run.folder / "cured").touch()

    ended = on_cluster.run(*run.args("--resume", "--address", "auto"))
    assert ended.code == 0, str(ended)
    assert run.summary.run.outcome == "Complete"
    [evaluation] = run.summary.training.evaluations
    assert evaluation.metrics == {"eval_rows": 1.0}
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)

    ended = on_cluster.run(*run.args("--resume", "--address", "auto", "--json"))
    assert ended.code == 0, str(ended)
    assert "complete" in ended.stderr
    assert json.loads(ended.stdout)["run"]["outcome"] == "Complete"


@pytest.mark.slow
@pytest.mark.parametrize("address", ["local", "ray"])
def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(
    address: str, clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    run.write(clicks_spec(run, config=SLOW))
    process = run.start("--address", address)
    log = run.folder / "rank0.jsonl"
    wait_for(lambda: log.exists() and log.read_text().count("\n") > 6, RUN_SECONDS, "six steps")

    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole job
    stdout, stderr = process.communicate(timeout=RUN_SECONDS)

    assert process.returncode == 130, stdout + stderr
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    [checkpoint] = run.checkpoints
    assert f"last checkpoint: {checkpoint}" in stderr
    assert run.summary.run.outcome == "Interrupted"

    ended = on_cluster.run(*run.args("--resume"))
    assert ended.code == 0, str(ended)
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)
    stopped, resumed = run.attempts()
    assert max(stopped.batches) == resumed.first_step
    assert sorted(stopped.ids + resumed.ids) == sorted(clicks.kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "step_seconds", "address"),
    [
        pytest.param(1, 0.5, "local", id="once, when the entrypoint saves no checkpoints"),
        pytest.param(2, 600, "local", id="twice, in the middle of a step"),
        pytest.param(2, 600, "ray", id="twice, in the middle of a step over Ray"),
    ],
)
def test_ctrl_c_ends_a_run_that_has_no_checkpoint(
    times: int, step_seconds: float, address: str, project: Callable[..., Project]
) -> None:
    run = project()
    run.write(clicks_spec(run, config={"stepSeconds": step_seconds}), {run.module: SAVES_NOTHING})
    process = run.start("--address", address)
    wait_for((run.folder / "stepped").exists, RUN_SECONDS, "a step")
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(1)

    stdout, stderr = process.communicate(timeout=STOP_SECONDS)

    assert process.returncode == 130, stdout + stderr
    assert "Traceback" not in stderr
    assert "--resume" not in stderr
    assert run.checkpoints == []
    assert run.summary.run.outcome == "Interrupted"
