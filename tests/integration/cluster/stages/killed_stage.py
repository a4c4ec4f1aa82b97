"""Kills operators at random while experiments run.

An operator is a separate process, forked from one that has imported everything, so that a kill can
come at any moment and the next operator starts at once. Experiments share one stand-in head, which
records what must never happen: a second driver of an experiment while another runs. A seed
determines which acts an experiment goes through, and when.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from aiohttp import web
from faulty_proxy import FaultyProxy
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from reconcile_stage import SEAL, SETTINGS, log_in

from dataset_operator.api import HISTORY_LABEL
from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.login import Login
from dataset_operator.names import Owner
from dataset_operator.ray.jobs import HttpRayJobs
from dataset_operator.reconcile import Reconciler
from dataset_operator.serve import serving
from dataset_operator.sources.driver_metrics import RuntimeSource
from dataset_operator.status import find_condition
from dataset_operator.testing import PortsOf, StandInRay
from pipeline_runtime.config import API_VERSION, KIND
from tools.cluster.box import Box, KubectlError

TOKEN = "shared"
POLL_SECONDS = 0.1
LIVES_AT_ONCE = 4
ACTS = ("fail", "edit_run", "edit_cluster", "suspend", "lose_head", "lose_worker")
# Deadline of one act, with operators that die every other second: pauses after failures take 20 s.
ACT_SECONDS = 180.0
# Clusters are deleted once pods have stored their history; `play_history` plays these pods.
WITH_HISTORY = SETTINGS.model_copy(update={"storage_root": "s3://bucket/team/"})
_LIVE = frozenset({"PENDING", "RUNNING"})
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["killed_stage", "kopf", "kubernetes.aio.client"])


# --- the operator --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The arguments of an operator's process."""

    kubeconfig: str
    namespace: str
    ports: dict[int, str]


def operate(place: Place) -> None:
    """Run an operator until it is killed."""
    os.environ["KUBECONFIG"] = place.kubeconfig
    asyncio.run(_operate(place))


async def _operate(place: Place) -> None:
    configuration = Configuration()
    await config.load_kube_config(place.kubeconfig, client_configuration=configuration)
    async with ApiClient(configuration) as client, aiohttp.ClientSession() as session:
        ports = PortsOf(session=session, urls=place.ports)

        def connect(
            owner: Owner, token: str, service: str | None = None, address: str = ""
        ) -> HttpRayJobs:
            return HttpRayJobs(endpoint=ports, token=TOKEN)

        reconciler = Reconciler(
            kube=KubeClient(client),
            connect=connect,
            source=RuntimeSource(reach_pod=lambda namespace, pod: ports),
            settings=WITH_HISTORY,
            seal=SEAL,  # the same for successive operators
        )
        stop = asyncio.Event()
        login = Login(kubeconfig=place.kubeconfig).connection
        async with serving(reconciler, [place.namespace], log_in=login, stop=stop):
            await stop.wait()


@dataclass(slots=True)
class Killer:
    """Kills operators, one after another; the last one lives until `stop`."""

    place: Place
    random: Random
    kills: int = 0
    _process: Any = None

    async def kill_for(self, number: int) -> None:
        """Kill a number of operators: some before their first pass, some after many."""
        while self.kills < number:
            self.start()
            await asyncio.sleep(
                self.random.choice([0.3, 0.6, 1.0, 2.0]) * (0.5 + self.random.random())
            )
            self.stop()
            self.kills += 1
        self.start()

    def start(self) -> None:
        self._process = _FORKS.Process(target=operate, args=(self.place,), daemon=True)
        self._process.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def check_alive(self) -> None:
        assert self._process is None or self._process.is_alive(), "an operator ended by itself"


# --- the head ------------------------------------------------------------------------------------


def is_driver(job: dict[str, Any]) -> bool:
    """Return whether a job trains; other jobs drain nodes and store decisions."""
    return "--run-id" in job["entrypoint"] and "keep-decisions" not in job["entrypoint"]


