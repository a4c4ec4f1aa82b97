"""The driver as the operator submits it, on a real head: long specs, the user's code, progress."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from heads import DEADLINE_SECONDS, POLL_SECONDS, Head, build_submit, open_real, play
from ray_heads import RealRay

from dataset_operator.api import RUNTIME_METRICS_PORT
from dataset_operator.errors import RayUnreachable
from dataset_operator.observed import Progress
from dataset_operator.plan.outcome import Submit
from dataset_operator.ray.jobs import HttpRayJobs
from dataset_operator.testing import PortsOf
from pipeline_runtime.report import Summary, load_summary

# Of one string of a process's environment (execve, MAX_ARG_STRLEN), where a spec once was.
MAX_STRING_BYTES = 128 << 10
# After so long Ray kills a job that was asked to stop, unless told otherwise (job_supervisor.py).
RAYS_STOP_SECONDS = 3.0
ROWS = 400
RUN_ID, OTHER_ID = "0f3c6c1e-1", "0f3c6c1e-2"
# Trains on until the test lets it go.
LOOP = """
import pathlib, time

def loop(ctx):
    for _ in ctx.epochs():
        for batch in ctx.batches():
            ctx.report({"loss": 0.25}, {"step": ctx.step} if ctx.checkpoint_due() else None)
            while ctx.step == 2 and not pathlib.Path(ctx.config["gate"]).exists():
                time.sleep(0.05)
"""


@pytest.fixture
def name() -> str:
    """A submission id that no test had before."""
    return f"clicks-{secrets.token_hex(4)}-1"


def test_a_spec_of_a_megabyte_reaches_the_driver(real_ray: RealRay, name: str) -> None:
    async def story(ray: Head) -> None:
        words = ", ".join(f"'{'x' * 60}{index}'" for index in range(200))
        steps = [{"filter": {"where": f"country not in ({words})"}} for _ in range(70)]
        submit = build_submit(name, pipeline=steps)
        assert len(str(submit.experiment)) > 7 * MAX_STRING_BYTES
        await ray.jobs.submit(submit)
        job = await ray.until(name, "FAILED")
        # Read to its end, found to be right, and only then the table is missing.
        assert job.exit_code == 3, job.message
        assert "missing/" in job.message

    play(lambda: open_real(real_ray), story)


def test_code_that_is_not_there_fails_the_job_and_says_so(real_ray: RealRay, name: str) -> None:
    async def story(ray: Head) -> None:
        code = {"workingDir": "file:///nowhere/my_team.zip"}
        await ray.jobs.submit(build_submit(name, code=code))
        job = await ray.until(name, "FAILED")
        assert job.exit_code is None  # the driver never ran
        assert "/nowhere/my_team.zip" in job.message

    play(lambda: open_real(real_ray), story)


@asynccontextmanager
async def open_with_root(ray: RealRay, root: Path) -> AsyncIterator[Head]:
    """The head, as an operator sees it whose settings name a storage root."""
    async with open_real(ray) as head:
        yield Head(session=head.session, urls=head.urls, token=head.token, storage_root=str(root))


async def find_metrics(ray: Head, name: str) -> PortsOf:
    """The driver's metrics, on the port that its log names; in a pod it is always the same."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (
            found := re.search(r"metrics: (http://\S+:\d+)", await ray.jobs.logs(name) or "")
        ):
            await asyncio.sleep(POLL_SECONDS)
    return PortsOf(session=ray.session, urls={RUNTIME_METRICS_PORT: found[1]})


def build_attempt(
    name: str, root: Path, *, run_id: str = RUN_ID, resume: bool = False, batch_size: int = 100
) -> Submit:
    """An attempt at a training that goes on once `root/gate` is there."""
    training = {"entrypoint": "my_team_loop:loop", "batchSize": batch_size}
    return build_submit(
        name,
        run_id=run_id,
        resume=resume,
        dataset={"parquet": {"uri": "clicks/"}, "rowKey": ["id"]},
        code={"workingDir": f"file://{root}/code.zip"},
        trainers={"gpusPerReplica": 0},
        training=training | {"config": {"gate": str(root / "gate")}},
    )


