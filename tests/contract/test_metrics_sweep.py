"""The default metrics source, with pods that answer correctly, lie, hang or fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import aiohttp
import pytest
from facts import assert_told
from ray.dashboard.consts import GPU_TAG_KEYS
from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

from dataset_operator.api import HEAD, TRAINERS
from dataset_operator.errors import RayUnreachable
from dataset_operator.names import Owner
from dataset_operator.observed import Pod, Progress
from dataset_operator.ray.transport import Answer, Endpoint, Request
from dataset_operator.sources.base import Run
from dataset_operator.sources.driver_metrics import MAX_CONNECTIONS, MAX_PAGE_BYTES, RuntimeSource
from dataset_operator.sources.ray_nodes import FAMILY
from dataset_operator.testing import LIES, StandInRay

DRIVER = "lastmile_progress_ratio 0.5\nlastmile_trainer_busy_ratio 0.75\nlastmile_cpu_ranks 0\n"
OTHERS = "".join(f'ray_others{{index="{index}"}} {index}\n' for index in range(4000))
GPUS = (
    'ray_node_gpus_utilization{GpuIndex="0",ip="10.0.0.1"} 80\n'
    'ray_node_gpus_utilization{GpuIndex="1",ip="10.0.0.1"} 60\n'
)


def build_run(ray: StandInRay, session: aiohttp.ClientSession, trainers: int, gpus: int = 2) -> Run:
    owner = Owner(name="clicks", namespace="team", uid="1")
    return Run(
        owner=owner,
        jobs=ray.connect(session)(owner, "t"),
        pods=(
            Pod(name="head", uid="head", role=HEAD, ready=True, ip="10.0.0.9"),
            *(
                Pod(name=f"t-{i}", uid=f"t-{i}", role=TRAINERS, ready=True, ip=f"10.0.1.{i}")
                for i in range(trainers)
            ),
        ),
        trainers=trainers,
        gpus_per_trainer=gpus,
        since=datetime(2026, 1, 1, tzinfo=UTC),
    )


@dataclass
class Clock:
    """A clock that tests set."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


Story = Callable[[RuntimeSource, Callable[..., Run]], Awaitable[None]]


def play(ray: StandInRay, story: Story, clock: Clock | None = None) -> None:
    async def run() -> None:
        async with ray, aiohttp.ClientSession() as session:
            source = RuntimeSource(reach_pod=ray.reach_pod(session), now=clock or Clock())
            await story(source, lambda *numbers: build_run(ray, session, *numbers))

    asyncio.run(run())


def test_a_reading_combines_the_driver_and_the_trainers_nodes() -> None:
    ray = StandInRay(token="t", metrics=DRIVER, node_metrics=OTHERS + GPUS + OTHERS)

    async def story(source: RuntimeSource, build: Callable[..., Run]) -> None:
        reading = await source.read(build(3))
        assert reading.progress == Progress(
            ratio=0.5,
            busy_ratio=0.75,
            cpu_ranks=0,
            gpu_utilization_ratio=pytest.approx(0.7),
            slowest_gpu_ratio=0.6,
        )
        assert "lastmile_run_*" in reading.unknown  # missing from this page

    play(ray, story)


def test_without_gpus_utilization_is_the_trainers_busy_share() -> None:
    ray = StandInRay(token="t", metrics=DRIVER.replace("ranks 0", "ranks 2"), node_metrics=GPUS)

    async def story(source: RuntimeSource, build: Callable[..., Run]) -> None:
        progress = (await source.read(build(2, 0))).progress
        assert progress is not None
        assert progress.gpu_utilization_ratio is None
        assert progress.utilization == 0.75

    play(ray, story)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_of_a_pod_counts_as_unknown(lie: str) -> None:
    ray = StandInRay(token="t", metrics=DRIVER, node_metrics=GPUS, lie=lie)

    async def story(source: RuntimeSource, build: Callable[..., Run]) -> None:
        reading = await source.read(build(2))
        assert reading.progress is None
        assert "4 GPUs 0 tell" in reading.unknown

    play(ray, story)