@dataclass(slots=True)
class WatchfulRay(StandInRay):
    """The head of all experiments.

    Attributes:
        doubled: drivers that were submitted while another one of the experiment ran.
        lost: the jobs of lost heads. This server stands for every head, but a pass that observed
            a lost head submits to the address of that head, where nothing answers any more.
    """

    doubled: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)

    async def _submit(self, request: web.Request) -> web.Response:
        if (await request.json())["submission_id"] in self.lost:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        known = set(self.jobs)
        response = await StandInRay._submit(self, request)
        for name in set(self.jobs) - known:
            if is_driver(self.jobs[name]) and len(self.drivers(name.rpartition("-")[0])) > 1:
                self.doubled.append(name)
        return response

    def drivers(self, stem: str) -> list[str]:
        """Return the ids of an experiment's running drivers, which begin with `NAME-UID`."""
        return [
            name
            for name, job in self.jobs.items()
            if name.startswith(f"{stem}-") and is_driver(job) and job["status"] in _LIVE
        ]

    def forget(self, stem: str) -> None:
        """Forget the experiment's jobs, as when its head is lost."""
        for name in [name for name in self.jobs if name.startswith(f"{stem}-")]:
            del self.jobs[name]
            self.lost.add(name)


# --- experiments ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Life:
    """An experiment that goes through acts; after each it must train again.

    Attributes:
        wanted: expected values in the status. An attempt without a cause is a failure too, although
            it trains.
        seen: (uid, run, attempt) from its status, which must never go back for the same uid.
    """

    name: str
    box: Box
    namespace: str
    kube: KubeClient
    ray: WatchfulRay
    random: Random
    spec: dict[str, Any] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    seen: tuple[str, int, int] = ("", 0, 0)
    log: list[str] = field(default_factory=list)

    async def live(self, acts: Sequence[str]) -> None:
        """Create the experiment, perform the acts, complete it, and delete it."""
        self.spec = {
            "dataset": {"parquet": {"uri": "t/"}},
            "dataWorkers": {"minReplicas": 1, "maxReplicas": 3},
            "updatePolicy": "Restart",
            "backoffLimit": 10,
        }
        self.wanted = {"run": 1, "attempt": 1, "failures": 0}
        await self._apply()
        await self._trains()
        befalls = {
            "fail": self._fail,
            "edit_run": self._edit_run,
            "edit_cluster": self._edit_cluster,
            "suspend": self._suspend,
            "lose_head": self._lose_head,
            "lose_worker": self._lose_worker,
        }
        for act in acts:
            self.log.append(act)
            await asyncio.sleep(self.random.random())
            await befalls[act]()
            await self._trains()
        await self._finish()
        await self._delete()

    async def _apply(self) -> None:
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": self.spec,
        }
        apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
        await asyncio.to_thread(self.box.kubectl, *apply, stdin=json.dumps(document))

    async def document(self) -> dict[str, Any]:
        found = await self.kube.get(KIND, self.namespace, self.name)
        assert found is not None, f"{self.name} is gone"
        self._check_never_back(found)
        return dict(found)

    def _check_never_back(self, document: dict[str, Any]) -> None:
        status = document.get("status", {})
        now = (document["metadata"]["uid"], status.get("run", 0), status.get("attempt", 0))
        assert now >= self.seen or now[0] != self.seen[0], f"{self.name}: {self.seen} → {now}"
        self.seen = now

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(ACT_SECONDS):
                while not await holds():
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            status = (await self.document()).get("status")
            raise AssertionError(
                f"{self.name} after {self.log}: no {what} in time; {json.dumps(status)}"
            ) from None

    async def _until_condition(self, kind: str, status: str) -> None:
        async def holds() -> bool:
            found = find_condition((await self.document()).get("status", {}), kind)
            return found is not None and found["status"] == status

        await self._until(f"{kind}={status}", holds)

    async def _stem(self) -> str:
        return f"{self.name}-{(await self.document())['metadata']['uid']}"

    async def _trains(self) -> None:
        """Wait until the driver in the status runs, and the status is as expected."""

        async def holds() -> bool:
            document = await self.document()
            status = document.get("status", {})
            job = self.ray.jobs.get(status.get("submission", {}).get("id", ""))
            has_wanted = all(status.get(name, 0) == value for name, value in self.wanted.items())
            training = find_condition(status, "Training")
            is_told = training is not None and training["status"] == "True"
            is_current = status.get("observedGeneration") == document["metadata"]["generation"]
            return bool(job and job["status"] in _LIVE and has_wanted and is_told and is_current)

        await self._until(f"training with {self.wanted}", holds)

    async def _running(self) -> str:
        [driver] = self.ray.drivers(await self._stem())
        return driver

    # --- acts ---

    async def _fail(self) -> None:
        self.ray.end(await self._running(), "FAILED", message="a test's", driver_exit_code=1)
        self.wanted["failures"] += 1
        self.wanted["attempt"] += 1

    async def _edit_run(self) -> None:
        self.spec["dataset"] = {"parquet": {"uri": f"t{self.random.randrange(10**9)}/"}}
        run, attempt = self.wanted["run"] + 1, self.wanted["attempt"] + 1
        self.wanted = {"run": run, "attempt": attempt, "failures": 0}
        await self._apply()

    async def _edit_cluster(self) -> None:
        driver = await self._running()
        self.spec["env"] = [{"name": "TEAM", "value": str(self.random.randrange(10**9))}]
        self.wanted["attempt"] += 1
        await self._apply()
        await self._until_over(driver)

    async def _suspend(self) -> None:
        self.wanted["attempt"] += 1
        self.spec["suspend"] = True
        await self._apply()
        await self._until_condition("Suspended", "True")
        del self.spec["suspend"]
        await self._apply()
        await self._until_condition("Suspended", "False")

    async def _lose_head(self) -> None:
        await asyncio.sleep(1.0)  # ages of pods are whole seconds
        await self._delete_pod("head")
        self.ray.forget(await self._stem())
        self.wanted["failures"] += 1
        self.wanted["attempt"] += 1

    async def _lose_worker(self) -> None:
        await self._delete_pod("data-workers")

    async def _delete_pod(self, role: str) -> None:
        owner = Owner.of(await self.document())
        labels = f"ray.io/cluster={owner.ray_cluster},experiments.lastmile.dev/role={role}"
        pods = await self.kube.list_objects("Pod", self.namespace, labels)
        if pods:
            name = pods[0]["metadata"]["name"]
            at_once = ("-n", self.namespace, "--grace-period=0", "--force", "--ignore-not-found")
            await asyncio.to_thread(self.box.kubectl, "delete", "pod", name, *at_once)

    async def _until_over(self, driver: str) -> None:
        async def holds() -> bool:
            await self.document()
            job = self.ray.jobs.get(driver)
            return job is None or job["status"] not in _LIVE

        await self._until(f"the end of {driver}", holds)

    async def _finish(self) -> None:
        self.ray.end(await self._running(), "SUCCEEDED")
        await self._until_condition("Complete", "True")
        status = (await self.document())["status"]
        assert {name: status.get(name, 0) for name in self.wanted} == self.wanted
        owner = Owner.of(await self.document())

        async def is_given_back() -> bool:
            return await self.kube.get("RayCluster", self.namespace, owner.ray_cluster) is None

        await self._until("its cluster's end", is_given_back)

    async def _delete(self) -> None:
        await asyncio.to_thread(
            self.box.kubectl, "delete", "dsexp", self.name, "-n", self.namespace, "--wait=false"
        )

        async def is_gone() -> bool:
            return await self.kube.get(KIND, self.namespace, self.name) is None

        await self._until("its end", is_gone)


