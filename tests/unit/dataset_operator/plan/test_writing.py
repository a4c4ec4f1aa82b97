"""The plan of an experiment that writes a table: no trainers, and a status about the table."""

import pytest
from trained import group_of, trained
from world import World, build_document, running

from dataset_operator.api import DATA_WORKERS, HEAD, TRAINERS_ANNOTATION
from dataset_operator.observed import Progress, WrittenTable
from dataset_operator.plan.attempt import backoff_seconds
from pipeline_runtime.config import parse_experiment

OUTPUT = {"parquet": {"uri": "kept/"}}
WRITING = "Writing"
SOME = WrittenTable(phase="Spooling", rows=700, files=0, num_bytes=0)
ALL = WrittenTable(rows=1000, files=3, num_bytes=2**53 - 1)


def writing(**spec: object) -> World:
    return running(output=OUTPUT, **spec)


def groups(world: World) -> list[str]:
    assert world.ray_cluster is not None
    return [group["groupName"] for group in world.ray_cluster["spec"]["workerGroupSpecs"]]


def message(world: World) -> str:
    [found] = [c for c in world.status["conditions"] if c["type"] == WRITING]
    text: str = found["message"]
    return text


def test_from_apply_to_a_complete_table() -> None:
    world = World(build_document(output=OUTPUT))
    world.settle()
    assert groups(world) == [DATA_WORKERS]
    assert world.condition(WRITING) == ("True", "Running")
    assert world.condition("Training") is None
    assert world.status["phase"] == WRITING
    assert world.status["gpus"] == 0
    budgets = [name for name, c in world.children.items() if c["kind"] == "PodDisruptionBudget"]
    assert sorted(budgets) == [world.owner.disruption_budget(r) for r in (DATA_WORKERS, HEAD)]
    [submit] = world.submitted
    assert "trainers" not in submit.experiment["spec"]
    assert parse_experiment(submit.experiment).spec.output is not None
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.condition("Complete") == ("True", "Succeeded")
    assert world.condition(WRITING) == ("False", "Succeeded")
    assert world.status["phase"] == "Complete"
    assert world.ray_cluster is None


def test_only_the_head_and_a_data_worker_are_waited_for() -> None:
    world = World(build_document(output=OUTPUT), unready={DATA_WORKERS})
    world.settle()
    assert world.submitted == []
    world.unready.clear()
    world.settle()
    assert len(world.submitted) == 1


def test_a_failure_is_retried_and_blames_no_trainer() -> None:
    world = writing()
    world.end_job("FAILED", message="disk full", exit_code=1)
    world.settle()
    assert world.condition(WRITING) == ("False", "Retrying")
    assert "(JobFailed)" in message(world)
    assert world.status["phase"] == "Retrying"
    world.step(seconds=backoff_seconds(1))
    world.settle()
    assert [submit.resume for submit in world.submitted] == [False, True]
    assert len({submit.run_id for submit in world.submitted}) == 1


def test_a_mode_that_replaces_a_table_is_another_chance() -> None:
    world = writing(backoffLimit=0)
    world.end_job("FAILED", message="holds the table of run 1", exit_code=1)
    world.settle()
    assert world.condition("Failed") == ("True", "BackoffLimitExceeded")
    world.edit(output={**OUTPUT, "mode": "Overwrite"})
    world.settle(passes=30)
    assert world.condition(WRITING) == ("True", "Running")
    assert world.status["run"] == 1
    assert world.submitted[-1].experiment["spec"]["output"]["mode"] == "Overwrite"


def test_suspending_releases_the_cluster_and_resuming_goes_on() -> None:
    world = writing()
    world.edit(suspend=True)
    world.settle()
    assert world.ray_cluster is None
    assert world.condition(WRITING) == ("False", "SuspendedBySpec")
    world.edit(suspend=False)
    world.settle()
    assert world.condition(WRITING) == ("True", "Running")
    assert world.submitted[-1].resume
    assert (world.status["run"], world.status["failures"]) == (1, 0)


def test_the_status_has_the_table_so_far_and_at_the_end() -> None:
    world = writing()
    world.progress = Progress(ratio=0.7, production_wait_ratio=1.0, table=SOME)
    world.step()
    assert world.status["output"] == {"rows": 700, "files": 0, "bytes": 0}
    assert world.status["trainer"]["progressPercent"] == 70
    assert "productionWaitPercent" not in world.status["trainer"]
    world.end_job("SUCCEEDED", table=ALL)
    world.settle()
    assert world.status["output"] == {"rows": 1000, "files": 3, "bytes": 2**53 - 1}
    before = dict(world.status)
    world.step(seconds=3600)
    assert world.status == before


