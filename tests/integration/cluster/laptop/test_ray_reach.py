"""A head as it is reached from outside: through the proxy of a real API server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from proxied import give_address, own_address, target_ports
from reconcile_stage import NAME, SETTINGS, stage_of

from dataset_operator.errors import RayUnreachable
from dataset_operator.names import Owner
from dataset_operator.plan.outcome import Submit
from dataset_operator.plan.ray_cluster import SILENCE_SECONDS
from dataset_operator.ray.endpoints import build_connect
from dataset_operator.ray.jobs import RayJobs
from dataset_operator.testing import LIES, StandInRay
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")

TOKEN = "rays-own-token"
DEADLINE_SECONDS = 60.0  # until the API server has seen a new endpoint
# What the credentials of a developer's operator need.
RULES = [{"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get", "create", "update"]}]
Story = Callable[[RayJobs, StandInRay], Awaitable[None]]


def owner_in(namespace: str) -> Owner:
    return Owner(name=NAME, namespace=namespace, uid="0f3c6c1e-0000")


def expose(box: Box, namespace: str, ray: StandInRay) -> None:
    """Make the head's Service as KubeRay does, and a pod whose address is the stand-in's."""
    name = owner_in(namespace).head_service
    ports = [{"name": f"port-{each['port']}", **each} for each in target_ports(ray)]
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "head"}}
    pod = {"containers": [{"name": "ray", "image": "none"}]}
    documents = [
        build("v1", "Service", name, spec=service | {"ports": ports}),
        build("v1", "Pod", "head", labels={"app": "head"}, spec=pod),
    ]
    box.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(build_list(documents)))
    box.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "pod/head", "-n", namespace)
    give_address(box, namespace, "pod/head", ray)


def build(version: str, kind: str, name: str, labels: Any = None, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def build_list(documents: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": documents}


async def by_certificate(box: Box, namespace: str) -> Configuration:
    """The kubeconfig's administrator."""
    configuration = Configuration()
    await config.load_kube_config(str(box.kubeconfig), client_configuration=configuration)
    return configuration


async def by_token(box: Box, namespace: str) -> Configuration:
    """A service account that may do this and nothing else."""
    who = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reach"}
    version = "rbac.authorization.k8s.io/v1"
    documents = [
        build(version, "Role", "reach", rules=RULES),
        build(version, "RoleBinding", "reach", subjects=[who], roleRef=role),
    ]
    box.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(build_list(documents)))
    admin = await by_certificate(box, namespace)
    configuration = Configuration(host=admin.host, ssl_ca_cert=admin.ssl_ca_cert)
    token = box.kubectl("create", "token", "default", "-n", namespace).strip()
    configuration.api_key = {"BearerToken": f"Bearer {token}"}
    return configuration


@asynccontextmanager
async def reaching(
    box: Box, namespace: str, ray: StandInRay, credentials: Callable[..., Any] = by_certificate
) -> AsyncIterator[RayJobs]:
    async with (
        ApiClient(await credentials(box, namespace)) as client,
        aiohttp.ClientSession() as session,
    ):
        connect = build_connect(client, session, SETTINGS, in_cluster=False)
        yield connect(owner_in(namespace), TOKEN)


async def answers(jobs: RayJobs) -> None:
    """Wait until the API server knows the endpoint."""
    await fails(jobs, "")