async def play_history(box: Box, namespace: str, kube: KubeClient, random: Random) -> None:
    """End the pods that store a history, some with a failure: kwok lets them run for ever."""
    while True:
        for pod in await kube.list_objects("Pod", namespace, HISTORY_LABEL):
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            status = {"status": {"phase": random.choice(["Succeeded", "Succeeded", "Failed"])}}
            how = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
            name = pod["metadata"]["name"]
            with contextlib.suppress(KubectlError):  # deleted meanwhile
                await asyncio.to_thread(box.kubectl, "patch", "pod", name, "-n", namespace, *how)
        await asyncio.sleep(POLL_SECONDS)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The result of `live_through`."""

    kills: int
    faults: Counter[str]
    lives: int
    acts: Counter[str]
    doubled: list[str]

    def describe(self) -> dict[str, Any]:
        """Return the fields as JSON; `asdict` would count the items of a Counter."""
        return {
            "kills": self.kills,
            "faults": dict(self.faults),
            "lives": self.lives,
            "acts": dict(sorted(self.acts.items())),
            "doubled": self.doubled,
        }


@asynccontextmanager
async def head_and_client(box: Box) -> AsyncIterator[tuple[WatchfulRay, KubeClient]]:
    configuration = Configuration()
    await config.load_kube_config(str(box.kubeconfig), client_configuration=configuration)
    async with ApiClient(configuration) as client, WatchfulRay(token=TOKEN) as ray:
        yield ray, KubeClient(client)


async def live_through(
    box: Box, namespace: str, *, seed: int, kills: int = 0, faulty_share: float = 0.0
) -> Outcome:
    """Run lives of experiments, several at once, until a number of operators has been killed.

    Args:
        faulty_share: share of the operators' requests that fail at the API server.

    Raises:
        AssertionError: an experiment did not reach an expected state within `ACT_SECONDS`.
    """
    lived: list[Life] = []
    async with head_and_client(box) as (ray, kube), contextlib.AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(
            FaultyProxy(
                kubeconfig=box.kubeconfig,
                headers=log_in(box.kubectl),
                random=Random(f"{seed} faults"),
                share=faulty_share,
            )
        )
        folder = Path(stack.enter_context(TemporaryDirectory()))
        kubeconfig = proxy.write_kubeconfig(folder / "kubeconfig")
        place = Place(kubeconfig=str(kubeconfig), namespace=namespace, ports=ray.urls)
        killer = Killer(place=place, random=Random(f"{seed} kills"))
        acts = Random(f"{seed} acts").sample(ACTS, len(ACTS))

        async def live_on(slot: int) -> None:
            turn = 0
            while turn == 0 or killer.kills < kills:
                random = Random(f"{seed} {slot} {turn}")
                life = Life(
                    name=f"e{slot}",  # reused: a deleted namesake must not be mistaken for it
                    box=box,
                    namespace=namespace,
                    kube=kube,
                    ray=ray,
                    random=random,
                )
                # Together, the first lives cover every act.
                deck = [*acts[(2 * slot + turn) % len(acts) :], *acts]
                await life.live(deck[: random.randint(2, 3)])
                killer.check_alive()
                lived.append(life)
                turn += 1

        try:
            async with asyncio.TaskGroup() as tasks:
                player = tasks.create_task(
                    play_history(box, namespace, kube, Random(f"{seed} history"))
                )
                kills_and_lives = [tasks.create_task(killer.kill_for(kills))]
                for slot in range(LIVES_AT_ONCE):
                    kills_and_lives.append(tasks.create_task(live_on(slot)))
                await asyncio.gather(*kills_and_lives)
                player.cancel()
        finally:
            killer.stop()
    return Outcome(
        kills=killer.kills,
        faults=proxy.faults,
        lives=len(lived),
        acts=Counter(name.lstrip("_") for life in lived for name in life.log),
        doubled=ray.doubled,
    )
