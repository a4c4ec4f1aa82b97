"""A cluster stays until its history is kept, and never for long."""

import json
from dataclasses import replace
from typing import Any

import pytest
from facts import assert_told
from world import World, build_document, running

from dataset_operator.api import HISTORY_ANNOTATION
from dataset_operator.builders.history_writers import MAX_PAYLOAD_BYTES, fit_payload, is_store
from dataset_operator.observed import Refusal
from dataset_operator.plan import decide
from dataset_operator.settings import OperatorSettings, parse_settings

KEPT = parse_settings({"runtimeImage": "runtime:1", "storageRoot": "s3://bucket/team/"})
URI = "s3://bucket/team/experiments/clicks/history/0f3c6c1e-1"


def history(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.status.get("history", {})
    return found


def sidecars(world: World) -> list[dict[str, Any]]:
    assert world.ray_cluster is not None
    spec = world.ray_cluster["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [c for g in groups for c in g["template"]["spec"].get("initContainers", ())]


def test_a_complete_runs_cluster_goes_once_its_history_is_kept() -> None:
    world = running(KEPT)
    world.end_job("SUCCEEDED")
    world.history_ends = ""
    world.step()
    assert world.condition("Complete") == ("True", "Succeeded")
    assert (history(world)["state"], world.history_pods) == ("Pending", [])  # said before it is
    world.step()
    world.step(30)
    assert world.ray_cluster is not None
    [pod] = world.history_pods
    payload = json.loads(pod["metadata"]["annotations"][HISTORY_ANNOTATION])
    assert payload["events"] == [{"reason": "Seen"}]
    assert payload["status"]["phase"] == "Complete"
    assert payload["experiment"]["spec"]["dataset"] == {"parquet": {"uri": "t/"}}

    world.history_ends = "Succeeded"
    world.settle()
    assert world.ray_cluster is None
    assert (history(world)["state"], history(world).get("podName")) == ("Kept", None)
    assert pod["metadata"]["name"] not in world.children
    assert len(world.history_pods) == 1


def test_a_pod_has_no_rights_and_the_heads_keys() -> None:
    settings = KEPT.model_copy(update={"storage_secret": "keys", "service_account": "trainer"})
    world = running(settings)
    world.end_job("SUCCEEDED")
    world.settle()
    [pod] = world.history_pods
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["serviceAccountName"] == "trainer"
    assert pod["spec"]["activeDeadlineSeconds"] == 120
    [container] = pod["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert container["command"][3:] == [
        *("keep-history", "--payload", "/etc/lastmile-history/payload.json"),
        *("--artifacts", "s3://bucket/team/experiments/clicks/", "--run-id", "0f3c6c1e-1"),
        *("--keep-days", "0"),
    ]
    policy = world.children[world.owner.history_policy]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert "ray.io/cluster" not in pod["metadata"]["labels"]


@pytest.mark.parametrize(
    ("ends", "seconds", "why"),
    [
        pytest.param("Failed", 1, "no keys", id="a pod that fails, in its own words"),
        pytest.param("", 120, "history.timeoutSeconds … 120 … no node", id="too slow"),
    ],
)
def test_a_cluster_goes_though_its_history_is_not_kept(ends: str, seconds: int, why: str) -> None:
    world = running(KEPT)
    world.end_job("SUCCEEDED")
    world.history_ends = ends
    world.step()
    world.step()
    world.step(seconds - 1)
    if not ends:
        assert history(world)["state"] == "Pending"
    world.step(1)
    world.settle()
    assert world.ray_cluster is None
    assert history(world)["state"] == "Failed"
    assert_told(history(world)["message"], f"… {why}")
    assert "Warning HistoryFailed" in world.events
    assert world.condition("Complete") == ("True", "Succeeded")


def test_a_pod_that_the_api_server_refuses_is_not_waited_for() -> None:
    world = running(KEPT)
    world.end_job("SUCCEEDED")
    world.step()
    refusal = Refusal(message="exceeded quota: pods", is_invalid=False)
    decision = decide(replace(world.observe(), refusal=refusal), world.now)
    status = decision.status.to_document()
    assert status["history"]["state"] == "Failed"
    assert "exceeded quota" in status["history"]["message"]
    assert ("RayCluster", world.owner.ray_cluster) in decision.delete


def test_an_operator_that_died_between_the_status_and_the_deletion_asks_for_no_second() -> None:
    world = running(KEPT)
    world.end_job("SUCCEEDED")
    for _ in range(2):
        world.step()
    world.crash(after_drain=False)  # it has said that the history is kept
    assert history(world)["state"] == "Kept"
    assert world.ray_cluster is not None
    world.settle()
    assert world.ray_cluster is None
    assert len(world.history_pods) == 1


def test_suspended_and_resumed_each_cluster_is_told_of_once() -> None:
    world = running(KEPT)
    world.edit(suspend=True)
    world.settle()
    assert world.ray_cluster is None
    assert history(world)["state"] == "Kept"
    world.edit(suspend=False)
    world.settle()
    assert sidecars(world)
    world.end_job("SUCCEEDED")
    world.settle()
    names = [pod["metadata"]["name"] for pod in world.history_pods]
    assert names == [world.owner.history_pod(1, 1), world.owner.history_pod(1, 2)]


def test_resumed_while_its_history_is_kept_it_gets_a_cluster_of_its_own() -> None:
    world = running(KEPT)
    world.history_ends = ""
    world.edit(suspend=True)
    for _ in range(4):
        world.step()
    assert history(world)["state"] == "Pending"
    world.edit(suspend=False)
    world.step()
    assert world.ray_cluster is not None
    assert world.ray_cluster["metadata"]["uid"] == "cluster-1"
    world.history_ends = "Succeeded"
    world.settle()
    assert world.ray_cluster is not None
    assert world.ray_cluster["metadata"]["uid"] == "cluster-2"
    assert world.condition("Training") == ("True", "Running")


def test_an_edit_that_waits_begins_its_run_after_the_history() -> None:
    world = running(KEPT)
    world.edit(dataset={"parquet": {"uri": "other/"}})
    world.settle()
    world.end_job("SUCCEEDED")
    world.settle()
    [pod] = world.history_pods
    assert pod["metadata"]["name"] == world.owner.history_pod(1, 1)
    assert world.status["run"] == 2
    assert world.condition("Training") == ("True", "Running")
    [*_, to, _, _] = sidecars(world)[0]["command"]
    assert "/history/0f3c6c1e-2/logs/" in to


def test_a_deletion_keeps_the_history_in_the_time_that_a_driver_has() -> None:
    world = running(KEPT)
    world.history_ends = ""
    world.delete()
    world.step()  # the driver is asked to stop
    for _ in range(3):
        world.step()
    assert (history(world)["state"], len(world.history_pods)) == ("Pending", 1)
    assert not world.gone
    world.step(58)
    assert not world.gone
    world.step(2)
    assert world.gone


def test_a_deletion_ends_as_soon_as_the_history_is_kept() -> None:
    world = running(KEPT)
    world.delete()
    for _ in range(5):
        world.step()
    assert world.gone
    assert history(world)["state"] == "Kept"


def settings(**more: Any) -> OperatorSettings:
    return parse_settings({"runtimeImage": "runtime:1", **more})


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        pytest.param(settings(), "store", id="artifacts without a store"),
        pytest.param(settings(storageRoot="/data/"), "store", id="a pod's own disk"),
        pytest.param(
            settings(storageRoot="s3://b/", history={"enabled": False}),
            "history.enabled",
            id="switched off",
        ),
    ],
)
def test_without_a_place_for_it_nothing_is_made_nor_waited_for(
    operator: OperatorSettings, why: str
) -> None:
    world = running(operator)
    assert sidecars(world) == []
    world.end_job("SUCCEEDED")
    world.step()
    assert world.ray_cluster is None
    assert history(world)["state"] == "Skipped"
    assert why in history(world)["message"]
    assert world.history_pods == []


