"""The chart on a real API server: install, upgrade, roll back and remove, under experiments."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from chart_stage import (
    ADDED,
    CRD,
    HOOK,
    OPERATOR,
    Release,
    copy_older_chart,
    finalizers,
    other_namespace,
    play_hook,
    served_fields,
    uninstalling,
)
from cluster_commands import wait_until
from commands import User, manifest
from helm_chart import CHART, Document, Helm
from operator_process import operating
from reconcile_stage import NAME, Stage, stage_of

from dataset_operator.api import FINALIZER
from dataset_operator.settings import parse_settings
from tools.cluster.box import Box

SMALL = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"memory": "100Mi"}}
SETTINGS = {
    "storageRoot": "s3://bucket/team/",
    "resources": {"head": SMALL, "trainers": SMALL, "dataWorkers": SMALL},
}
# Of a Secret, in which helm keeps a release (Kubernetes docs, Secret).
MAX_SECRET_BYTES = 1_048_576

pytestmark = pytest.mark.usefixtures("played")


@pytest.fixture
def release(box: Box, namespace: str, helm: str, tmp_path: Path) -> Iterator[Release]:
    """A release that is not installed yet; what is left of it goes with the test."""
    home = tmp_path / "helm"
    found = Release(
        box=box,
        helm=Helm(program=helm, home=home, kubeconfig=box.kubeconfig),
        namespace=namespace,
    )
    yield found
    found.command("uninstall", "--no-hooks", "--ignore-not-found")


def uids(box: Box, namespace: str) -> dict[str, str]:
    """Name → UID of what an experiment's run consists of."""
    kinds = "rayclusters,pods,secrets,networkpolicies,poddisruptionbudgets"
    listed = json.loads(box.kubectl("get", kinds, "-n", namespace, "-o", "json"))
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["uid"]
        for item in listed["items"]
    }


def test_the_api_server_takes_everything_that_is_rendered(box: Box, release: Release) -> None:
    for example in ("air-gapped", "monitored"):
        values = yaml.safe_load((CHART / "examples" / f"{example}.yaml").read_text())
        documents = release.helm.template(values=values, namespace=release.namespace)
        # Those of the Prometheus operator: test_monitors.py.
        known = [d for d in documents if not d["apiVersion"].startswith("monitoring.coreos.com/")]
        listed = {"apiVersion": "v1", "kind": "List", "items": known}
        strict = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
        said = box.kubectl("apply", *strict, "-f", "-", stdin=json.dumps(listed)).splitlines()
        assert len(said) == len(known)
    # By this the chart tells a cluster from `helm template`.
    assert "apiregistration.k8s.io/v1" in box.kubectl("api-versions").split()


def test_upgrade_and_rollback_restart_nothing(box: Box, release: Release, tmp_path: Path) -> None:
    level = "pod-security.kubernetes.io/enforce=restricted"
    box.kubectl("label", "namespace", release.namespace, level)
    release.run("install", copy_older_chart(tmp_path), "--wait", settings=SETTINGS)
    assert release.get("deployment", OPERATOR)["status"]["readyReplicas"] == 2
    assert ADDED not in served_fields(box)

    async def story(namespace: str) -> None:
        async with stage_of(box, namespace, user=release.user()) as stage:
            await operate(stage)
            await stage.train()
            before = uids(box, namespace)
            assert any(name.startswith("RayCluster/") for name in before)

            newer = {**SETTINGS, "terminationGraceSeconds": 90, "runtimeImage": "newer:1"}
            release.run("upgrade", CHART, "--wait", settings=newer)
            assert ADDED in served_fields(box)
            await goes_on(stage, before)

            release.command("rollback", "1", "--wait")
            assert ADDED not in served_fields(box)
            await goes_on(stage, before)
            release.run("upgrade", CHART, "--wait", settings=SETTINGS)
            await goes_on(stage, before)

    async def operate(stage: Stage) -> None:
        """As an operator that was started by this release would."""
        settings = parse_settings(release.settings)
        stage.reconciler = replace(stage.reconciler, settings=settings)

    async def goes_on(stage: Stage, before: dict[str, str]) -> None:
        await operate(stage)
        for _ in range(3):
            await stage.step()
        status = await stage.status()
        assert (status["phase"], status["run"], status["attempt"]) == ("Training", 1, 1)
        assert uids(box, stage.namespace) == before

    with other_namespace(box, f"{release.namespace}-team") as namespace:
        asyncio.run(story(namespace))
    stored = json.loads(
        box.kubectl("get", "secret", "-n", release.namespace, "-l", "owner=helm", "-o", "json")
    )
    assert len(stored["items"]) == 4
    assert all(len(s["data"]["release"]) < MAX_SECRET_BYTES / 2 for s in stored["items"])


