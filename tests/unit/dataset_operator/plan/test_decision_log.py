"""Decisions that change the number are kept: the latest in the status, all in the artifacts."""

import json
import shlex
from itertools import pairwise
from typing import Any

from stored_status import check_is_stored
from trained import Trained, trained

from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.plan.outcome import KeepLog
from dataset_operator.plan.scaling_log import MAX_DECISIONS, MAX_MESSAGE_CHARS, MAX_MESSAGES
from dataset_operator.ray.decision_log import build_log_job


def decisions(run: Trained) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.world.status["scaling"].get("decisions", [])
    return found


def wander(run: Trained, rounds: int) -> None:
    """The need goes up and down, so that the number does."""
    for index in range(rounds):
        run.demand = 2500.0 if index % 2 else 350.0
        run.run(450)
        run.world.drained |= {f"ip-of-{name}" for name in run.world.workers}
        run.run(150)


def test_a_change_of_the_number_is_written_down_with_what_it_rests_on() -> None:
    run = trained(demand=350.0)
    run.run(300)
    [decision] = decisions(run)
    assert (decision["before"], decision["after"]) == (2, 4)
    assert decision["time"] == run.world.status["lastScaleTime"]
    assert decision["attempt"] == 1
    assert "4 with 7.5% headroom" in decision["message"]
    inputs = {item["name"]: float(item["value"]) for item in decision["inputs"]}
    assert 0.3 < inputs["productionShare"] < 0.5
    [log] = run.world.logs
    assert log.artifacts_uri == run.world.status["artifactsUri"]
    assert log.run_id == run.world.owner.run_id(1)
    [entry] = log.decisions
    assert {"demandRowsPerSecond", "workerRowsPerSecond", "requiredWorkers", "ready"} <= entry[
        "inputs"
    ].keys()
    assert entry["version"] == 1
    json.dumps(log.decisions, allow_nan=False)


def test_every_change_is_kept_and_a_steady_run_asks_for_nothing() -> None:
    run = trained(demand=350.0)
    run.run(600)
    asked = len(run.world.logs)
    assert asked == 1
    assert all("logState" not in decision for decision in decisions(run))
    run.run(600)
    assert len(run.world.logs) == asked
    wander(run, rounds=2)
    changes = [event for event in run.world.events if event.endswith(" Scaled")]
    kept = [entry["time"] for log in run.world.logs for entry in log.decisions]
    assert len(kept) == len(set(kept)) == len(changes)
    numbers = [(e["before"], e["after"]) for log in run.world.logs for e in log.decisions]
    assert all(before != after for before, after in numbers)


def test_a_job_that_is_submitted_twice_has_one_name() -> None:
    run = trained(demand=350.0)
    while "decisions" not in run.world.status.get("scaling", {}):
        run.step()
    [log] = run.world.logs
    del run.world.jobs[log.submission_id]  # the answer was lost, or the head forgot it
    run.step(1.0)
    assert [again.submission_id for again in run.world.logs] == [log.submission_id] * 2
    assert run.world.logs[0].decisions == run.world.logs[1].decisions


def test_while_the_head_takes_no_jobs_decisions_wait_and_none_is_lost() -> None:
    run = trained(demand=350.0)
    run.world.log_ends = ""
    run.run(300)
    run.demand = 900.0
    run.run(300)
    waiting = decisions(run)
    assert len(waiting) >= 2
    assert {decision["logState"] for decision in waiting} == {"Pending"}
    run.world.log_ends = "SUCCEEDED"
    run.run(30)
    [log] = run.world.logs
    assert [entry["time"] for entry in log.decisions] == [each["time"] for each in waiting]
    assert all("logState" not in decision for decision in decisions(run))


def test_what_a_store_refused_goes_with_the_next_decision_and_not_before() -> None:
    run = trained(demand=350.0)
    run.world.log_ends = "FAILED"
    run.run(600)
    assert len(run.world.logs) == 1
    assert [decision["logState"] for decision in decisions(run)] == ["Failed"]
    run.world.log_ends = "SUCCEEDED"
    run.demand = 900.0
    run.run(300)
    first, second, *_ = run.world.logs
    assert first.decisions[0] in second.decisions
    assert len(second.decisions) == 2
    assert all("logState" not in decision for decision in decisions(run))


def test_another_operator_goes_on_with_what_the_one_before_had_begun() -> None:
    run = trained(demand=350.0)
    while "decisions" not in run.world.status.get("scaling", {}):
        run.step()
    run.world.memory = None
    run.run(60)
    assert len(run.world.logs) == 1
    assert "logState" not in decisions(run)[0]


def test_the_status_holds_the_latest_and_stays_small() -> None:
    run = trained(demand=350.0)
    wander(run, rounds=8)
    latest = decisions(run)
    assert len(latest) == MAX_DECISIONS
    assert [("message" in decision) for decision in latest] == [
        *[False] * (MAX_DECISIONS - MAX_MESSAGES),
        *[True] * MAX_MESSAGES,
    ]
    assert all(len(d.get("message", "")) <= MAX_MESSAGE_CHARS for d in latest)
    assert all(earlier["time"] < later["time"] for earlier, later in pairwise(latest))
    assert len(json.dumps(latest)) < 2048
    check_is_stored(run.world.status)


def test_another_run_begins_with_an_empty_log() -> None:
    run = trained(demand=350.0)
    run.run(300)
    run.world.edit(training={"batchSize": 7}, updatePolicy="Restart")
    for _ in range(6):
        run.world.step(PERIOD_SECONDS)
    assert run.world.status["run"] == 2
    assert "decisions" not in run.world.status.get("scaling", {})


def test_a_job_carries_its_decisions_in_its_command() -> None:
    entry = {"time": "2026-01-01T00:00:00Z", "message": "it's 10 % more; $(rm -rf /)"}
    log = KeepLog(
        submission_id="decisions-1", artifacts_uri="s3://b/a/", run_id="x-1", decisions=(entry,)
    )
    job = build_log_job(log, None)
    words = shlex.split(job["entrypoint"])
    assert words[:6] == [
        "exec",
        "python3",
        "-m",
        "pipeline_runtime",
        "keep-decisions",
        "--artifacts",
    ]
    assert json.loads(words[-1]) == [entry]
    assert "--storage-root" in build_log_job(log, "/mnt/b")["entrypoint"]
