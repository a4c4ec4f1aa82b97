"""From a laptop, a whole experiment and its log: everything about Ray goes through the proxy."""

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from commands import LASTMILE, User
from facts import assert_told
from proxied import own_address, take_heads_place
from reconcile_stage import DEADLINE_SECONDS, NAME, POLL_SECONDS, Stage, stage_of

from dataset_operator.testing import Ending
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")

LOG = "one\ntwo\n"


@pytest.mark.slow
def test_an_experiment_is_trained_and_its_log_read_through_the_proxy(
    box: Box, namespace: str
) -> None:
    async def story() -> None:
        async with stage_of(box, namespace, address=own_address()) as stage:
            user = User(box=box, namespace=namespace)
            stage.apply()
            await stage.until("ClusterReady", "True", "PodsReady")
            await take_heads_place(stage)
            first = await until_submitted(stage)
            async with following(user) as process:
                # Its job is forgotten by the head and by the operator: it is not waited for.
                forget = json.dumps({"status": {"submission": None}})
                how = ("--subresource=status", "--type=merge", "--patch", forget)
                user.kubectl("patch", "dsexp", NAME, *how)
                stage.ray.jobs.clear()
                assert b"cluster of attempt 1 of clicks" in await end(process)

            second = await until_submitted(stage)
            assert first != second
            async with following(user) as process:
                stage.ray.end(second, "SUCCEEDED")
                assert await end(process) == b""

            logs = ("logs", NAME)
            assert await asyncio.to_thread(user.reads, *logs) == LOG
            error = await asyncio.to_thread(user.fails, *logs, "--attempt", "1", code=3)
            assert_told(error, "… attempt 1 … clicks")
            stage.ray.lie = "a bad gateway"
            error = await asyncio.to_thread(user.fails, *logs)
            assert_told(error, "… head … clicks")
            stage.ray.lie = ""
            await stage.until("Complete", "True", "Succeeded")

    asyncio.run(story())


async def until_submitted(stage: Stage) -> str:
    """Wait for a job; its id. It has a log."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not stage.ray.jobs:
            await stage.step()
            await asyncio.sleep(POLL_SECONDS)
    job = stage.only_job()
    stage.ray.endings[job["entrypoint"]] = Ending(status="SUCCEEDED", log=LOG)
    return str(job["submission_id"])


@asynccontextmanager
async def following(user: User) -> AsyncIterator[Process]:
    """`lastmile logs -f` that has printed the log so far."""
    command = [LASTMILE, "logs", "-n", user.namespace, "-f", NAME]
    process = await asyncio.create_subprocess_exec(
        *command, env=user.environment(), stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readexactly(len(LOG)) == LOG.encode()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def end(process: Process) -> bytes:
    """Wait until it ends in order, having printed nothing twice; what it said beside the log."""
    printed, said = await process.communicate()
    assert (process.returncode, printed) == (0, b""), said
    return said
