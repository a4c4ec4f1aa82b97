"""The operator reads the objects of every release, and warns of fields that are newer than it.

`stored/VERSION.json` has the objects of a release while `deploy/samples/cluster.yaml` trained:
`kubectl get dsexp,raycluster,configmap,networkpolicy,pdb -o json`. Every release adds its own file.
"""

import asyncio
import copy
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from facts import assert_told
from world import World, build_document, running

from dataset_operator.api import SEAL_ANNOTATION
from dataset_operator.documents import Document, parse_time
from dataset_operator.kube.execute import execute
from dataset_operator.observed import Job
from pipeline_runtime.config import KIND, RuleSet, parse_stored, run_hash

STORED = sorted((Path(__file__).parent / "stored").glob("*.json"))


def take_over(objects: list[dict[str, Any]]) -> World:
    """Build the world that an operator of this version finds."""
    [document] = [item for item in objects if item["kind"] == KIND]
    [ray_cluster] = [item for item in objects if item["kind"] == "RayCluster"]
    children = [item for item in objects if item["kind"] not in (KIND, "RayCluster")]
    submission = document["status"]["submission"]
    return World(
        document=document,
        now=parse_time(submission["time"]) + timedelta(minutes=1),
        ray_cluster=ray_cluster,
        has_token=True,
        children={child["metadata"]["name"]: child for child in children},
        head_uid=submission["headPodUid"],
        jobs={submission["id"]: Job(status="RUNNING")},
        finalizer=True,
    )


def leave_out_newer(status: dict[str, Any]) -> dict[str, Any]:
    """Drop scaling and the digests from a status, which older releases lack."""
    others = [c for c in status["conditions"] if not c["type"].startswith("Scaling")]
    kept = {n: v for n, v in status.items() if n not in ("scaling", "acceptedDigests")}
    return kept | {"conditions": others}


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_objects_of_older_releases_keep_running(path: Path) -> None:
    world = take_over(json.loads(path.read_text())["items"])
    _, ignored = parse_stored(world.document)
    assert ignored == []

    before = copy.deepcopy((world.status, world.ray_cluster))
    world.settle()
    assert (leave_out_newer(world.status), world.ray_cluster) == before
    assert (world.submitted, world.events) == ([], [])

    world.end_job("SUCCEEDED")
    world.settle()
    assert world.condition("Complete") == ("True", "Succeeded")
    assert (world.status["run"], world.status["attempt"]) == (1, 1)


def test_newer_fields_are_reported_once_per_generation() -> None:
    world = running(mesh={"a": 1}, training={"batchSize": 7, "curriculum": []})
    world.settle()
    assert world.condition("Training") == ("True", "Running")
    said = world.status["conditions"][0]["message"]
    assert_told(said, "… spec.training.curriculum … spec.mesh")
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert world.events.count("Warning UnknownFields") == 1

    world.edit(backoffLimit=-1)
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    world.edit(backoffLimit=5)
    world.settle()
    assert world.events.count("Warning UnknownFields") == 2
    del world.document["spec"]["mesh"]
    world.edit(training={"batchSize": 7})
    world.settle()
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert "spec.mesh" not in world.status["conditions"][0]["message"]
    assert [world.status[field] for field in ("run", "attempt")] == [1, 1]


def test_the_list_of_ignored_fields_is_bounded() -> None:
    world = running(**{f"{index:0>100}": index for index in range(8)})
    said = world.status["conditions"][0]["message"]
    assert said.count("spec.0000") == 5
    assert re.search(r"\b3\b", said)
    assert world.condition("Accepted") == ("True", "ValidSpec")


class Taking:
    """An API server that accepts every write."""

    async def create(self, document: Document) -> None: ...

    async def apply(self, document: Document) -> None: ...

    async def write_status(self, document: Document, status: Document) -> None: ...


def test_ignored_fields_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(build_document(suspend=True, mesh=1))
    kube: Any = Taking()
    for _ in range(2):
        asyncio.run(execute(kube, None, world.observe(), world.step()))
    [told] = caplog.records
    assert (told.levelname, told.__dict__["reason"]) == ("WARNING", "UnknownFields")
    assert "spec.mesh" in told.message


def make_older(world: World, uri: str) -> None:
    """Change the stored objects as if an older version had accepted this URI of the table.

    That version had neither seals nor digests, and named the run by the hash of the accepted spec.
    """
    text = json.dumps([world.document, world.children])
    assert "old-table/" in text
    text = text.replace("old-table/", uri)
    run = run_hash(parse_stored(json.loads(text)[0], RuleSet.NONE)[0])
    world.document, world.children = json.loads(text.replace(world.status["runHash"], run))
    for child in world.children.values():
        child["metadata"].get("annotations", {}).pop(SEAL_ANNOTATION, None)
    del world.status["acceptedDigests"]


QUERY = "s3://bucket/t?endpoint_override=example.com"


def test_a_run_with_an_accepted_query_continues() -> None:
    world = running(dataset={"parquet": {"uri": "old-table/"}})
    make_older(world, QUERY)
    world.settle()
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert world.condition("Training") == ("True", "Running")
    assert (world.status["run"], world.status["attempt"]) == (1, 1)

    world.edit(suspend=True)
    world.settle()
    assert world.condition("Suspended") == ("True", "SuspendedBySpec")
    world.edit(suspend=False)
    world.settle()
    assert (world.status["run"], world.status["attempt"]) == (1, 2)

    world.edit(dataset={"parquet": {"uri": f"{QUERY}&more=1"}})  # another run: newer rules apply
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition("Training") == ("True", "Running")

    world.delete()
    world.settle()
    assert world.gone


def test_a_new_uri_with_a_query_is_refused() -> None:
    world = running(dataset={"parquet": {"uri": QUERY}})
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.ray_cluster is None
    world.delete()
    world.settle()
    assert world.gone
