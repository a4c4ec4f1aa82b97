"""A stage for tests: an experiment in its own namespace, a reconciler, and a stand-in for Ray.

The reconciler has only the rights that the operator's manifest gives it.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from dataset_operator.errors import KubeConflict
from dataset_operator.kube.client import KubeClient, Observe
from dataset_operator.names import Owner
from dataset_operator.ray.endpoints import build_connect, build_reach_pod
from dataset_operator.reconcile import Reconciler
from dataset_operator.sealing import KEY_BYTES, Seal
from dataset_operator.settings import OperatorSettings, parse_settings
from dataset_operator.sources.driver_metrics import RuntimeSource
from dataset_operator.status import find_condition
from dataset_operator.testing import StandInRay
from pipeline_runtime.config import API_VERSION, KIND
from tools.cluster.box import Box, Kubectl

NAME = "clicks"
LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.2
DEADLINE_SECONDS = 120.0  # each step takes seconds on an idle machine
OPERATOR_FILE = Path(__file__).parents[4] / "deploy" / "operator" / "operator.yaml"
OPERATOR = "lastmile-tests-operator"
SMALL = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"memory": "100Mi"}}
SEAL = Seal(b"s" * KEY_BYTES)
SETTINGS = parse_settings(
    {
        "runtimeImage": "example.com/lastmile:none",
        "resources": {"head": SMALL, "trainers": SMALL, "dataWorkers": SMALL},
    }
)


@dataclass(slots=True)
class Stage:
    """An experiment in its own namespace, a reconciler, and a stand-in for Ray."""

    box: Box
    namespace: str
    reconciler: Reconciler
    ray: StandInRay
    name: str = NAME

    def apply(self, **spec: Any) -> None:
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {"dataset": {"parquet": {"uri": "t/"}}, **spec},
        }
        strict = ("--server-side", "--force-conflicts", "--validate=strict", "-f", "-")
        self.box.kubectl("apply", *strict, stdin=json.dumps(document))

    async def experiment(self) -> dict[str, Any] | None:
        return await self.reconciler.kube.get(KIND, self.namespace, self.name)

    async def child(self, kind: str, name: str) -> dict[str, Any]:
        found = await self.reconciler.kube.get(kind, self.namespace, name)
        assert found is not None
        return dict(found)

    async def ray_cluster(self) -> dict[str, Any]:
        return await self.child("RayCluster", (await self.owner()).ray_cluster)

    async def status(self) -> dict[str, Any]:
        document = await self.experiment()
        return (document or {}).get("status", {})

    async def step(self) -> float | None:
        """Run a pass; repeat it after a conflict, as the operator does: KubeRay writes too."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                with contextlib.suppress(KubeConflict):
                    return await self.reconciler.reconcile(self.namespace, self.name)

    async def until(self, kind: str, status: str, reason: str) -> dict[str, Any]:
        """Run passes until a condition has a status and a reason; return the condition."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                await self.step()
                found = find_condition(await self.status(), kind)
                if found and (found["status"], found["reason"]) == (status, reason):
                    return dict(found)
                await asyncio.sleep(POLL_SECONDS)

    async def train(self, **spec: Any) -> None:
        """Apply the experiment, and run passes until it trains."""
        self.apply(**spec)
        await self.until("Training", "True", "Running")

    async def until_gone(self, kind: str, name: str) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await self.reconciler.kube.get(kind, self.namespace, name):
                await self.step()
                await asyncio.sleep(POLL_SECONDS)

    async def owner(self) -> Owner:
        document = await self.experiment()
        assert document is not None
        return Owner.of(document)

    def only_job(self) -> dict[str, Any]:
        [job] = self.ray.jobs.values()
        return job


@cache
def log_in(kubectl: Kubectl) -> dict[str, str]:
    """Create the manifest's role; return the headers for requests with its rights."""
    documents = yaml.safe_load_all(OPERATOR_FILE.read_text())
    [role] = [document for document in documents if document["kind"] == "ClusterRole"]
    role["metadata"]["name"] = OPERATOR
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": OPERATOR},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": OPERATOR,
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OPERATOR},
        ],
    }
    both = {"apiVersion": "v1", "kind": "List", "items": [role, binding]}
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(both))
    return {"Impersonate-User": OPERATOR}


@asynccontextmanager
async def all_closed() -> AsyncIterator[None]:
    """Wait at the end until all sockets that were opened meanwhile are closed.

    A closed client first notifies the server over TLS, and closes its sockets after the answer. The
    event loop must run until then (aiohttp docs, graceful shutdown).
    """
    before = count_sockets()
    yield
    async with asyncio.timeout(DEADLINE_SECONDS):
        while count_sockets() > before:
            await asyncio.sleep(POLL_SECONDS / 10)


def count_sockets() -> int:
    """Return the number of open sockets of this process (proc(5))."""
    found = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += str(file.readlink()).startswith("socket:")
    return found


@asynccontextmanager
async def stage_of(
    box: Box,
    namespace: str,
    *,
    user: str = "",
    name: str = NAME,
    address: str = "",
    settings: OperatorSettings = SETTINGS,
    observe: Observe = lambda *_: None,
) -> AsyncIterator[Stage]:
    """Build a stage.

    Args:
        user: the user whose rights the reconciler has; "": one with the rights of the manifest.
        name: of the experiment.
        settings: of the operator.
        observe: called for every request to the API server.
        address: of this machine; the stand-in listens there, and is reached through the API
            server's proxy, like a head from outside. "": on loopback, reached directly.
    """
    configuration = Configuration()
    await config.load_kube_config(str(box.kubeconfig), client_configuration=configuration)
    async with (
        all_closed(),
        ApiClient(configuration) as client,
        aiohttp.ClientSession() as session,
        StandInRay(token="", host=address or LOOPBACK) as ray,
    ):
        if address:  # like `operator --dev`: with the rights of the user who started it
            connect = build_connect(client, session, settings, in_cluster=False)
            reach_pod = build_reach_pod(client, session, in_cluster=False)
        else:
            connect, reach_pod = ray.connect(session), ray.reach_pod(session)
            rights = {"Impersonate-User": user} if user else log_in(box.kubectl)
            for header, value in rights.items():
                client.set_default_header(header, value)
        reconciler = Reconciler(
            kube=KubeClient(client, observe=observe),
            connect=connect,
            source=RuntimeSource(reach_pod=reach_pod),
            settings=settings,
            seal=SEAL,  # the same for successive operators
        )
        yield Stage(box=box, namespace=namespace, reconciler=reconciler, ray=ray, name=name)


def play(box: Box, namespace: str, story: Callable[[Stage], Awaitable[None]]) -> None:
    """Run a story on its own stage."""

    async def run() -> None:
        async with stage_of(box, namespace) as stage:
            await story(stage)

    asyncio.run(run())