@pytest.mark.slow
def test_what_is_left_after_uninstall_trains_on_and_can_be_deleted(
    box: Box, release: Release, tmp_path: Path
) -> None:
    # Nobody plays the pods of this release but the test: no node has such a label.
    release.run("install", CHART, nodeSelector={"no": "node"}, settings=SETTINGS)

    async def train(namespace: str) -> None:
        async with stage_of(box, namespace, user=release.user()) as stage:
            await stage.train()

    with other_namespace(box, f"{release.namespace}-team") as namespace:
        asyncio.run(train(namespace))
        before = uids(box, namespace)
        assert finalizers(box, namespace) == [FINALIZER]
        assert release.may(OPERATOR, "patch", "datasetexperiments", "-n", namespace)

        with uninstalling(release) as process:
            assert f"{namespace}/{NAME}: released" in play_hook(release, process, tmp_path)
            said, _ = process.communicate()
            assert process.returncode == 0, said

        assert served_fields(box)
        assert finalizers(box, namespace) == []
        assert uids(box, namespace) == before
        left = box.kubectl("get", "all,sa,role,rolebinding", "-n", release.namespace, "-o", "name")
        assert "lastmile" not in left
        cluster_wide = box.kubectl("get", "clusterrole,clusterrolebinding", "-o", "name").split()
        assert not [n for n in cluster_wide if n.endswith((f"/{OPERATOR}", f"/{HOOK}"))]
        # The same release finds its CRD again, without being told to take anything over.
        release.helm("install", "lastmile", str(CHART), "--namespace", release.namespace)
        box.kubectl("delete", "namespace", namespace, "--timeout=110s")


NAMESPACED: Document = {"crds": {"install": False}, "rbac": {"aggregateRoles": False}}


@pytest.mark.parametrize(
    "is_named",
    [
        pytest.param(True, id="namespaces named"),
        pytest.param(False, id="all namespaces", marks=pytest.mark.slow),
    ],
)
def test_the_operator_works_with_its_service_accounts_rights_alone(
    box: Box, release: Release, tmp_path: Path, is_named: bool
) -> None:
    with other_namespace(box, f"{release.namespace}-team") as namespace:
        named = NAMESPACED | {"watchNamespaces": [namespace]} if is_named else {}
        release.run("install", CHART, settings=SETTINGS, **named)
        assert release.may(OPERATOR, "list", "datasetexperiments", "-A") is not is_named
        for resource in ("namespaces", "nodes", "secrets"):
            assert not release.may(OPERATOR, "list", resource, "-A")

        own = release.kubeconfig(tmp_path)
        account = User(box=box, namespace=namespace, kubeconfig=own)
        person = User(box=box, namespace=namespace)
        with operating(
            account, tmp_path, settings=release.settings, arguments=release.arguments[1:]
        ) as operator:
            person.reads("submit", "-f", "-", stdin=manifest())
            operator.until(lambda: "Starting" in person.reads("get"))
            operator.until(lambda: operator.answer("/readyz") == "ok\n")
            person.reads("stop", "clicks")
            operator.until(lambda: "Suspended" in person.reads("get"))
            person.kubectl("delete", "dsexp", "clicks", "--timeout=60s")
            assert operator.stop() == 0
            log = operator.log.read_text()
        refused = [line for line in log.splitlines() if "orbidden" in line or "ermission" in line]
        # Ray is reached through the API server here, as no pod reaches it.
        assert [line for line in refused if "services/proxy" not in line] == []


