"""Starts a control plane for one arm, and reads its state from outside."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
from kubernetes.aio.client import ApiClient

from benchmarks.harness.cells import Document
from benchmarks.harness.errors import BenchmarkError
from benchmarks.operator.acting import build_settings
from dataset_operator.api import RAY_API_VERSION
from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.login import Login
from dataset_operator.observed import Observed
from dataset_operator.plan import decide
from dataset_operator.scheduling.slots import MAX_SLOTS
from pipeline_runtime.config import API_VERSION, KIND
from tools.cluster.control_plane import ControlPlane
from tools.cluster.startup import PLENTY, Settings, build_tls

_CRDS: Final = Path("crds")
_TEAMS: Final = 20  # namespaces
_NODES: Final = 12
_PODS_PER_NODE: Final = "1000"
_POLL_SECONDS: Final = 1.0
# Deadline of an arm: a hundred times as long as one experiment takes on an idle machine.
_FIRST_SECONDS, _SECONDS_EACH = 300.0, 3.0
_LINE_BYTES: Final = 1 << 20  # of one event of a watch
_TABLE: Final = "application/json;as=Table;g=meta.k8s.io;v=v1"


@dataclass(slots=True)
class Taken:
    """The generation that the status of each experiment reflects, from a watch."""

    _known: dict[tuple[str, str], int] = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def follow(self, lines: aiohttp.StreamReader) -> None:
        """Record events until the watch ends."""
        while line := await lines.readline():
            document = json.loads(line)["object"]
            metadata, status = document["metadata"], document.get("status") or {}
            async with self._changed:
                key = (metadata["namespace"], metadata["name"])
                self._known[key] = status.get("observedGeneration", 0)
                self._changed.notify_all()

    async def wait(self, key: tuple[str, str], generation: int) -> None:
        """Return once the status reflects that generation, or a later one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._known.get(key, 0) >= generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A control plane, and a client of it."""

    box: ControlPlane
    folder: Path
    kube: KubeClient
    session: aiohttp.ClientSession  # its base is the API server

    async def create(self, experiments: Iterable[Document]) -> None:
        """Create experiments, several at once."""
        await at_once(partial(self.kube.create, each) for each in experiments)

    async def _count(self, kind: str, column: str) -> Counter[str]:
        """Count the objects of a kind by their value in a column of `kubectl get`.

        The API server makes the table, so this is cheap for any number of objects.
        """
        url = f"/apis/{kind}?includeObject=None"
        async with self.session.get(url, headers={"Accept": _TABLE}) as answer:
            answer.raise_for_status()
            table = await answer.json(content_type=None)
        place = [each["name"] for each in table["columnDefinitions"]].index(column)
        return Counter(str(row["cells"][place]) for row in table.get("rows") or ())

    async def _until(self, kind: str, column: str, value: str, number: int) -> float:
        """Wait until enough objects have a value; return the time. Raises BenchmarkError."""
        deadline = time.monotonic() + _FIRST_SECONDS + _SECONDS_EACH * number
        while (found := await self._count(kind, column))[value] < number:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"of {number} {kind} not all became {value}: {dict(found)}")
            self.box.check()
            await asyncio.sleep(_POLL_SECONDS)
        return time.monotonic()

    async def clusters_ready(self, number: int) -> float:
        """Return the time at which KubeRay reports all clusters as ready."""
        return await self._until(f"{RAY_API_VERSION}/rayclusters", "status", "ready", number)

    async def experiments_are(self, phase: str, number: int) -> float:
        """Return the time at which all experiments are in a phase."""
        return await self._until(f"{API_VERSION}/datasetexperiments", "Phase", phase, number)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[Taken]:
        """Follow the generations that the operator has observed of each experiment."""
        url = f"/apis/{API_VERSION}/datasetexperiments?watch=1&timeoutSeconds=7200"
        timeout, taken = aiohttp.ClientTimeout(total=None), Taken()
        async with self.session.get(url, timeout=timeout, read_bufsize=_LINE_BYTES) as answer:
            answer.raise_for_status()
            task = asyncio.create_task(taken.follow(answer.content))
            try:
                yield taken
            finally:
                task.cancel()

    async def digest(self) -> str:
        """Return a digest of all clusters' specs, without the names of their experiments."""
        clusters = [
            cluster
            for team in range(_TEAMS)
            for cluster in await self.kube.list_objects("RayCluster", _team(team), "")
        ]
        specs = sorted(_strip(cluster) for cluster in clusters)
        return hashlib.sha256("\n".join(specs).encode()).hexdigest()[:16]