@pytest.mark.parametrize("phase", ["Merging", "Committing", None])
def test_the_rate_of_the_spool_ends_with_it(phase: str | None) -> None:
    world = writing()
    world.progress = Progress(samples_per_second=250.0, table=SOME)
    world.step()
    assert world.status["trainer"]["samplesPerSecond"] == "250"
    world.progress = None  # the driver does not answer for a while
    world.step(seconds=30)
    assert world.status["trainer"]["samplesPerSecond"] == "250"
    if phase is None:
        world.end_job("SUCCEEDED", table=ALL)
    else:
        world.progress = Progress(table=WrittenTable(phase=phase))
    world.step(seconds=30)
    assert "samplesPerSecond" not in world.status["trainer"]


def test_the_last_metrics_stay_if_the_log_has_no_table() -> None:
    world = writing()
    world.progress = Progress(table=SOME)
    world.step()
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.status["output"] == {"rows": 700, "files": 0, "bytes": 0}


def test_the_condition_names_the_phase() -> None:
    world = writing()
    messages = []
    for phase in ("Spooling", "Merging", "Committing"):
        world.progress = Progress(table=WrittenTable(phase=phase))
        world.step(seconds=30)
        messages.append(message(world))
    assert len(set(messages)) == 3
    world.progress = None  # the driver does not answer for a while
    world.step(seconds=30)
    assert message(world) == messages[-1]


def test_a_new_run_begins_without_the_numbers_of_the_last() -> None:
    world = writing()
    world.progress = Progress(table=SOME)
    world.step()
    world.end_job("SUCCEEDED", table=ALL)
    world.settle()
    world.progress = None
    world.edit(pipeline=[{"drop": {"columns": ["x"]}}])
    world.settle()
    assert world.status["run"] == 2
    assert "output" not in world.status


@pytest.mark.parametrize("policy", ["AfterRun", "Restart"])
@pytest.mark.parametrize("is_writing", [False, True], ids=["to output", "to training"])
def test_another_consumer_is_another_run_on_another_cluster(policy: str, is_writing: bool) -> None:
    world = writing(updatePolicy=policy) if is_writing else running(updatePolicy=policy)
    before, after = (WRITING, "Training") if is_writing else ("Training", WRITING)
    had = groups(world)
    for field in ("output", "trainers"):
        world.document["spec"].pop(field, None)
    world.edit(**({} if is_writing else {"output": OUTPUT}))
    if policy == "AfterRun":
        world.settle()
        assert world.condition(before) == ("True", "Running")
        assert groups(world) == had
        world.end_job("SUCCEEDED")
    world.settle(passes=30)
    assert world.status["run"] == 2
    assert groups(world) != had
    assert world.condition(after) == ("True", "Running")
    assert world.condition(before) is None
    assert not world.submitted[-1].resume


def test_trainers_that_a_user_writes_into_the_cluster_reach_no_driver() -> None:
    world = writing()
    assert world.ray_cluster is not None
    world.ray_cluster["metadata"]["annotations"][TRAINERS_ANNOTATION] = "1000x16"
    world.end_job("FAILED", exit_code=1)
    world.settle()
    world.step(seconds=backoff_seconds(1))
    world.settle()
    assert "trainers" not in world.submitted[-1].experiment["spec"]
    assert world.status["gpus"] == 0


def test_workers_are_added_up_to_the_most_without_an_alarm() -> None:
    run = trained(demand=1e12, output=OUTPUT)  # the driver always waits for rows
    run.run(600)
    assert group_of(run.world)["replicas"] == 40
    assert run.world.condition("ScalingLimited") == ("True", "TooManyReplicas")
    assert {event for event in run.world.events if event.endswith("Scaled")} == {"Normal Scaled"}


def test_no_workers_are_added_while_files_are_merged() -> None:
    run = trained(demand=1e12, output=OUTPUT)
    run.run(180)
    stored = group_of(run.world)["replicas"]
    assert 2 < stored < 40
    for _ in range(10):  # the counters stand still
        run.world.step(15)
    assert group_of(run.world)["replicas"] == stored
