"""Every right in the chart is needed: if one is missing, the operator reports which.

A right that is never used fails here. If you add a right, extend `live` so that it is used.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from commands import LASTMILE
from helm_chart import Document, Helm, hooks, select
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from operator_stage import impatient
from reconcile_stage import (
    DEADLINE_SECONDS,
    POLL_SECONDS,
    SETTINGS,
    Stage,
    all_closed,
    stage_of,
)

import dataset_operator.serve
from dataset_operator.election.candidate import Candidate
from dataset_operator.election.elector import Elector, Terms
from dataset_operator.errors import KubeRefused
from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.login import Login
from dataset_operator.kube.seal_key import fetch_seal
from dataset_operator.serve import serving
from dataset_operator.settings import HistorySettings
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")

OPERATOR = "lastmile-operator"
RBAC = "rbac.authorization.k8s.io"
WATCHES = ("list", "watch")
# Refusals that do not name the verb and the resource.
OTHER_WORDS = {
    "update datasetexperiments/finalizers": "cannot set blockOwnerDeletion",
}


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource."""

    group: str
    resource: str
    verb: str
    names: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The text in the refusal when the right is missing."""
        said = f'cannot {self.verb} resource "{self.resource}"'
        return OTHER_WORDS.get(f"{self.verb} {self.resource}", said)

    @property
    def account(self) -> str:
        """The service account without this right; short enough to name an experiment too."""
        return f"no-{self.verb}-{self.resource.replace('/', '-')}"

    def to_rule(self) -> Document:
        rule = {"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb]}
        return rule | ({"resourceNames": list(self.names)} if self.names else {})


# Needed when a cluster is deleted; their refusals are not reported in a condition.
OF_HISTORY = {Right("", "pods", "create"), Right("", "pods", "delete"), Right("", "events", "list")}
KEPT = SETTINGS.model_copy(
    update={"storage_root": "s3://bucket/", "history": HistorySettings(timeout_seconds=10)}
)


def rights_of(roles: Iterable[Document]) -> set[Right]:
    return {
        Right(group, resource, verb, tuple(rule.get("resourceNames", ())))
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture
def chart(helm: str, tmp_path: Path) -> Helm:
    return Helm(program=helm, home=tmp_path / "helm")


def named(chart: Helm, namespace: str) -> list[Document]:
    """Render the chart for one watched namespace, in which the operator runs too."""
    return chart.template(values={"watchNamespaces": [namespace]}, namespace=namespace)


def take_each(box: Box, namespace: str, rights: set[Right], taken: Iterable[Right]) -> None:
    """Create a service account for each right in `taken`, which has all rights except that one."""
    items: list[Document] = []
    for right in taken:
        metadata = {"name": right.account, "namespace": namespace}
        rules = [other.to_rule() for other in sorted(rights - {right})]
        subject = {"kind": "ServiceAccount", **metadata}
        role = {"apiGroup": RBAC, "kind": "Role", "name": right.account}
        version = {"apiVersion": f"{RBAC}/v1", "metadata": metadata}
        items += [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
            {**version, "kind": "Role", "rules": rules},
            {**version, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]},
        ]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    box.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(listed))


def user_of(namespace: str, right: Right) -> str:
    return f"system:serviceaccount:{namespace}:{right.account}"


def kubeconfig_of(box: Box, namespace: str, right: Right, folder: Path) -> Path:
    """Write a kubeconfig with only the token of a service account."""
    token = box.kubectl("create", "token", right.account, "-n", namespace).strip()
    document = yaml.safe_load(box.kubeconfig.read_text())
    for user in document["users"]:
        user["user"] = {"token": token}
    path = folder / f"{right.account}.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


class SaidError(Exception):
    """The operator reports a refusal in a condition."""


class Told(Stage):
    """A stage whose passes raise SaidError when a condition reports a refusal."""

    async def step(self) -> float | None:
        again = await super().step()
        for condition in (await self.status()).get("conditions", ()):
            if "forbidden" in condition["message"]:
                raise SaidError(condition["message"])
        return again


async def live(stage: Stage) -> None:
    """Take an experiment through every situation in which the operator needs a right."""
    workers = {"minReplicas": 1, "maxReplicas": 3}
    await stage.train(dataWorkers=workers)
    stage.apply(dataWorkers=workers | {"minReplicas": 2})
    await stage.until("ClusterReady", "True", "PodsReady")
    stage.apply(dataWorkers=workers, suspend=True)
    await stage.until("Suspended", "True", "SuspendedBySpec")
    cluster = (await stage.owner()).ray_cluster
    await stage.until_gone("RayCluster", cluster)
    stage.apply(dataWorkers=workers, ttlSecondsAfterFinished=0)
    await stage.until("Training", "True", "Running")
    for name in stage.ray.jobs:
        stage.ray.end(name, "SUCCEEDED")
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await stage.experiment() is not None:
            await stage.step()
            await asyncio.sleep(POLL_SECONDS)


async def tell_of_life(box: Box, namespace: str, account: str) -> str:
    """Return the refusal that such an operator reports, or "" if there was none."""
    user = f"system:serviceaccount:{namespace}:{account}"
    async with stage_of(box, namespace, user=user, name=account) as stage:
        told = Told(
            box=box,
            namespace=namespace,
            reconciler=stage.reconciler,
            ray=stage.ray,
            name=account,
        )
        try:
            await live(told)
        except (KubeRefused, SaidError) as error:
            return str(error)
    return ""


def test_each_missing_right_is_reported(box: Box, namespace: str, chart: Helm) -> None:
    rights = rights_of(select(named(chart, namespace), "Role", OPERATOR))
    # A right that is not in the chart, so that its account has all rights of the chart.
    everything = Right("", "nothing", "get")
    taken = [right for right in sorted(rights - OF_HISTORY) if right.verb not in WATCHES]
    assert len(taken) >= 18
    take_each(box, namespace, rights, [everything, *taken])

    async def lives() -> list[str]:
        accounts = [right.account for right in (everything, *taken)]
        return await asyncio.gather(*(tell_of_life(box, namespace, name) for name in accounts))

    whole, *said = asyncio.run(lives())
    assert whole == ""
    missed = {right.words: said for right, said in zip(taken, said, strict=True)}
    assert {words for words, said in missed.items() if words not in said} == set()


async def tell_of_history(box: Box, namespace: str, account: str) -> str:
    """Return the report of such an operator while it stores the history of a complete run."""
    user = f"system:serviceaccount:{namespace}:{account}"
    async with stage_of(box, namespace, user=user, name=account, settings=KEPT) as stage:
        await stage.train()
        stage.ray.end(next(iter(stage.ray.jobs)), "SUCCEEDED")
        cluster = (await stage.owner()).ray_cluster
        try:
            await stage.until_gone("RayCluster", cluster)
            while "podName" in (status := await stage.status())["history"]:
                await stage.step()
        except KubeRefused as error:
            return str(error)
        return str(status["history"].get("message", ""))


@pytest.mark.slow
def test_each_missing_right_to_history_is_reported_and_the_cluster_is_deleted(
    box: Box, namespace: str, chart: Helm, caplog: pytest.LogCaptureFixture
) -> None:
    rights = rights_of(select(named(chart, namespace), "Role", OPERATOR))
    assert rights >= OF_HISTORY
    take_each(box, namespace, rights, OF_HISTORY)
    for right in sorted(OF_HISTORY):
        said = asyncio.run(tell_of_history(box, namespace, right.account))
        assert right.words in said + caplog.text
        caplog.clear()


@pytest.mark.slow
def test_each_missing_right_to_watch_is_logged(
    box: Box,
    namespace: str,
    chart: Helm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(dataset_operator.serve, "build_kopf_settings", impatient)
    rights = rights_of(select(named(chart, namespace), "Role", OPERATOR))
    taken = [right for right in sorted(rights - OF_HISTORY) if right.verb in WATCHES]
    assert len(taken) >= 12
    take_each(box, namespace, rights, taken)

    def is_told(right: Right) -> bool:
        # Only the operator's own messages; Kopf's come earlier.
        records = [r for r in caplog.records if r.name == dataset_operator.serve.__name__]
        said = [record.getMessage() for record in records]
        user = f'User "{user_of(namespace, right)}"'
        return any(f"{user} {right.words}" in message for message in said)

    async def watch() -> None:
        async with stage_of(box, namespace) as stage:
            reconciler = stage.reconciler  # without an experiment it does nothing
        for right in taken:
            login = Login(kubeconfig=str(kubeconfig_of(box, namespace, right, tmp_path)))
            async with (
                asyncio.timeout(DEADLINE_SECONDS),
                all_closed(),  # otherwise open sockets add up with every try
                serving(reconciler, [namespace], log_in=login.connection),
            ):
                while not is_told(right):
                    await asyncio.sleep(POLL_SECONDS)

    asyncio.run(watch())


def test_rights_for_all_namespaces_equal_those_for_one(namespace: str, chart: Helm) -> None:
    here = select(named(chart, namespace), "Role", OPERATOR)
    everywhere = select(chart.template(), "ClusterRole", OPERATOR)
    assert rights_of(everywhere) == rights_of(here)


@pytest.mark.slow
def test_without_any_one_right_to_the_lease_no_operator_leads(
    box: Box, namespace: str, chart: Helm, caplog: pytest.LogCaptureFixture
) -> None:
    rights = rights_of(select(named(chart, namespace), "Role", f"{OPERATOR}-lease"))
    assert len(rights) == 3
    take_each(box, namespace, rights, rights)

    def leave(why: str) -> NoReturn:
        raise TimeoutError(why)

    async def stand(right: Right) -> str:
        configuration = Configuration()
        await config.load_kube_config(str(box.kubeconfig), client_configuration=configuration)

        @asynccontextmanager
        async def connect() -> AsyncIterator[KubeClient]:
            async with ApiClient(configuration) as client:
                client.set_default_header("Impersonate-User", user_of(namespace, right))
                yield KubeClient(client)

        terms = Terms(
            name=OPERATOR,
            namespace=namespace,
            duration_seconds=4,
            deadline_seconds=3,
            retry_seconds=1,
        )
        elector = Elector(identity=right.account, terms=terms)
        stop = asyncio.Event()
        candidate = Candidate(connect=connect, elector=elector, leave=leave)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS), candidate.leading(stop):
                await stop.wait()
        except KubeRefused as refused:
            return str(refused)
        except TimeoutError as left:  # it led, but could not renew
            return f"{left}\n{caplog.text}"
        return ""

    for right in sorted(rights):  # `create` is the first: the lease does not exist yet
        assert right.words in asyncio.run(stand(right))


@pytest.mark.slow
def test_without_any_one_right_to_its_key_no_operator_acts(
    box: Box, namespace: str, chart: Helm
) -> None:
    rights = rights_of(select(named(chart, namespace), "Role", f"{OPERATOR}-seal"))
    assert len(rights) == 2
    everything = Right("", "nothing", "get")
    take_each(box, namespace, rights, [everything, *rights])

    async def ask(right: Right) -> str:
        configuration = Configuration()
        await config.load_kube_config(str(box.kubeconfig), client_configuration=configuration)
        async with ApiClient(configuration) as client:
            client.set_default_header("Impersonate-User", user_of(namespace, right))
            kube = KubeClient(client)
            try:
                first = await fetch_seal(kube, namespace, f"{OPERATOR}-seal")
                assert await fetch_seal(kube, namespace, f"{OPERATOR}-seal") == first
            except KubeRefused as refused:
                return str(refused)
        return ""

    for right in sorted(rights):  # `create` is the first: the Secret does not exist yet
        assert right.words in asyncio.run(ask(right))
    assert asyncio.run(ask(everything)) == ""


@pytest.mark.slow
def test_the_finalizer_hook_fails_without_any_one_right(
    box: Box, namespace: str, chart: Helm, tmp_path: Path
) -> None:
    documents = hooks(named(chart, namespace))
    rights = rights_of(select(documents, "Role"))
    assert {right.verb for right in rights} == {"list", "patch"}
    take_each(box, namespace, rights, rights)
    [job] = select(documents, "Job")
    [container] = job["spec"]["template"]["spec"]["containers"]
    experiment = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "held", "finalizers": ["experiments.lastmile.dev/driver"]},
        "spec": {"dataset": {"parquet": {"uri": "t/"}}},
    }
    box.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(experiment))
    for right in rights:
        kubeconfig = kubeconfig_of(box, namespace, right, tmp_path)
        command = [LASTMILE, "operator", *container["args"], f"--kubeconfig={kubeconfig}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert right.words in done.stderr
    unheld = json.dumps({"metadata": {"finalizers": []}})
    box.kubectl("patch", "dsexp", "held", "-n", namespace, "--type=merge", "-p", unheld)
