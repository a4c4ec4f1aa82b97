"""Requests to Ray heads: outside of slots, with a deadline, and with pauses after failures."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from world import SETTINGS, World, running

from dataset_operator.api import HEAD, RAY_CLUSTER_LABEL, ROLE_LABEL, TOKEN_KEY
from dataset_operator.documents import Document
from dataset_operator.errors import RayRefused, RayUnreachable
from dataset_operator.kube.remembering import RememberingKube
from dataset_operator.names import Owner
from dataset_operator.observed import Job
from dataset_operator.ray.head_requests import MAX_PAUSE_SECONDS, Heads
from dataset_operator.reconcile import Reconciler
from dataset_operator.scheduling.passes import Passes, Trigger
from dataset_operator.scheduling.slots import MAX_IN_PROGRESS_EACH
from dataset_operator.serve import build_see
from dataset_operator.sources.base import Reading, Run
from pipeline_runtime.config import KIND

HANG_SECONDS = 10.0
OWNER = Owner(name="clicks", namespace="team", uid="0f3c6c1e")


@dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Head:
    """A head; `failing` kinds of request fail after ten seconds of the test's clock."""

    clock: Clock
    failing: set[str] = field(default_factory=set)
    seconds: float = HANG_SECONDS
    retry_after_seconds: float = 0.0  # the pause that a busy head asks for
    asked: list[str] = field(default_factory=list)

    def __call__(
        self, owner: Owner, token: str, service: str | None = None, address: str = ""
    ) -> Any:
        return self

    def _answer(self, kind: str) -> None:
        self.asked.append(kind)
        if kind in self.failing:
            self.clock.seconds += self.seconds
            failure = RayUnreachable(f"{kind}: no answer")
            failure.retry_after_seconds = self.retry_after_seconds
            raise failure

    async def get(self, submission_id: str) -> Job | None:
        self._answer("get")
        return None

    async def progress(self) -> None:
        self._answer("progress")

    async def submit(self, submit: Any) -> None:
        self._answer("submit")
        raise RayRefused("refused")

    async def stop(self, submission_id: str) -> None:
        self._answer("stop")


@dataclass
class Asked:
    """Heads around one head, with a clock and no randomness."""

    clock: Clock = field(default_factory=Clock)
    luck: float = 1.0

    def __post_init__(self) -> None:
        self.head = Head(self.clock)
        self.heads = Heads(self.head, clock=self.clock, draw=lambda: self.luck)
        self.jobs = self.heads.connect(OWNER, "token")

    async def fails(self, question: Callable[[], Awaitable[Any]]) -> str:
        with pytest.raises(RayUnreachable) as caught:
            await question()
        return str(caught.value)

    async def get(self) -> Any:
        return await self.jobs.get("job")


def play(story: Callable[[Asked], Awaitable[None]]) -> None:
    async def run() -> None:
        await story(Asked())

    asyncio.run(run())


def test_pauses_of_a_hanging_head_grow() -> None:
    async def story(asked: Asked) -> None:
        asked.head.failing = {"get"}
        for pause in (10.0, 20.0, 40.0, MAX_PAUSE_SECONDS, MAX_PAUSE_SECONDS):
            count = len(asked.head.asked)
            assert await asked.fails(asked.get) == "get: no answer"
            assert len(asked.head.asked) == count + 1
            for share in (0.0, pause - 0.1):  # the same failure, without a request
                asked.clock.seconds += share
                assert await asked.fails(asked.get) == "get: no answer"
            assert len(asked.head.asked) == count + 1
            asked.clock.seconds += 0.1

    play(story)


def test_a_busy_head_gets_the_pause_that_it_asks_for() -> None:
    async def story(asked: Asked) -> None:
        asked.head.failing, asked.head.seconds = {"get"}, 0.0
        asked.head.retry_after_seconds = 30.0
        for seconds, count in ((0.0, 1), (29.9, 1), (0.1, 2)):
            asked.clock.seconds += seconds
            await asked.fails(asked.get)
            assert len(asked.head.asked) == count

    play(story)


def test_pauses_that_begin_together_end_at_different_times() -> None:
    async def story(asked: Asked) -> None:
        asked.luck, asked.head.failing = 0.0, {"get"}
        await asked.fails(asked.get)
        asked.clock.seconds += HANG_SECONDS / 2
        await asked.fails(asked.get)
        assert asked.head.asked == ["get", "get"]

    play(story)


