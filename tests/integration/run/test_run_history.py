"""The history of a run that ended early and was resumed: every step and evaluation, once."""

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from run_support import Project, clicks_spec
from warm_lastmile import RUN_SECONDS

from pipeline_runtime.report import load_summary, read_history

# Reports each step, evaluates every third one, saves every fourth one, and ends early once. The
# evaluation of the last step comes with a checkpoint, so that a resume there evaluates again.
ENDS_EARLY = """
import os, pathlib, signal, time

def loop(ctx):
    early = pathlib.Path(ctx.config["folder"], "early")
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            metrics = {"loss": 1.0 / ctx.step}
            if ctx.step % 3 == 0:
                metrics["eval_step"] = ctx.step
            ctx.report(metrics, {"step": ctx.step} if ctx.checkpoint_due() else None)
            if ctx.step == 22 and not early.exists():
                early.touch()
                end_early(ctx)
        ctx.report({"eval_epoch": epoch}, {"step": ctx.step})

def end_early(ctx):
    way = ctx.config["way"]
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "stop":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(2)
    if way == "raise":
        raise ValueError("the user's own mistake")
"""
# The same for a script.
SCRIPT = """
import os, pathlib, signal, sys
from pipeline_runtime import current

early = pathlib.Path(sys.argv[1], "early")
run = current()
run.load()
loader = run.loader()
for epoch in run.epochs():
    for batch in loader:
        metrics = {"loss": 1.0 / run.step}
        if run.step % 3 == 0:
            metrics["eval_step"] = run.step
        run.report(metrics)
        if run.checkpoint_due():
            run.save({"step": run.step})
        if run.step == 22 and not early.exists():
            early.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    run.report({"eval_epoch": epoch})
    run.save({"step": run.step})
"""
EVERY_FOURTH = {"checkpoint": {"everySteps": 4}}


def run_once(project: Project, *more: str) -> subprocess.CompletedProcess[str]:
    process = project.start(*more)
    stdout, stderr = process.communicate(timeout=RUN_SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def count_steps(folder: Path, name: str) -> Counter[int]:
    history = read_history(folder)
    rows = zip(history["name"].to_pylist(), history["step"].to_pylist(), strict=True)
    return Counter(step for found, step in rows if found == name)


@pytest.mark.parametrize(
    ("way", "address"),
    [
        pytest.param("kill", "local", id="kill -9"),
        pytest.param("stop", "local", id="Ctrl-C", marks=pytest.mark.slow),
        pytest.param("script", "local", id="kill -9 of a script", marks=pytest.mark.slow),
        pytest.param("kill", "ray", id="a trainer of Ray is killed", marks=pytest.mark.slow),
        pytest.param("raise", "ray", id="a trainer of Ray fails", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_history_has_every_step_once(
    way: str, address: str, project: Callable[..., Project], tmp_path: Path
) -> None:
    run = project()
    training = {**EVERY_FOURTH, "epochs": 2}
    spec = clicks_spec(run, training=training, config={"way": way})
    if way == "script":
        del spec["training"]["entrypoint"]
        spec["training"] |= {"script": "script.py", "args": [str(run.folder)], "config": {}}
    run.write(spec, {run.module: ENDS_EARLY, "script": SCRIPT})
    ended = run_once(run, "--address", address)
    assert ended.returncode != 0, ended.stderr
    assert (run.folder / "early").exists(), ended.stderr

    # A cluster's next attempt has another machine, without the files of the first.
    elsewhere = tmp_path / "elsewhere"
    ended = run_once(run, "--address", address, "--resume", "--output", str(elsewhere))

    assert ended.returncode == 0, ended.stderr
    summary = load_summary(elsewhere)
    steps = range(1, summary.training.steps + 1)
    assert len(steps) > 44
    assert count_steps(elsewhere, "loss") == Counter(steps)
    assert count_steps(elsewhere, "eval_step") == Counter(s for s in steps if s % 3 == 0)
    assert sum(count_steps(elsewhere, "eval_epoch").values()) == 2
    evaluated = [(e.step, name) for e in summary.training.evaluations for name in e.metrics]
    thirds = [(step, "eval_step") for step in steps if step % 3 == 0]
    ends = [(len(steps) // 2, "eval_epoch"), (len(steps), "eval_epoch")]
    assert sorted(evaluated) == sorted([*thirds, *ends])
    seconds = read_history(elsewhere)["seconds"].to_pylist()
    assert seconds == sorted(seconds)
    [artifacts] = Path(run.root, "experiments", run.name).iterdir()
    stored = pq.read_table(artifacts / "metrics.parquet")
    assert stored.equals(pq.read_table(elsewhere / "metrics.parquet"))
