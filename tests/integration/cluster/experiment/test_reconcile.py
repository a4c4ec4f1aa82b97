"""Passes against a real API server and the real KubeRay operator; the Jobs API is a stand-in."""

import asyncio
import base64
import json
from typing import Any

import pytest
from reconcile_stage import DEADLINE_SECONDS, NAME, POLL_SECONDS, Stage, play

from dataset_operator.api import DATA_WORKERS, EXPERIMENT_LABEL
from dataset_operator.testing import Ending
from pipeline_runtime.config import KIND
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")


def test_an_experiment_trains_in_a_ray_cluster_and_completes(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.train(dataWorkers={"minReplicas": 2})
        owner = await stage.owner()
        status = await stage.status()
        assert status["dataWorkers"] == {
            "currentReplicas": 2,
            "readyReplicas": 2,
            "desiredReplicas": 2,
        }
        assert status["phase"] == "Training"
        job = stage.only_job()
        assert job["submission_id"] == owner.submission_id(1)
        assert job["entrypoint"].endswith(f"--run-id {owner.run_id(1)}")
        sent = stage.ray.experiment_of(job["submission_id"])
        assert sent["spec"]["dataset"] == {"parquet": {"uri": "t/"}}
        secret = await stage.child("Secret", owner.token_secret)
        token = base64.b64decode(secret["data"]["auth_token"]).decode()
        assert token == stage.ray.token
        assert token not in json.dumps(await stage.experiment())

        stage.ray.end(job["submission_id"], "SUCCEEDED")
        await stage.until("Complete", "True", "Succeeded")
        await stage.until_gone("RayCluster", owner.ray_cluster)
        document = await stage.experiment()
        assert document is not None
        assert not document["metadata"].get("finalizers")
        box.kubectl("wait", "--for=condition=Complete", "-n", namespace, f"dsexp/{NAME}")
        # A finished experiment is written no more, once what its pods held is added up.
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await stage.reconciler.kube.list_objects("Pod", namespace, ""):
                await asyncio.sleep(POLL_SECONDS)
        await stage.step()
        document = await stage.experiment()
        assert document is not None
        before = document["metadata"]["resourceVersion"]
        assert await stage.step() is None
        again = await stage.experiment()
        assert again is not None
        assert again["metadata"]["resourceVersion"] == before

    play(box, namespace, story)


OUTPUT_PAGE = """
lastmile_progress_ratio 0.7
lastmile_output_rows 700
lastmile_output_files 0
lastmile_output_bytes 0
lastmile_output_phase{phase="Spooling"} 1
lastmile_read_snapshot_info{catalog="lake",table="db.rows",snapshot_id="9223372036854775807"} 1
lastmile_materialization_info{catalog="lake",table="db.cache_1",snapshot_id="",state="Partial"} 1
lastmile_materialization_partitions 3
lastmile_materialization_complete_partitions 1
"""
# A writer of a staging table. The stand-in for its driver reports all that any writer may report.
BACKFILL: dict[str, Any] = {
    "catalogs": [{"name": "lake", "type": "Rest", "uri": "https://catalog/"}],
    "dataset": {"iceberg": {"catalog": "lake", "table": "db.rows"}, "rowKey": ["id"]},
    "pipeline": [
        {
            "materialize": {
                "iceberg": {"catalog": "lake", "table": "db.cache"},
                "bucketBy": "id",
                "buckets": 4,
            }
        }
    ],
    "output": {"iceberg": {"catalog": "lake", "table": "db.staging"}},
}
ENDING_LOG = """spooling
read: catalog=lake table=db.rows snapshot_id=9223372036854775807
read: catalog=lake table=db.cache_1 snapshot_id=7
materialized: catalog=lake table=db.cache_1 snapshot_id=7 state=Partial partitions=3 complete_partitions=3
output: rows=1000 files=3 bytes=4096 partitions=3 complete_partitions=3 snapshot_id=8
"""  # noqa: E501


def test_an_experiment_writes_a_table_without_trainers(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.ray.metrics = OUTPUT_PAGE
        stage.apply(**BACKFILL)
        await stage.until("Writing", "True", "Running")
        await stage.until("Materialized", "False", "Computing")
        cluster, status = await stage.ray_cluster(), await stage.status()
        groups = [group["groupName"] for group in cluster["spec"]["workerGroupSpecs"]]
        assert groups == [DATA_WORKERS]
        assert (status["phase"], status["gpus"]) == ("Writing", 0)
        assert status["output"] == {"rows": 700, "files": 0, "bytes": 0}
        job = stage.only_job()
        sent = stage.ray.experiment_of(job["submission_id"])["spec"]
        assert sent["output"]["iceberg"]["table"] == "db.staging"
        assert not {"trainers", "training"} & sent.keys()

        stage.ray.endings[job["entrypoint"]] = Ending(status="SUCCEEDED", log=ENDING_LOG)
        stage.ray.end(job["submission_id"], "SUCCEEDED")
        await stage.until("Complete", "True", "Succeeded")
        await stage.until_gone("RayCluster", (await stage.owner()).ray_cluster)
        status = await stage.status()
        assert status["phase"] == "Complete"
        assert status["output"] == {
            "rows": 1000,
            "files": 3,
            "bytes": 4096,
            "partitions": 3,
            "completePartitions": 3,
            "snapshotId": "8",
        }
        read = {each["table"]: each["snapshotId"] for each in status["snapshots"]}
        assert read == {"db.rows": str(2**63 - 1), "db.cache_1": "7"}
        assert status["materialization"]["completePartitions"] == 3
        box.kubectl("wait", "--for=condition=Materialized", "-n", namespace, f"dsexp/{NAME}")

    play(box, namespace, story)


def test_a_lost_answer_submits_no_second_job(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.apply()
        await stage.until("ClusterReady", "True", "PodsReady")
        stage.ray.answers_lost = 3
        await stage.until("Training", "True", "Running")
        assert (await stage.status())["attempt"] == 1
        assert len(stage.ray.jobs) == 1

    play(box, namespace, story)


def test_a_deleted_experiment_stops_its_driver_and_takes_everything_along(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        owner = await stage.owner()
        box.kubectl("delete", "dsexp", NAME, "-n", namespace, "--wait=false")
        await stage.until_gone(KIND, NAME)
        assert stage.only_job()["status"] == "STOPPED"
        await stage.until_gone("RayCluster", owner.ray_cluster)
        await stage.until_gone("Secret", owner.token_secret)

    play(box, namespace, story)


@pytest.mark.slow
def test_a_cluster_deleted_by_hand_is_made_again_and_counts_as_a_failure(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        owner = await stage.owner()
        box.kubectl("delete", "raycluster", owner.ray_cluster, "-n", namespace, "--wait=true")
        stage.ray.crash()
        found = await stage.until("Training", "False", "Retrying")
        assert "(ClusterLost)" in found["message"]
        await stage.until("Training", "True", "Running")
        status = await stage.status()
        assert (status["attempt"], status["failures"]) == (2, 1)
        assert "--resume" in stage.only_job()["entrypoint"]

    play(box, namespace, story)


def test_suspend_gives_the_cluster_back_and_resume_goes_on(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        owner = await stage.owner()
        stage.apply(suspend=True)
        await stage.until("Suspended", "True", "SuspendedBySpec")
        await stage.until_gone("RayCluster", owner.ray_cluster)
        stage.ray.crash()
        await stage.train(suspend=False)
        status = await stage.status()
        assert (status["attempt"], status["failures"]) == (2, 0)

    play(box, namespace, story)


def test_pods_that_find_no_node_are_said_in_the_schedulers_words(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        huge = {"requests": {"memory": "900Ti"}, "limits": {"memory": "900Ti"}}
        stage.apply(trainers={"resources": huge})
        found = await stage.until("ClusterReady", "False", "WaitingForPods")
        while "Insufficient memory" not in found["message"]:
            found = await stage.until("ClusterReady", "False", "WaitingForPods")
        stage.apply(trainers={"resources": huge}, preRunningDeadlineSeconds=1)
        failed = await stage.until("Failed", "True", "PreRunningDeadlineExceeded")
        assert "preRunningDeadlineSeconds (1)" in failed["message"]
        assert "Insufficient memory" in failed["message"]
        described = box.kubectl("describe", "dsexp", NAME, "-n", namespace)
        condition, _, events = described.partition("Events:")
        for part in (condition, events):
            assert "preRunningDeadlineSeconds" in part

    play(box, namespace, story)


@pytest.mark.slow
def test_a_guard_that_was_deleted_by_hand_comes_back(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        owner, kube = await stage.owner(), stage.reconciler.kube
        # A spec without inference workers has no budget for them.
        known = owner.list_guards()
        guards = [(kind, name) for kind, name in known if await kube.get(kind, namespace, name)]
        assert len(guards) > 2
        box.kubectl("delete", "networkpolicy,pdb", "--all", "-n", namespace)
        await stage.step()
        for kind, name in guards:
            assert await kube.get(kind, namespace, name) is not None
        box.kubectl("label", "networkpolicy,pdb", "--all", "-n", namespace, f"{EXPERIMENT_LABEL}-")
        await stage.step()
        ours = ("-n", namespace, "-l", f"{EXPERIMENT_LABEL}={NAME}", "-o", "name")
        left = {
            name.partition("/")[2]
            for name in box.kubectl("get", "networkpolicy,pdb", *ours).split()
        }
        assert left == {name for kind, name in guards if kind != "ServiceAccount"}

    play(box, namespace, story)