async def fails(jobs: RayJobs, says: str) -> None:
    """Wait until asking fails so; "": until it does not fail."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_SECONDS
    while not _is_so(failure := await failure_of(jobs), says):
        assert asyncio.get_running_loop().time() < deadline, failure
        await asyncio.sleep(0.2)


def _is_so(failure: str, says: str) -> bool:
    return says in failure if says else not failure


@pytest.mark.parametrize(
    "credentials", [by_certificate, pytest.param(by_token, marks=pytest.mark.slow)]
)
def test_a_job_is_submitted_followed_and_stopped_through_the_proxy(
    box: Box, namespace: str, credentials: Callable[..., Any]
) -> None:
    async def story() -> None:
        async with (
            StandInRay(token=TOKEN, host=own_address()) as ray,
            reaching(box, namespace, ray, credentials) as jobs,
        ):
            expose(box, namespace, ray)
            await answers(jobs)
            assert await jobs.get("clicks-1") is None
            experiment = {"metadata": {"name": "clicks"}, "spec": {"padding": "x" * 1_000_000}}
            submit = Submit(
                submission_id="clicks-1", experiment=experiment, run_id="0f3c6c1e-1", resume=False
            )
            await jobs.submit(submit)
            await jobs.submit(submit)
            assert ray.experiment_of("clicks-1") == experiment
            job = await jobs.get("clicks-1")
            assert job is not None
            assert job.is_active
            ray.metrics = 'lastmile_progress_ratio 0.5\nlastmile_training_metric{name="loss"} 2\n'
            progress = await jobs.progress()
            assert progress is not None
            assert (progress.ratio, progress.metrics) == (0.5, {"loss": 2.0})
            await jobs.stop("clicks-1")
            assert ray.jobs["clicks-1"]["status"] == "STOPPED"

    asyncio.run(story())


@pytest.mark.slow
def test_what_is_not_the_heads_own_answer_is_none(box: Box, namespace: str) -> None:
    async def story() -> None:
        async with (
            StandInRay(token="another", host=own_address()) as ray,
            reaching(box, namespace, ray) as jobs,
        ):
            with pytest.raises(RayUnreachable, match="not found"):  # a 404, but the API server's
                await jobs.get("clicks-1")
            name = owner_in(namespace).head_service
            port = ("--tcp=8265:8265", "-n", namespace)
            box.kubectl("create", "service", "clusterip", name, *port)
            await fails(jobs, "no endpoints available")
            with pytest.raises(RayUnreachable, match="no service port 9464"):
                await jobs.progress()
            box.kubectl("delete", "service", name, "-n", namespace)

            expose(box, namespace, ray)
            await fails(jobs, "HTTP 401")
            ray.token = TOKEN
            await answers(jobs)
            for ray.lie in LIES:
                assert await failure_of(jobs), ray.lie

    asyncio.run(story())


async def failure_of(jobs: RayJobs) -> str:
    """Return the error with which a request for a job fails."""
    try:
        await jobs.get("clicks-1")
    except RayUnreachable as error:
        return str(error)
    return ""


def test_one_without_the_right_to_proxy_is_told_by_the_api_server(box: Box, namespace: str) -> None:
    async def story() -> None:
        async with StandInRay(token=TOKEN, host=own_address()) as ray:
            expose(box, namespace, ray)
            async with reaching(box, namespace, ray, by_token) as jobs:
                await answers(jobs)
                box.kubectl("delete", "rolebinding", "reach", "-n", namespace)
                await fails(jobs, "cannot get resource")

    asyncio.run(story())


@pytest.mark.slow
def test_a_head_that_is_up_and_does_not_answer_is_said(box: Box, namespace: str) -> None:
    async def story() -> None:
        async with stage_of(box, namespace) as stage:
            await stage.train()
            stage.ray.token = "another"
            await stage.step()
            assert (await stage.status())["unreachableTime"]
            later = timedelta(seconds=SILENCE_SECONDS)
            stage.reconciler = replace(stage.reconciler, now=lambda: datetime.now(UTC) + later)
            said = await stage.until("ClusterReady", "False", "RayUnreachable")
            assert "HTTP 401" in said["message"]

    asyncio.run(story())


def test_progress_comes_into_the_status_and_the_table(box: Box, namespace: str) -> None:
    async def story() -> None:
        async with stage_of(box, namespace) as stage:
            await stage.train()
            stage.ray.metrics = (
                "lastmile_progress_ratio 0.42\n"
                "lastmile_production_wait_ratio 0.07\n"
                'lastmile_training_metric{name="loss"} 0.693147\n'
            )
            await stage.step()
            trainer = (await stage.status())["trainer"]
            assert trainer.pop("lastUpdateTime")
            assert trainer == {
                "progressPercent": 42,
                "productionWaitPercent": 7,
                "metrics": [{"name": "loss", "value": "0.693147"}],
            }
            assert " 42 " in box.kubectl("get", "dsexp", NAME, "-n", namespace)
            stage.ray.end(stage.only_job()["submission_id"], "SUCCEEDED")
            await stage.until("Complete", "True", "Succeeded")
            assert (await stage.status())["trainer"]["progressPercent"] == 100

    asyncio.run(story())