def test_every_pod_has_a_sidecar_that_reads_rays_logs_with_the_pods_own_keys() -> None:
    world = running(KEPT, env=[{"name": "AWS_REGION", "value": "eu"}])
    assert len(sidecars(world)) == 3
    for sidecar in sidecars(world):
        assert sidecar["restartPolicy"] == "Always"
        assert {"name": "AWS_REGION", "value": "eu"} in sidecar["env"]
        assert sidecar["volumeMounts"] == [
            {"name": "ray-logs", "mountPath": "/tmp/ray", "readOnly": True}
        ]
        assert f"{URI}/logs/$(LASTMILE_POD)" in sidecar["command"]


def test_a_users_own_volume_of_rays_folder_is_the_one_that_is_read() -> None:
    own = {"name": "mine", "mountPath": "/tmp/ray/"}
    template = {
        "spec": {
            "containers": [{"name": "ray", "volumeMounts": [own]}],
            "volumes": [{"name": "mine", "emptyDir": {}}],
        }
    }
    world = running(KEPT, head={"template": template})
    assert sidecars(world)[0]["volumeMounts"] == [{**own, "readOnly": True}]
    assert world.ray_cluster is not None
    pod = world.ray_cluster["spec"]["headGroupSpec"]["template"]["spec"]
    assert [v["name"] for v in pod["volumes"]].count("ray-logs") == 0


def test_a_cluster_of_an_older_operator_is_left_as_it_is_and_kept_all_the_same() -> None:
    world = running(settings(storageRoot="s3://bucket/team/", history={"enabled": False}))
    before = world.ray_cluster
    world.settings = KEPT
    world.settle()
    assert world.ray_cluster == before
    assert world.status["attempt"] == 1
    world.end_job("SUCCEEDED")
    world.settle()
    assert history(world)["state"] == "Kept"
    assert world.ray_cluster is None


@pytest.mark.parametrize(
    ("uri", "is_kept"),
    [
        ("s3://bucket/x/", True),
        ("experiments/clicks/", False),
        ("/data/x/", True),
        ("file:///data/x/", True),
        ("/database/x/", False),  # not below /data
        ("/tmp/x/", False),
    ],
)
def test_what_is_written_below_a_volume_outlives_a_pod(uri: str, is_kept: bool) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    assert is_store(uri, {"volumeMounts": mounts}) is is_kept


def test_of_many_events_the_newest_fit_into_an_annotation() -> None:
    events = [{"message": "x" * 1000, "number": number} for number in range(1000)]
    text = fit_payload({"version": 1, "status": {"phase": "Failed"}, "events": events})
    assert len(text) <= MAX_PAYLOAD_BYTES
    found = json.loads(text)
    assert found["events"][-1]["number"] == 999
    assert found["eventsCut"] == 1000 - len(found["events"]) > 0
    assert len(text) > MAX_PAYLOAD_BYTES / 2


def test_a_manifest_that_is_too_large_is_left_out() -> None:
    experiment = {"metadata": {"name": "clicks"}, "spec": "x" * 200_000}
    text = fit_payload({"version": 1, "experiment": experiment, "events": [{}]})
    assert json.loads(text)["experiment"] == {"metadata": {"name": "clicks"}, "spec": {}}


def test_a_world_without_a_cluster_has_no_history() -> None:
    world = World(build_document(suspend=True), settings=KEPT)
    world.settle()
    assert history(world) == {}
