"""Two operators and one lease: one leads, the other takes over, and runs continue.

The processes are real. Each has its own proxy to the API server, which records its writes. The
tests wait for events, not for fixed times.
"""

import asyncio
import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import LASTMILE, User
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from operator_stage import comes
from proxied import own_address, take_heads_place
from reconcile_stage import (
    DEADLINE_SECONDS,
    OPERATOR,
    OPERATOR_FILE,
    POLL_SECONDS,
    SMALL,
    Stage,
    stage_of,
)
from recorded import Recorder, recording

from dataset_operator.election.candidate import Candidate
from dataset_operator.election.elector import Elector, Terms
from dataset_operator.election.guard import EXIT_LEASE_LOST
from dataset_operator.errors import KubeRefused
from dataset_operator.kube.client import KubeClient
from tools.cluster.box import Box

LEASE = "lastmile-operator"
Connect = Callable[[], AbstractAsyncContextManager[KubeClient]]
AS_INSTALLED: dict[str, int] = {}
# Longer than any wait of a test, so that no takeover is caused by the lease's expiry.
LONG = {"leaseDurationSeconds": 3600, "renewDeadlineSeconds": 1800, "retryPeriodSeconds": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One of the operators, with its log and its requests to the API server."""

    process: subprocess.Popen[bytes]
    log: Path
    recorder: Recorder

    def says(self, words: str) -> bool:
        return words in self.log.read_text()

    def answer(self, path: str) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.log.read_text())
        assert found is not None
        with urllib.request.urlopen(found.group() + path, timeout=30) as response:
            text: str = response.read().decode()
            return text

    @property
    def is_leader(self) -> bool:
        """True if its metrics say that it leads."""
        [line] = re.findall(r"^lastmile_operator_leader (.*)$", self.answer("/metrics"), re.M)
        return float(line) == 1.0

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something holds, and fail if the process ends before."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not await asyncio.to_thread(is_so):
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(POLL_SECONDS)

    async def leads(self) -> None:
        await self.until(lambda: self.says("reconciling"))
        await self.until(lambda: self.is_leader)

    async def stands_by(self) -> None:
        await self.until(lambda: self.says("standing by"))
        assert not await asyncio.to_thread(lambda: self.is_leader)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, DEADLINE_SECONDS)


@dataclass(slots=True, kw_only=True)
class Replicas:
    """Starts operators that share one lease in a namespace, and kills them at the end."""

    box: Box
    namespace: str
    folder: Path
    lease: dict[str, Any]
    stack: ExitStack

    def start(self, name: str) -> Replica:
        recorder = self.stack.enter_context(recording(self.box))
        folder = self.folder / name
        folder.mkdir()
        settings, log = folder / "settings.yaml", folder / "operator.log"
        settings.write_text(json.dumps(self._build_settings()))
        kubeconfig = recorder.kubeconfig(folder / "kubeconfig")
        user = User(box=self.box, namespace=self.namespace, kubeconfig=kubeconfig)
        options = ["--dev", "--config", str(settings), "-n", self.namespace, "--port", "0"]
        stream = self.stack.enter_context(log.open("wb"))
        process = subprocess.Popen(
            [LASTMILE, "operator", *options], env=user.environment(), stdout=stream, stderr=stream
        )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return Replica(process=process, log=log, recorder=recorder)

    async def start_two(self) -> tuple[Replica, Replica]:
        """Start the replica `first`, which leads, and then `second`, which stands by."""
        first = self.start("first")
        await first.leads()
        second = self.start("second")
        await second.stands_by()
        return first, second

    def _build_settings(self) -> dict[str, Any]:
        return {
            "runtimeImage": "example.com/lastmile:none",
            "storageRoot": "s3://bucket/team",
            "resources": {"head": SMALL, "trainers": SMALL, "dataWorkers": SMALL},
            "leaderElection": True,
            "lease": {"namespace": self.namespace, **self.lease},
        }

    def read_lease(self) -> dict[str, Any]:
        found = self.box.kubectl("get", "lease", LEASE, "-n", self.namespace, "-o", "json")
        spec: dict[str, Any] = json.loads(found)["spec"]
        return spec


@contextmanager
def replicas_of(
    box: Box, namespace: str, folder: Path, lease: dict[str, Any]
) -> Iterator[Replicas]:
    with ExitStack() as stack:
        yield Replicas(box=box, namespace=namespace, folder=folder, lease=lease, stack=stack)


def find_uids(stage: Stage) -> set[str]:
    """Return the uids of the cluster and its pods, which change if one is recreated."""
    kinds = ("get", "rayclusters,pods", "-n", stage.namespace)
    return set(stage.box.kubectl(*kinds, "-o", "jsonpath={.items[*].metadata.uid}").split())


async def is_untouched(stage: Stage, uids: set[str]) -> None:
    assert find_uids(stage) == uids
    assert len(stage.ray.jobs) == 1
    status = await stage.status()
    assert (status["run"], status["attempt"], status["failures"]) == (1, 1, 0)


@pytest.mark.usefixtures("played")
def test_a_run_continues_while_operators_are_stopped_and_killed(
    box: Box, namespace: str, tmp_path: Path
) -> None:
    async def story(replicas: Replicas, stage: Stage) -> None:
        first, second = await replicas.start_two()
        for path in ("/healthz", "/readyz"):
            assert await asyncio.to_thread(second.answer, path) == "ok\n"
        stage.apply()
        await comes(stage, "ClusterReady", "True", "PodsReady")
        await take_heads_place(stage)
        await comes(stage, "Training", "True", "Running")
        uids = find_uids(stage)
        assert not any("/leases" not in path for _, path in second.recorder.writes)

        first.process.send_signal(signal.SIGSTOP)
        await second.leads()
        await is_untouched(stage, uids)
        written = list(first.recorder.writes)
        assert written
        first.process.send_signal(signal.SIGCONT)
        assert await first.ended() == EXIT_LEASE_LOST
        assert first.recorder.writes == written
        assert first.says("renewDeadlineSeconds")

        third = replicas.start("third")
        await third.stands_by()
        second.process.kill()
        await third.leads()
        await is_untouched(stage, uids)
        assert replicas.read_lease()["leaseTransitions"] == 2

        stage.ray.end(stage.only_job()["submission_id"], "SUCCEEDED")
        await comes(stage, "Complete", "True", "Succeeded")
        events = box.kubectl("get", "events", "-n", namespace, "-o", "jsonpath={.items[*].reason}")
        assert events.split().count("NewRun") == 1

    async def run() -> None:
        async with stage_of(box, namespace, address=own_address()) as stage:
            # Inside, since the stage waits until all sockets opened after it are closed.
            with replicas_of(box, namespace, tmp_path, AS_INSTALLED) as replicas:
                await story(replicas, stage)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.usefixtures("kuberay")
def test_a_released_lease_is_taken_long_before_its_end(
    box: Box, namespace: str, tmp_path: Path
) -> None:
    async def run() -> None:
        with replicas_of(box, namespace, tmp_path, LONG) as replicas:
            first, second = await replicas.start_two()
            first.process.send_signal(signal.SIGTERM)
            assert await first.ended() == 0
            assert first.says("released")
            await second.leads()

            second.process.send_signal(signal.SIGTERM)
            assert await second.ended() == 0
            lease = replicas.read_lease()
            assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("", 1)

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.usefixtures("kuberay")
def test_a_standby_stops_at_once_without_writing_the_lease(
    box: Box, namespace: str, tmp_path: Path
) -> None:
    async def run() -> None:
        with replicas_of(box, namespace, tmp_path, LONG) as replicas:
            _, second = await replicas.start_two()
            second.process.send_signal(signal.SIGTERM)
            assert await second.ended() == 0
            assert second.recorder.writes == []
            assert replicas.read_lease()["leaseTransitions"] == 0

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.usefixtures("kuberay")
def test_a_leader_without_the_api_server_ends_itself(
    box: Box, namespace: str, tmp_path: Path
) -> None:
    async def run() -> None:
        with replicas_of(box, namespace, tmp_path, AS_INSTALLED) as replicas:
            first, second = await replicas.start_two()
            first.recorder.is_cut = True
            try:
                assert await first.ended() == EXIT_LEASE_LOST
            finally:
                first.recorder.is_cut = False
            await second.leads()

    asyncio.run(run())


# --- rights -------------------------------------------------------------------------------------


def grant(box: Box, namespace: str) -> None:
    """Create the manifest's Role for a user without other rights."""
    documents = yaml.safe_load_all(OPERATOR_FILE.read_text())
    roles = [document for document in documents if document["kind"] == "Role"]
    [role] = [role for role in roles if "leases" in str(role["rules"])]
    role["metadata"] |= {"namespace": namespace}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "lease", "namespace": namespace},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": role["metadata"]["name"],
        },
        "subjects": [
            {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "User",
                "name": f"{OPERATOR}-{namespace}",
            },
        ],
    }
    both = {"apiVersion": "v1", "kind": "List", "items": [role, binding]}
    box.kubectl("apply", "-f", "-", stdin=json.dumps(both))