def write_clicks(root: Path) -> None:
    (root / "clicks").mkdir()
    table = pa.table({"id": pa.array(range(ROWS), pa.int64()), "label": [0.0, 1.0] * (ROWS // 2)})
    pq.write_table(table, root / "clicks" / "all.parquet", row_group_size=100)


async def train(ray: Head, name: str, root: Path) -> HttpRayJobs:
    """Have a first attempt begin; its driver's metrics."""
    write_clicks(root)
    with zipfile.ZipFile(root / "code.zip", "w") as code:
        code.writestr("code/my_team_loop.py", LOOP)  # one folder on top, as Ray wants it
    await ray.jobs.submit(build_attempt(name, root))
    return HttpRayJobs(endpoint=await find_metrics(ray, name), token="")


async def finish(ray: Head, attempt: Submit, root: Path) -> Summary:
    """Have an attempt come to its end; the report that it left in its run's folder."""
    await ray.jobs.submit(attempt)
    job = await ray.until(attempt.submission_id, "SUCCEEDED", "FAILED")
    assert job.status == "SUCCEEDED", job.message
    [folder] = root.glob(f"experiments/clicks/*-{attempt.run_id}")
    return load_summary(folder)


async def is_going(driver: HttpRayJobs) -> Progress:
    """Wait until the training has said something of its own."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            with contextlib.suppress(RayUnreachable):  # before it trains
                if (progress := await driver.progress()) and progress.metrics:
                    return progress
            await asyncio.sleep(POLL_SECONDS)


@pytest.mark.slow
def test_the_users_code_trains_below_the_operators_root_and_tells_how_it_goes(
    real_ray: RealRay, name: str, tmp_path: Path
) -> None:
    async def story(ray: Head) -> None:
        driver = await train(ray, name, tmp_path)
        progress = await is_going(driver)
        assert progress.metrics == {"loss": 0.25}
        assert progress.ratio is not None
        assert 0.0 < progress.ratio <= 1.0
        (tmp_path / "gate").touch()
        job = await ray.until(name, "SUCCEEDED", "FAILED")
        assert job.status == "SUCCEEDED", job.message
        with pytest.raises(RayUnreachable):
            await driver.progress()
        [report] = tmp_path.glob("experiments/clicks/*/report.html")
        assert report.stat().st_size > 0

    play(lambda: open_with_root(real_ray, tmp_path), story)


# Two ranks, which find the script and a module beside it in the package of the user's code.
SCRIPT = """
import torch.distributed as dist
from pipeline_runtime import current
from team.names import LOSS

dist.init_process_group("gloo")
run = current()
for _ in run.epochs():
    for batch in run.loader():
        run.report({LOSS: 0.25})
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_script_of_the_code_package_trains_on_two_ranks(
    real_ray: RealRay, name: str, tmp_path: Path
) -> None:
    async def story(ray: Head) -> None:
        write_clicks(tmp_path)
        with zipfile.ZipFile(tmp_path / "code.zip", "w") as code:
            code.writestr("code/more/train.py", SCRIPT)
            code.writestr("code/team/names.py", "LOSS = 'loss'")
        script = build_submit(
            name,
            run_id=RUN_ID,
            dataset={"parquet": {"uri": "clicks/"}, "rowKey": ["id"]},
            code={"workingDir": f"file://{tmp_path}/code.zip"},
            trainers={"replicas": 2, "gpusPerReplica": 0},
            training={"script": "more/train.py", "batchSize": 50},
        )
        summary = await finish(ray, script, tmp_path)
        assert (summary.training.samples, summary.training.metrics["loss"]) == (ROWS, 0.25)

    play(lambda: open_with_root(real_ray, tmp_path), story)


@pytest.mark.slow
def test_a_script_that_is_in_no_folder_fails_the_job_and_says_so(
    real_ray: RealRay, name: str, tmp_path: Path
) -> None:
    async def story(ray: Head) -> None:
        write_clicks(tmp_path)
        await ray.jobs.submit(
            build_submit(
                name,
                dataset={"parquet": {"uri": "clicks/"}, "rowKey": ["id"]},
                training={"script": "train.py"},
            )
        )
        job = await ray.until(name, "FAILED")
        assert job.exit_code == 2, job.message
        assert "train.py" in job.message

    play(lambda: open_with_root(real_ray, tmp_path), story)


@pytest.mark.slow
def test_a_driver_that_is_asked_to_stop_leaves_a_checkpoint_that_no_other_run_takes(
    real_ray: RealRay, name: str, tmp_path: Path
) -> None:
    async def story(ray: Head) -> None:
        await is_going(await train(ray, name, tmp_path))
        await ray.jobs.stop(name)
        await asyncio.sleep(2 * RAYS_STOP_SECONDS)
        (tmp_path / "gate").touch()
        await ray.until(name, "STOPPED")
        assert "last checkpoint: " in (await ray.jobs.logs(name) or "")

        other = build_attempt(f"{name}-b", tmp_path, run_id=OTHER_ID, resume=True, batch_size=50)
        begun = await finish(ray, other, tmp_path)
        assert (begun.run.resumed_from, begun.training.samples) == (None, ROWS)

    play(lambda: open_with_root(real_ray, tmp_path), story)
