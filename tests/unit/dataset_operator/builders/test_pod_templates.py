"""Pod templates of tenants cannot remove fields that the operator locks."""

from __future__ import annotations

from typing import Any

import pytest
from world import SETTINGS, World, build_document, running

from dataset_operator.builders.children import build_accepted
from dataset_operator.settings import parse_settings

KEPT = parse_settings({"runtimeImage": "runtime:1", "storageRoot": "s3://bucket/team/"})
ALLOWS = parse_settings(
    {"runtimeImage": "runtime:1", "serviceAccounts": {"team": ["trainer", "default"]}}
)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an account that is not allowed": ({"serviceAccountName": "admin"}, "serviceAccountName"),
    "an empty account": ({"serviceAccountName": ""}, "serviceAccountName"),
    "an account that is taken away": ({"serviceAccountName": None}, "serviceAccountName"),
    "an account that is not text": ({"serviceAccountName": ["x"]}, "serviceAccountName"),
    "the deprecated alias": ({"serviceAccount": "trainer"}, "serviceAccount"),
    "the alias in place of the name": (
        {"serviceAccountName": None, "serviceAccount": "admin"},
        "serviceAccount",
    ),
    "a replaced pod": ({"$patch": "replace"}, "$patch"),
    "a deleted container": ({"containers": [{"name": "ray", "$patch": "delete"}]}, "$patch"),
    "retained keys": ({"$retainKeys": ["containers"]}, "$retainKeys"),
    "an order of containers": (
        {"$setElementOrder/containers": [{"name": "x"}, {"name": "ray"}]},
        "$setElementOrder/containers",
    ),
    "a deep directive": (
        {"containers": [{"name": "ray", "resources": {"limits": {"$patch": "replace"}}}]},
        "$patch",
    ),
    "containers that are not a list": ({"containers": {"name": "ray"}}, "containers"),
    "removed containers": ({"containers": None}, "containers"),
    "an init container that is not a mapping": ({"initContainers": ["x"]}, "initContainers[0]"),
}


@pytest.mark.parametrize("role", ["head", "trainers", "dataWorkers"])
@pytest.mark.parametrize(("pod", "field"), REFUSED.values(), ids=REFUSED)
def test_templates_that_undo_locked_fields_are_refused(
    pod: dict[str, Any], field: str, role: str
) -> None:
    world = World(build_document(**{role: {"template": {"spec": pod}}}))
    world.settle()
    found = world.status["conditions"][0]
    assert (found["status"], found["reason"]) == ("False", "InvalidSpec")
    assert f"spec.{role}.template.spec." in found["message"]
    assert field in found["message"]
    assert world.ray_cluster is None


@pytest.mark.parametrize("template", [{"spec": None}, {"spec": []}, {"metadata": None}], ids=str)
def test_template_parts_must_be_mappings(template: dict[str, Any]) -> None:
    world = World(build_document(head={"template": template}))
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.ray_cluster is None


@pytest.mark.parametrize(
    ("name", "used"),
    [("trainer", "trainer"), ("", "default"), (None, "default")],
)
def test_pods_run_as_an_allowed_account(name: str | None, used: str) -> None:
    world = running(ALLOWS, head={"template": {"spec": {"serviceAccountName": name}}})
    assert world.ray_cluster is not None
    spec = world.ray_cluster["spec"]["headGroupSpec"]["template"]["spec"]
    assert spec["serviceAccountName"] == used


def accepted_before(settings: Any = SETTINGS, **spec: Any) -> World:
    """Build a run whose spec breaks a rule, accepted by an operator without that rule."""
    world = running(settings)
    document = build_document(**spec)
    accepted = build_accepted(world.owner, 1, {**document, "metadata": {"name": "clicks"}})
    world.children[world.owner.accepted] = world.seal.stamp(accepted)
    world.document["spec"] = document["spec"]
    world.replace_cluster_as_older()
    world.settle()
    return world


OLDER: dict[str, dict[str, Any]] = {
    "an empty account": {"serviceAccountName": ""},
    "a replaced pod": {"$patch": "replace", "containers": [{"name": "ray", "image": "mine"}]},
    "no security context": {"securityContext": None},
    "the alias": {"serviceAccount": "trainer"},
    "a probe of another host": {
        "containers": [{"name": "x", "livenessProbe": {"httpGet": {"host": "h", "port": 1}}}]
    },
}


@pytest.mark.parametrize("pod", OLDER.values(), ids=OLDER)
def test_a_newer_rule_leaves_an_accepted_run_alone(pod: dict[str, Any]) -> None:
    world = accepted_before(KEPT, head={"template": {"spec": pod}})
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert world.condition("Training") == ("True", "Running")
    assert world.ray_cluster is not None
    spec = world.ray_cluster["spec"]["headGroupSpec"]["template"]["spec"]
    assert (spec["automountServiceAccountToken"], "serviceAccount" in spec) == (False, False)
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.condition("Complete") == ("True", "Succeeded")
    assert world.ray_cluster is None


# A template may remove the security context: this violates `restricted`, but not `baseline`.
NEWLY_REFUSED = {name: pod for name, pod in OLDER.items() if name != "no security context"}


@pytest.mark.parametrize("pod", NEWLY_REFUSED.values(), ids=NEWLY_REFUSED)
def test_a_newer_rule_refuses_the_next_edit_of_a_template(pod: dict[str, Any]) -> None:
    world = accepted_before(head={"template": {"spec": pod}})
    world.edit(activeDeadlineSeconds=9999)
    world.settle()
    assert world.condition("Accepted") == ("True", "ValidSpec")
    world.edit(trainers={"replicas": 1, "template": {"spec": pod}})
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    world.edit(trainers={"replicas": 1})
    world.settle()
    assert world.condition("Accepted") == ("True", "ValidSpec")
    world.edit(head={"template": {"spec": pod, "metadata": {"labels": {"a": "b"}}}})
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition("Training") == ("True", "Running")


def test_an_invalid_accepted_document_counts_as_absent() -> None:
    world = running()
    for name, child in world.children.items():
        if child["kind"] == "ConfigMap":
            world.children[name] = {**child, "data": {"run": "1", "experiment.json": '{"spec":1}'}}
    world.edit(trainers={"replicas": -1})
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")


def test_a_run_keeps_an_account_that_is_no_longer_allowed() -> None:
    world = running(ALLOWS, head={"template": {"spec": {"serviceAccountName": "trainer"}}})
    world.settings = SETTINGS
    world.edit(suspend=True)
    world.settle()
    assert world.condition("Suspended") == ("True", "SuspendedBySpec")
    world.edit(suspend=False, dataWorkers={"template": {"spec": {"serviceAccountName": "trainer"}}})
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")


def test_the_end_of_a_run_keeps_the_locked_fields() -> None:
    world = accepted_before(KEPT, head={"template": {"spec": OLDER["no security context"]}})
    world.end_job("SUCCEEDED")
    world.settle()
    [pod] = world.history_pods
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["serviceAccountName"] == world.owner.service_account