def test_the_manifests_role_suffices_for_its_own_lease_only(box: Box, namespace: str) -> None:
    grant(box, namespace)

    async def stand(connect: Connect, name: str) -> int:
        terms = Terms(
            name=name, namespace=namespace, duration_seconds=15, deadline_seconds=10,
            retry_seconds=1,
        )  # fmt: skip
        candidate = Candidate(connect=connect, elector=Elector(identity="one", terms=terms))
        async with asyncio.timeout(DEADLINE_SECONDS), candidate.leading(asyncio.Event()) as leads:
            assert leads
            seen = candidate.elector.seen
            while candidate.elector.seen == seen:  # until the lease is renewed
                await asyncio.sleep(POLL_SECONDS)
        async with connect() as kube:
            document = await kube.get("Lease", namespace, name)
        assert document is not None
        return len(document["spec"]["holderIdentity"])

    async def run() -> None:
        configuration = Configuration()
        await config.load_kube_config(str(box.kubeconfig), client_configuration=configuration)

        @asynccontextmanager
        async def connect() -> AsyncIterator[KubeClient]:
            async with ApiClient(configuration) as client:
                client.set_default_header("Impersonate-User", f"{OPERATOR}-{namespace}")
                yield KubeClient(client)

        assert await stand(connect, LEASE) == 0  # released
        with pytest.raises(KubeRefused, match="forbidden"):
            await stand(connect, "another")
        async with connect() as kube:
            with pytest.raises(KubeRefused, match="forbidden"):
                await kube.list_objects("Lease", namespace, "")

    asyncio.run(run())


@pytest.mark.slow
def test_the_manifest_runs_two_replicas_with_a_disruption_budget(box: Box, namespace: str) -> None:
    documents = {d["kind"]: d for d in yaml.safe_load_all(OPERATOR_FILE.read_text())}
    deployment, budget = documents["Deployment"], documents["PodDisruptionBudget"]
    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    for document in (deployment, budget):
        document["metadata"]["namespace"] = namespace
    how = ("--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    box.kubectl("apply", *how, stdin=yaml.safe_dump_all([deployment, budget]))
