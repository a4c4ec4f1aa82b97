"""A run in the process of the command: without Ray, and with the rows and checkpoints of one."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from run_support import CLICKS_PIPELINE, Clicks, Project, checksum_of, clicks_spec
from warm_lastmile import RUN_SECONDS, Lastmile

from pipeline_runtime.report.files.evaluation_rows import load_rows

IN_ORDER: dict[str, Any] = {"preserveOrder": True, "rowsPerBlock": 170}
TWO_RANKS: dict[str, Any] = {"trainers": {"replicas": 2, "gpusPerReplica": 0}}
CHECKPOINTS: dict[str, Any] = {"checkpoint": {"everySteps": 4}}
# Says which heavy modules a command imported, and which of them before it showed the plan.
PROGRAM = """
import sys
from pipeline_runtime import cli
from pipeline_runtime.importing import importing
with importing():
    from pipeline_runtime.cli.progress import RunProgress

HEAVY = ("ray", "torch", "numba", "pandas", "matplotlib")
before = []
show = RunProgress.prepared

def prepared(progress, run):
    before.extend(n for n in HEAVY if n in sys.modules)
    show(progress, run)

RunProgress.prepared = prepared
sys.argv = ["lastmile", *sys.argv[1:]]
try:
    cli.main()
finally:
    print("before the plan:", *before)
    print("in all:", *(n for n in ("ray", "pandas") if n in sys.modules))
"""
DOUBLES = """
import pyarrow.compute as pc

def double(table):
    return table.set_column(table.column_names.index("user"), "user", pc.add(table["user"], 1))
"""
# Changes the folder of the process, and writes to its standard output.
WANDERS = """
import os

def loop(ctx):
    os.chdir(os.path.dirname(os.getcwd()))
    os.system("echo from a program")
    print("from the loop")
    for _ in ctx.epochs():
        for batch in ctx.batches():
            ctx.report({"loss": 1.0})
"""
EVALUATES = """
import torch

def loop(ctx):
    for _ in ctx.epochs():
        for batch in ctx.batches():
            ctx.report({"loss": 1.0})
        for batch in ctx.evaluation_batches():
            halves = torch.full_like(batch["row_weight"], 0.5)
            ctx.record_evaluation(batch, halves, halves, labels_B=batch["id"] % 2)
        ctx.report({"eval_loss": 0.5}, {"epoch": ctx.epoch})
"""
MAP: dict[str, Any] = {"map": {"function": "doubles:double"}}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([], id="readers are threads"),
        pytest.param([MAP], id="readers are processes", marks=pytest.mark.slow),
    ],
)
def test_a_run_imports_no_ray_and_a_plan_no_torch(
    steps: list[dict[str, Any]], clicks: Clicks, project: Callable[..., Project]
) -> None:
    run = project()
    spec = clicks_spec(run, pipeline=[*CLICKS_PIPELINE, *steps], options=IN_ORDER)
    run.write(spec, {"doubles": DOUBLES})
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *run.args()],
        capture_output=True,
        text=True,
        check=False,
        cwd=run.folder,
        timeout=RUN_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    assert "before the plan:\n" in ended.stdout
    assert "in all:\n" in ended.stdout
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)
    assert [phase.name for phase in run.summary.run.phases] == [
        *("imports", "plan", "torch", "first batch", "training", "report")
    ]


@pytest.mark.slow
def test_code_that_changes_the_folder_or_prints_leaves_the_report_alone(
    project: Callable[..., Project], clicks: Clicks
) -> None:
    run = project()
    run.write(clicks_spec(run, options=IN_ORDER), {run.module: WANDERS})
    stdout, stderr = run.start("--output", "here", "--json").communicate(timeout=RUN_SECONDS)
    assert json.loads(stdout)["run"]["outcome"] == "Complete", stderr
    assert "from a program" in stderr
    assert "from the loop" in stderr
    names = {path.name for path in (run.folder / "here").iterdir()}
    assert {"summary.json", "report.html", "metrics.parquet", "plan.json"} <= names
    assert not (run.folder.parent / "here").exists()


@pytest.mark.parametrize(
    ("address", "spec"),
    [
        pytest.param("local", {}, id="threads"),
        pytest.param("local", {"options": {"feed": "Readers"}}, id="processes"),
        pytest.param("auto", {}, id="a cluster"),
        pytest.param("auto", TWO_RANKS, id="two ranks of a cluster", marks=pytest.mark.slow),
        pytest.param(
            "auto", {"options": {"feed": "RayData"}}, id="Ray Data", marks=pytest.mark.slow
        ),
    ],
)
def test_variants_of_a_sample_evaluate_the_same_rows(
    address: str,
    spec: dict[str, Any],
    clicks: Clicks,
    project: Callable[..., Project],
    on_cluster: Lastmile,
) -> None:
    evaluated = []
    for name, others in (("plain", "local"), ("thinned", address)):
        run, steps = project(name), CLICKS_PIPELINE
        if name == "plain":
            steps = [step for step in steps if "downsample" not in step]
        evaluation = {"holdoutPercent": 30, "maxRows": 150}
        how = {} if name == "plain" else spec
        made = clicks_spec(run, pipeline=steps, training={"evaluation": evaluation}, **how)
        run.write(made, {run.module: EVALUATES})
        ended = on_cluster.run(*run.args("--address", others))
        assert ended.code == 0, str(ended)
        rows = load_rows(run.output)
        assert rows is not None
        assert 0 < rows.num_rows <= 150
        evaluated.append(rows)
    assert evaluated[0].table == evaluated[1].table


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param("local", "auto", id="here, then over Ray"),
        pytest.param("auto", "local", id="over Ray, then here", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_where_it_did_not_begin(
    first: str, then: str, clicks: Clicks, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    whole = project("whole")
    whole.write(clicks_spec(whole, options=IN_ORDER))
    ended = on_cluster.run(*whole.args())
    assert ended.code == 0, str(ended)
    run = project("resumed")
    run.write(clicks_spec(run, options=IN_ORDER, training=CHECKPOINTS, config={"failAt": 18}))

    failed = on_cluster.run(*run.args("--address", first))
    assert failed.code == 1, str(failed)
    assert "the user's own mistake" in failed.stdout
    (run.folder / "cured").touch()
    ended = on_cluster.run(*run.args("--address", then, "--resume"))

    assert ended.code == 0, str(ended)
    before, after = run.attempts()
    assert after.first_step == 16
    assert before.batches | after.batches == whole.attempts()[0].batches
    assert run.summary.checksum == whole.summary.checksum
    assert run.summary.checksum.model_dump() == checksum_of(clicks.kept)