def test_a_refused_connection_is_retried_in_the_next_pass() -> None:
    async def story(asked: Asked) -> None:
        asked.head.failing, asked.head.seconds = {"get"}, 0.002
        for _ in range(20):
            await asked.fails(asked.get)
            asked.clock.seconds += 1.0  # passes of one experiment are further apart
        assert len(asked.head.asked) == 20

    play(story)


def test_each_kind_of_request_has_its_own_pause() -> None:
    async def story(asked: Asked) -> None:
        asked.head.failing = {"progress"}
        await asked.fails(asked.jobs.progress)
        await asked.fails(asked.jobs.progress)
        await asked.get()
        assert asked.head.asked == ["progress", "get"]

    play(story)


def test_the_answer_to_a_stop_ends_a_pause() -> None:
    async def story(asked: Asked) -> None:
        asked.head.failing = {"get", "stop"}
        await asked.fails(asked.get)
        for _ in range(2):
            await asked.fails(lambda: asked.jobs.stop("job"))
        assert asked.head.asked == ["get", "stop", "stop"]
        asked.clock.seconds = 0.0
        asked.head.failing.clear()
        await asked.jobs.stop("job")
        await asked.get()
        assert asked.head.asked[3:] == ["stop", "get"]

    play(story)


@pytest.mark.parametrize("answers", ["get", "submit"])
def test_an_answer_resets_the_pauses(answers: str) -> None:
    async def story(asked: Asked) -> None:
        async def question() -> None:
            await (asked.get() if answers == "get" else asked.jobs.submit(cast(Any, None)))

        asked.head.failing = {answers}
        await asked.fails(question)
        asked.clock.seconds += MAX_PAUSE_SECONDS
        asked.head.failing.clear()
        if answers == "submit":
            with pytest.raises(RayRefused):
                await question()
        else:
            await question()
        asked.head.failing = {answers}
        await asked.fails(question)
        asked.clock.seconds += HANG_SECONDS  # the first pause again, not the second
        await asked.fails(question)
        assert len(asked.head.asked) == 4

    play(story)


def test_an_event_of_the_head_pod_ends_its_pause() -> None:
    async def story(asked: Asked) -> None:
        see = build_see(RememberingKube(cast(Any, None)), asked.heads)
        asked.head.failing = {"get"}
        await asked.fails(asked.get)
        for labels, count in (
            ({ROLE_LABEL: "dataWorkers", RAY_CLUSTER_LABEL: OWNER.ray_cluster}, 1),
            ({ROLE_LABEL: HEAD, RAY_CLUSTER_LABEL: "another"}, 1),
            ({}, 1),
            ({ROLE_LABEL: HEAD, RAY_CLUSTER_LABEL: OWNER.ray_cluster}, 2),
        ):
            metadata = {"namespace": OWNER.namespace, "name": "pod", "labels": labels}
            see("Pod", "MODIFIED", {"kind": "Pod", "metadata": metadata})
            await asked.fails(asked.get)
            assert len(asked.head.asked) == count

    play(story)


def test_pauses_of_deleted_clusters_are_dropped() -> None:
    async def story(asked: Asked) -> None:
        asked.head.failing = {"get"}
        for index in range(100):
            owner = Owner(name=f"e{index}", namespace="team", uid="1")
            with pytest.raises(RayUnreachable):
                await asked.heads.connect(owner, "token").get("job")
        assert len(asked.heads._failures) == 60  # those of ten minutes

    play(story)


def test_an_unanswered_request_times_out() -> None:
    async def story() -> None:
        class Silent(Head):
            async def get(self, submission_id: str) -> None:
                await asyncio.Event().wait()

        heads = Heads(Silent(Clock()), deadline_seconds=0.01)
        with pytest.raises(RayUnreachable):
            await heads.connect(OWNER, "token").get("job")

    asyncio.run(story())