@pytest.mark.slow
def test_the_election_may_be_turned_off_and_on_again(release: Release) -> None:
    def deployed() -> tuple[str, int]:
        spec = release.get("deployment", OPERATOR)["spec"]
        return spec["strategy"]["type"], spec["replicas"]

    release.run("install", CHART, replicaCount=2)
    alone = {"replicaCount": 1, "settings": {"leaderElection": False}}
    release.run("upgrade", CHART, "--skip-schema-validation", **alone)
    assert deployed() == ("Recreate", 1)
    release.run("upgrade", CHART, replicaCount=2)
    assert deployed() == ("RollingUpdate", 2)


@pytest.mark.slow
def test_a_second_release_is_refused_the_cluster_wide_objects_of_the_first(
    box: Box, release: Release, helm: str, tmp_path: Path
) -> None:
    release.run("install", CHART, settings=SETTINGS)
    with other_namespace(box, f"{release.namespace}-b") as namespace:
        second = replace(release, namespace=namespace)
        with pytest.raises(AssertionError, match="invalid ownership metadata"):
            second.helm("install", "lastmile", str(CHART), "--namespace", namespace)
        named = NAMESPACED | {"watchNamespaces": [namespace]}
        second.run("install", CHART, settings=SETTINGS, **named)
        second.command("uninstall", "--no-hooks")
    crd = release.get("crd", CRD)
    assert crd["metadata"]["annotations"]["meta.helm.sh/release-namespace"] == release.namespace


@pytest.mark.slow
def test_an_uninstall_with_a_namespace_gone_is_ended_as_the_docs_say(
    box: Box, release: Release, tmp_path: Path
) -> None:
    with (
        other_namespace(box, f"{release.namespace}-team") as namespace,
        other_namespace(box, f"{release.namespace}-gone") as gone,
    ):
        named = NAMESPACED | {"watchNamespaces": [gone, namespace]}
        release.run("install", CHART, nodeSelector={"no": "node"}, settings=SETTINGS, **named)
        person = User(box=box, namespace=namespace)
        person.reads("submit", "-f", "-", stdin=manifest())
        hold = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
        person.kubectl("patch", "dsexp", "clicks", "--type=merge", "-p", hold)
        box.kubectl("delete", "namespace", gone, "--timeout=110s")

        with pytest.raises(AssertionError, match=f'namespaces "{gone}" not found'):
            release.command("uninstall")
        assert finalizers(box, namespace) == [FINALIZER]

        person.reads("operator", "release-finalizers", f"--namespace={namespace}")
        assert finalizers(box, namespace) == []
        kinds = "serviceaccount,role,rolebinding,deployment,configmap,secret,job"
        left = [
            name
            for place in (namespace, release.namespace)
            for name in box.kubectl("get", kinds, "-n", place, "-o", "name").split()
        ]
        assert [name for name in left if "lastmile" in name] == [f"serviceaccount/{HOOK}"]


def test_who_may_edit_a_namespace_may_edit_its_experiments(box: Box, release: Release) -> None:
    release.run("install", CHART, settings=SETTINGS)
    here = ("-n", release.namespace)
    for role in ("view", "edit"):
        box.kubectl("create", "serviceaccount", role, *here)
        account = f"--serviceaccount={release.namespace}:{role}"
        box.kubectl("create", "rolebinding", role, f"--clusterrole={role}", account, *here)
    wait_until(lambda: release.may("view", "get", "datasetexperiments", *here))
    wait_until(lambda: release.may("edit", "create", "datasetexperiments", *here))
    assert not release.may("view", "create", "datasetexperiments", *here)
    assert not release.may("edit", "update", "datasetexperiments", "--subresource=status", *here)
    assert not release.may("edit", "get", "datasetexperiments", "-n", "default")
