"""The chart's admission policy on a real API server: the operator works, and is bounded."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helm_chart import Helm
from reconcile_stage import NAME, Stage, stage_of

from dataset_operator.api import EXPERIMENT_LABEL
from dataset_operator.names import Owner
from tools.cluster.box import Box, KubectlError

pytestmark = pytest.mark.usefixtures("played")

POLICY_KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
RBAC_KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
ACTIVE_SECONDS = 60.0  # the API server activates a policy within seconds


@pytest.fixture
def account(box: Box, namespace: str, helm: str, tmp_path: Path) -> Iterator[str]:
    """Return the user of the operator's account, with the chart's rights and its policy."""
    chart = Helm(program=helm, home=tmp_path / "helm")
    # Names of cluster-wide objects must not collide with those of other tests.
    values = {"admissionPolicy": {"enabled": True}, "fullnameOverride": namespace[:30]}
    rendered = chart.template(values=values, namespace=namespace)
    items = [d for d in rendered if d["kind"] in (*POLICY_KINDS, *RBAC_KINDS)]
    for item in items:  # also those of the chart's hook
        item["metadata"].pop("annotations", None)
        if item["kind"] == "ServiceAccount":
            item["metadata"]["namespace"] = namespace
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    box.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    user = f"system:serviceaccount:{namespace}:{namespace[:30]}-operator"
    wait_until_active(box, namespace, user)
    yield user
    box.kubectl("delete", "-f", "-", stdin=text)


def wait_until_active(box: Box, namespace: str, user: str) -> None:
    deadline = time.monotonic() + ACTIVE_SECONDS
    while not refusal(box, user, "create", build_config(namespace)):
        assert time.monotonic() < deadline, "the policy refuses nothing"
        time.sleep(0.2)


def build_config(namespace: str, **metadata: Any) -> dict[str, Any]:
    metadata = {"name": "policy-test", "namespace": namespace, **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}


def refusal(box: Box, user: str, verb: str, document: dict[str, Any]) -> str:
    """Return why the API server refuses a user's write, or ""; it is a dry run."""
    options = ("--as", user, "--dry-run=server", "-f", "-")
    options += ("--server-side", "--force-conflicts") if verb == "apply" else ()
    try:
        box.kubectl(verb, *options, stdin=json.dumps(document))
    except KubectlError as error:
        return str(error)
    return ""


def test_the_operator_works_under_its_policy(box: Box, namespace: str, account: str) -> None:
    async def life(stage: Stage) -> None:
        await stage.train()
        stage.apply(backoffLimit=1)
        await stage.step()
        stage.apply(suspend=True)
        await stage.step()
        stage.ray.end(stage.only_job()["submission_id"], "STOPPED")
        await stage.until("Suspended", "True", "SuspendedBySpec")
        stage.apply(suspend=False)
        await stage.until("Training", "True", "Running")
        box.kubectl("delete", "dsexp", NAME, "-n", namespace, "--wait=false")
        await stage.until_gone("DatasetExperiment", NAME)

    async def story() -> None:
        async with stage_of(box, namespace, user=account) as stage:
            await life(stage)

    asyncio.run(story())


def test_the_policy_bounds_the_operators_account(box: Box, namespace: str, account: str) -> None:
    reference = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "name": "clicks",
        "uid": "0f3c6c1e-1111-2222-3333-444455556666",
        "controller": True,
    }
    labels = Owner(name="clicks", namespace=namespace, uid="u").labels()
    good = {"ownerReferences": [reference], "labels": labels}
    assert refusal(box, account, "create", build_config(namespace, **good)) == ""
    bad: dict[str, dict[str, Any]] = {
        "nobody's": {"labels": labels},
        "another kind's": {**good, "ownerReferences": [reference | {"kind": "Job"}]},
        "another group's": {**good, "ownerReferences": [reference | {"apiVersion": "apps/v1"}]},
        "not controlled": {**good, "ownerReferences": [reference | {"controller": False}]},
        "without labels": {"ownerReferences": [reference]},
        "of another experiment": {**good, "labels": labels | {EXPERIMENT_LABEL: "x"}},
    }
    for what, metadata in bad.items():
        said = refusal(box, account, "create", build_config(namespace, **metadata))
        assert "ValidatingAdmissionPolicy" in said, what
    in_system = build_config("kube-system", **good)
    assert "ValidatingAdmissionPolicy" in refusal(box, account, "create", in_system)

    others = build_config(namespace, name="others")
    box.kubectl("create", "-f", "-", stdin=json.dumps(others))
    taken = build_config(namespace, name="others", **good)
    # The API server refuses an owner reference to an object that the account cannot delete.
    assert refusal(box, account, "apply", taken)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace}}
    pod["spec"] = {"containers": [{"name": "c", "image": "i"}]}
    box.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    with pytest.raises(KubectlError, match="ValidatingAdmissionPolicy"):
        box.kubectl("delete", "pod", "p", "-n", namespace, "--as", account, "--wait=false")
    # The policy bounds no other account.
    box.kubectl(
        "delete", "pod", "p", "-n", namespace, "--wait=false", "--grace-period=0", "--force"
    )