def test_a_page_is_read_up_to_its_limit() -> None:
    filler = "# " + "x" * 1000 + "\n"
    far = filler * (2 * MAX_PAGE_BYTES // len(filler)) + GPUS
    ray = StandInRay(token="t", metrics=DRIVER, node_metrics=far)

    async def story(source: RuntimeSource, build: Callable[..., Run]) -> None:
        assert "2 GPUs 0 tell" in (await source.read(build(1))).unknown

    play(ray, story)


def test_gpus_are_read_once_per_period_and_kept_for_three_scrapes() -> None:
    clock = Clock()
    ray = StandInRay(token="t", metrics=DRIVER, node_metrics=GPUS)

    async def story(source: RuntimeSource, build: Callable[..., Run]) -> None:
        async def ask(at: float) -> float | None:
            clock.seconds = at
            progress = (await source.read(build(1))).progress
            assert progress is not None
            return progress.gpu_utilization_ratio

        assert await ask(0.0) == pytest.approx(0.7)
        ray.node_metrics = GPUS.replace("80", "100")
        assert await ask(5.0) == pytest.approx(0.7)  # another pass of the same period
        assert await ask(15.0) == pytest.approx(0.8)
        ray.node_metrics = ""  # nothing serves them any more
        assert [await ask(at) for at in (30.0, 45.0, 60.0)] == [pytest.approx(0.8)] * 3
        assert await ask(75.0) is None

    play(ray, story, clock)


def test_gpus_stay_known_when_the_driver_does_not_answer() -> None:
    ray = StandInRay(token="t", metrics="", node_metrics=GPUS)

    async def story(source: RuntimeSource, build: Callable[..., Run]) -> None:
        reading = await source.read(build(1))
        assert reading.progress is not None
        assert reading.progress.gpu_utilization_ratio == pytest.approx(0.7)
        assert "GET :9464/metrics: " in reading.unknown

    play(ray, story)


@dataclass
class Hanging:
    """A pod that accepts connections and never answers; it counts them."""

    most: int = 0
    now: int = 0

    async def send(self, request: Request) -> Answer:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.Event().wait()
        finally:
            self.now -= 1
        raise AssertionError("never")


def test_a_sweep_over_hanging_pods_is_bounded_in_time_and_connections() -> None:
    hanging = Hanging()
    ray = StandInRay(token="t", metrics=DRIVER)

    async def story(_: RuntimeSource, build: Callable[..., Run]) -> None:
        source = RuntimeSource(reach_pod=lambda namespace, pod: hanging, sweep_seconds=0.5)
        reading = await source.read(build(200))
        assert reading.progress is not None  # the driver has answered
        assert reading.progress.ratio == 0.5
        assert_told(reading.unknown, "… 400 GPUs … 0 … t-0")
        assert hanging.most == MAX_CONNECTIONS
        assert hanging.now == 0

    play(ray, story)


def test_hanging_pods_do_not_delay_other_namespaces() -> None:
    hanging = Hanging()
    ray = StandInRay(token="t", metrics=DRIVER, node_metrics=GPUS)

    async def run() -> None:
        async with ray, aiohttp.ClientSession() as session:
            answering = ray.reach_pod(session)
            source = RuntimeSource(
                reach_pod=lambda namespace, pod: (
                    hanging if namespace == "team" else answering(namespace, pod)
                ),
                sweep_seconds=60.0,
            )
            first = build_run(ray, session, 200)
            sweep = asyncio.create_task(source.read(first))
            while hanging.now < MAX_CONNECTIONS:
                await asyncio.sleep(0)
            owner = Owner(name="clicks", namespace="other", uid="2")
            reading = await source.read(replace(build_run(ray, session, 1), owner=owner))
            assert reading.progress is not None
            assert reading.progress.gpu_utilization_ratio == pytest.approx(0.7)
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)

    asyncio.run(run())


def test_a_sweep_begins_with_pods_that_failed_before() -> None:
    clock = Clock()
    asked: list[str] = []
    ray = StandInRay(token="t", metrics=DRIVER)

    @dataclass
    class Named:
        name: str

        async def send(self, request: Request) -> Answer:
            asked.append(self.name)
            if self.name in failing:
                raise RayUnreachable("refused")
            return Answer(status=200, content=GPUS.encode())

    def reach(namespace: str, pod: Pod) -> Endpoint:
        return Named(pod.name)

    failing = ["t-1"]

    async def story(_: RuntimeSource, build: Callable[..., Run]) -> None:
        source = RuntimeSource(reach_pod=reach, now=clock)
        assert "t-1: refused" in (await source.read(build(3))).unknown
        clock.seconds, failing[:] = 15.0, []
        asked.clear()
        assert "t-1" not in (await source.read(build(3))).unknown
        assert asked == ["t-1", "t-0", "t-2"]

    play(ray, story, clock)


def test_a_cancelled_pass_cancels_its_requests() -> None:
    hanging = Hanging()
    ray = StandInRay(token="t", metrics=DRIVER)

    async def story(_: RuntimeSource, build: Callable[..., Run]) -> None:
        source = RuntimeSource(reach_pod=lambda namespace, pod: hanging)
        reading = asyncio.create_task(source.read(build(2)))
        while not hanging.now:
            await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert hanging.now == 0

    play(ray, story)


def test_ray_still_has_this_gauge_and_label() -> None:
    assert FAMILY.removeprefix("ray_") in METRICS_GAUGES
    assert "GpuIndex" in GPU_TAG_KEYS
