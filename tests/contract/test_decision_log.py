"""Decisions that the operator has kept, through the head alone, are those that a report reads."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path

import pytest
from heads import Head, Open, open_real, open_stand_in, play

from dataset_operator.plan.outcome import KeepLog
from dataset_operator.plan.scaling_log import build_entry
from pipeline_runtime.config import DecisionInputStatus, DecisionStatus
from pipeline_runtime.report.files.autoscaler_decisions import load_decisions

RUN_ID = "0f3c6c1e-1"
FOLDER = f"20260101T000000Z-0123456789abcdef-{RUN_ID}"
# As `status.scaling.decisions` has it until it is kept.
NOTED = DecisionStatus(
    time="2026-01-01T00:10:15Z",
    before=4,
    after=6,
    reason="ScaleUpLimit",
    message='trainers\' wait: 18 % of "their" time; $(rm -rf /)',
    attempt=2,
    log_state="Pending",
    inputs=(
        DecisionInputStatus(name="gpuUtilization", value="0.7"),
        DecisionInputStatus(name="requiredWorkers", value="5.812"),
        DecisionInputStatus(name="productionShare", value="0.18"),
    ),
)


@pytest.fixture(params=["stand-in", "ray"])
def head(request: pytest.FixtureRequest) -> tuple[Open, bool]:
    if request.param == "stand-in":
        return open_stand_in, False
    return partial(open_real, request.getfixturevalue("real_ray")), True


def test_a_job_on_the_head_keeps_decisions_and_again_it_changes_nothing(
    head: tuple[Open, bool], tmp_path: Path
) -> None:
    opened, is_real = head
    run = tmp_path / "clicks" / FOLDER
    run.mkdir(parents=True)

    async def story(ray: Head) -> None:
        log = KeepLog(
            submission_id=f"decisions-{secrets.token_hex(4)}",
            artifacts_uri=f"{tmp_path}/clicks/",
            run_id=RUN_ID,
            decisions=(build_entry(NOTED),),
        )
        for _ in range(2):  # as after a lost answer
            await ray.jobs.keep_log(log)
        done = await ray.until(log.submission_id, "SUCCEEDED", "FAILED")
        assert done.status == "SUCCEEDED", await ray.jobs.logs(log.submission_id)

    play(opened, story)
    if not is_real:
        return
    [decision] = load_decisions(run)
    assert (decision.before, decision.after, decision.attempt) == (4, 6, 2)
    assert decision.reason == NOTED.reason
    assert decision.message == NOTED.message
    assert decision.inputs == {
        "requiredWorkers": 5.812,
        "productionShare": 0.18,
        "gpuUtilization": 0.7,
    }