@contextlib.asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """Start a fresh control plane, and remove it at the end."""
    nodes = {**PLENTY, "pods": _PODS_PER_NODE, "nvidia.com/gpu": _PODS_PER_NODE}
    crds = tuple(sorted(_CRDS.glob("*.yaml")))
    settings = Settings(num_nodes=_NODES, node_resources=nodes, crds=crds)
    with (
        TemporaryDirectory() as folder,
        ControlPlane.start(Path(folder) / "box", settings=settings) as box,
    ):
        configuration = await Login(kubeconfig=str(box.kubeconfig)).configuration()
        connector = aiohttp.TCPConnector(ssl=build_tls(box.layout))
        async with (
            ApiClient(configuration) as client,
            aiohttp.ClientSession(configuration.host, connector=connector) as session,
        ):
            _make_teams(box)
            yield Stage(box=box, folder=Path(folder), kube=KubeClient(client), session=session)


def _make_teams(box: ControlPlane) -> None:
    for name in map(_team, range(_TEAMS)):
        box.kubectl("create", "namespace", name)
        # Pods are refused until the account exists.
        account = ("serviceaccount/default", f"--namespace={name}")
        box.kubectl("wait", "--for=create", "--timeout=60s", *account)


def _team(index: int) -> str:
    return f"team-{index % _TEAMS}"


def build_experiment(index: int, **spec: Any) -> Document:
    """Build the experiment with this number, in its team's namespace."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": f"e{index}", "namespace": _team(index)},
        "spec": {
            "dataset": {"parquet": {"uri": "s3://bucket/table/"}},
            "dataWorkers": {"minReplicas": 1, "maxReplicas": 3},
            "backoffLimit": 1000,
            **spec,
        },
    }


def build_children(index: int) -> list[tuple[bool, Document]]:
    """Build an experiment's objects with the operator's plan: (applied or created, object)."""
    document = build_experiment(index)
    document["metadata"] |= {"uid": str(uuid.uuid4()), "generation": 1, "resourceVersion": "1"}
    children: list[tuple[bool, Document]] = []
    while not any(child["kind"] == "RayCluster" for _, child in children):
        token = uuid.uuid4().hex
        observed = Observed(document=document, settings=build_settings(), fresh_token=token)
        decision = decide(observed, datetime.now(UTC))
        children = [(True, child) for child in decision.apply]
        children += [(False, child) for child in decision.create]
        document = {**document, "status": decision.status.to_document()}
    for _, child in children:
        child["metadata"].pop("ownerReferences")  # the experiment itself is not created
    return children


def _strip(cluster: Document) -> str:
    """Return a cluster's spec as text, without the names of its experiment."""
    owner = cluster["metadata"]
    experiment = owner["name"].rpartition("-")[0]
    text = json.dumps(cluster["spec"], sort_keys=True)
    for name, word in ((owner["name"], "CLUSTER"), (f'"{experiment}"', '"EXPERIMENT"')):
        text = text.replace(name, word)
    return text.replace(owner["namespace"], "TEAM")


async def at_once(work: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Do all the work, with as much concurrency as the operator has passes."""
    slots = asyncio.Semaphore(MAX_SLOTS)

    async def run(each: Callable[[], Awaitable[object]]) -> None:
        async with slots:
            await each()

    await asyncio.gather(*(run(each) for each in work))