@dataclass
class Cluster:
    """An API server that has any experiment, each as in `world`, and their heads."""

    world: World = field(default_factory=running)
    statuses: list[tuple[str, str]] = field(default_factory=list)
    hanging: set[str] = field(default_factory=set)  # namespaces whose heads never answer
    failing: set[str] = field(default_factory=set)  # ... or fail after ten seconds of the clock
    clock: Clock = field(default_factory=Clock)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    edits: dict[str, dict[str, Any]] = field(default_factory=dict)  # by namespace

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        metadata = {"name": name, "ownerReferences": [{"uid": self.world.owner.uid}]}
        if kind == KIND:
            metadata = self.world.document["metadata"] | {"namespace": namespace, "name": name}
            edits = self.edits.get(namespace, {})
            metadata["generation"] += len(edits)
            spec = self.world.document["spec"] | edits
            return self.world.document | {"metadata": metadata, "spec": spec}
        if kind == "RayCluster":
            return self.world.ray_cluster
        if kind == "Secret":
            data = {TOKEN_KEY: base64.b64encode(b"token").decode()}
            return {"kind": kind, "metadata": metadata, "data": data}
        return self.world.children.get(name)

    async def list_objects(self, *_: object) -> list[Document]:
        return []

    async def write_status(self, document: Document, status: Document) -> None:
        metadata = document["metadata"]
        self.statuses.append((metadata["namespace"], metadata["name"]))

    async def write_finalizers(self, document: Document, finalizers: Any) -> None: ...

    async def create(self, document: Document) -> None: ...

    apply = try_out = create

    def connect(
        self, owner: Owner, token: str, service: str | None = None, address: str = ""
    ) -> Any:
        return _Jobs(self, owner)

    async def read(self, run: Run) -> Reading:
        return Reading()


@dataclass
class _Jobs:
    cluster: Cluster
    owner: Owner

    async def _ask(self, kind: str) -> None:
        self.cluster.asked.append((self.owner.namespace, self.owner.name, kind))
        if self.owner.namespace in self.cluster.hanging:
            await asyncio.Event().wait()
        if self.owner.namespace in self.cluster.failing:
            self.cluster.clock.seconds += HANG_SECONDS
            raise RayUnreachable("no answer")

    async def get(self, submission_id: str) -> Job:
        await self._ask("get")
        return Job(status="RUNNING")

    async def stop(self, submission_id: str) -> None:
        await self._ask("stop")


def operate(cluster: Cluster, heads: Heads) -> Passes:
    fake = cast(Any, cluster)
    reconciler = Reconciler(
        kube=fake,
        connect=heads.connect,
        source=fake,
        settings=SETTINGS,
        now=lambda: cluster.world.now,
    )
    return Passes(reconciler.reconcile, close_seconds=0.0)


async def idle() -> None:
    for _ in range(300):
        await asyncio.sleep(0)


async def until_asked(cluster: Cluster, count: int) -> None:
    """Wait until so many requests were sent, since passes plan in threads."""
    async with asyncio.timeout(10):
        while len(cluster.asked) < count:
            await asyncio.sleep(0.001)
    await idle()


def test_an_edit_is_handled_while_heads_of_another_tenant_hang() -> None:
    async def story() -> None:
        cluster = Cluster(hanging={"a"}, edits={"b": {"suspend": True}})
        passes = operate(cluster, Heads(cluster.connect))
        for index in range(400):
            passes.wake("a", f"e{index}", Trigger.CHANGE)
        await until_asked(cluster, MAX_IN_PROGRESS_EACH)
        assert len(cluster.asked) == MAX_IN_PROGRESS_EACH
        passes.wake("b", "clicks", Trigger.EDIT)
        await until_asked(cluster, MAX_IN_PROGRESS_EACH + 1)
        async with asyncio.timeout(10):
            while not cluster.statuses:
                await asyncio.sleep(0.001)
        assert cluster.statuses == [("b", "clicks")]
        assert cluster.asked[-1] == ("b", "clicks", "stop")
        await passes.close()

    asyncio.run(story())


@pytest.mark.parametrize("ends", ["suspended", "deleted"])
def test_a_run_that_ends_is_stopped_during_a_pause(ends: str) -> None:
    async def story() -> None:
        cluster = Cluster(failing={"a"})
        passes = operate(cluster, Heads(cluster.connect, clock=cluster.clock, draw=lambda: 1.0))
        passes.wake("a", "clicks", Trigger.CHANGE)
        await idle()
        if ends == "deleted":
            cluster.world.delete()
        else:
            cluster.edits["a"] = {"suspend": True}
        passes.wake("a", "clicks", Trigger.EDIT)
        await until_asked(cluster, 2)
        assert [kind for _, _, kind in cluster.asked] == ["get", "stop"]
        await passes.close()

    asyncio.run(story())
