"""`python -m benchmarks.operator`: the operator under load, against a bare client."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

import numpy as np

from benchmarks.harness.cells import Cell, Document, Values
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.operator.acting import TOKEN, operating
from benchmarks.operator.stage import Stage, at_once, build_children, build_experiment, staged
from dataset_operator.testing import StandInRay
from pipeline_runtime.config import KIND

BARE, OPERATOR = "bare client", "operator"
_SETTLE_SECONDS: Final = 20.0  # a period of passes, for those that the last writes trigger
_PAGE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 10.0  # of a changing experiment, after the operator has taken a change
_FAILED_SHARE: Final = 0.2  # of changes that make the driver fail; the others are edits
_MAX_CHANGING: Final = 200  # experiments that change, in the largest run
_SEED: Final = 7


def _metric(name: str, label: str, *, is_drawn: bool = False) -> Metric:
    return Metric(name=name, label=label, is_compared=False, is_drawn=is_drawn)


BENCHMARK = Benchmark(
    name="operator",
    module="operator",
    title="The operator under load",
    text="API server, etcd, scheduler, KubeRay, kwok's pods and the operator share this machine, "
    "so ratios and counts apply elsewhere too, and seconds do not. Both arms created the same "
    "clusters, by a digest of their specs. How to read it: "
    "[docs/operating/scaling.md](../../docs/operating/scaling.md).",
    metrics=(
        Metric(name="steadySeconds", label="seconds until all train"),
        _metric("cores", "cores", is_drawn=True),
        _metric("rssMiB", "MiB", is_drawn=True),
        _metric("requestsPerSecond", "requests/s"),
        _metric("requestsPerExperiment", "requests per experiment"),
        _metric("writes", "writes"),
        _metric("passP50", "pass, ms, p50"),
        _metric("passP99", "pass, ms, p99"),
        _metric("editP50", "edit, s, p50"),
        _metric("editP99", "edit, s, p99"),
        _metric("kibPerExperiment", "KiB per experiment"),
    ),
    targets=(
        Target(
            text="time until all train over a bare client's, at most 3",
            metric="steadySeconds",
            arms=(OPERATOR,),
            at_most=3.0,
            by_bound=False,
        ),
        Target(
            text="KiB per experiment that trains, at most 100",
            metric="kibPerExperiment",
            at_most=100.0,
            of_ratio=False,
            by_bound=False,
        ),
        Target(
            text="writes for suspended experiments, none",
            metric="suspendedWrites",
            at_most=0.0,
            of_ratio=False,
            by_bound=False,
        ),
    ),
    arm_label="client",
    x_label="experiments",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of an arm.

    Attributes:
        seconds: until everything was steady.
        digest: of the created clusters.
        windows: measurements of the operator by the name of the period.
    """

    seconds: float = 0.0
    digest: str = ""
    windows: dict[str, Values] = field(default_factory=dict)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Compare both arms at every size, and measure suspended experiments."""
    sizes = sorted({options.size, *options.sizes})
    trained: dict[int, Values] = {}
    for size in sizes:
        kept: list[Found] = []
        seconds_of_change = 60 * options.minutes if size == sizes[-1] else 0
        act = partial(operator, size, hold=options.hold, seconds_of_change=seconds_of_change)
        yield measure(
            f"{size} experiments, from nothing",
            {
                BARE: partial(run_arm, partial(bare, size), []),
                OPERATOR: partial(run_arm, act, kept),
            },
            Rounds(count=options.rounds if size == options.size else 1, warmups=0),
            x=size,
        )
        middle = sorted(kept, key=lambda one: one.seconds)[(len(kept) - 1) // 2]
        trained[size] = middle.windows["all train"]
        yield from describe(size, middle)
    if len(trained) > 1:
        kib = 2**10 * find_slope({size: values["rssMiB"][0] for size, values in trained.items()})
        yield Cell(name="growth", base="", arms={OPERATOR: {"kibPerExperiment": [kib]}})
    found = asyncio.run(asleep(sizes[-1], hold=options.hold))
    found.windows["suspended"]["suspendedWrites"] = found.windows["suspended"]["writes"]
    yield from describe(sizes[-1], found)


def run_arm(work: Callable[[], Coroutine[Any, Any, Found]], kept: list[Found]) -> Sample:
    """Run an arm, and keep what it found."""
    found = asyncio.run(work())
    kept.append(found)
    return Sample({"steadySeconds": found.seconds}, found.digest)


def describe(size: int, found: Found) -> Iterator[Cell]:
    """Yield a cell for each period in which an operator was measured."""
    for period, values in found.windows.items():
        x = size if period == "all train" else None
        yield Cell(name=f"{size} experiments, {period}", base="", arms={OPERATOR: values}, x=x)


def find_slope(values: dict[int, float]) -> float:
    """Return the slope of values over their sizes by least squares."""
    return float(np.polyfit(list(values), list(values.values()), 1)[0])


async def bare(size: int) -> Found:
    """Create all clusters and their companion objects, and wait for KubeRay."""
    async with staged() as stage:
        families = [build_children(index) for index in range(size)]

        async def create(family: list[tuple[bool, Document]]) -> None:
            for is_applied, child in family:
                await (stage.kube.apply if is_applied else stage.kube.create)(child)

        began = time.monotonic()
        await at_once(partial(create, family) for family in families)
        seconds = await stage.clusters_ready(size) - began
        return Found(seconds=seconds, digest=await stage.digest())


async def operator(size: int, *, hold: float, seconds_of_change: float) -> Found:
    """Measure from creation until all experiments train, while all train, and while some change."""
    async with staged() as stage, StandInRay(token=TOKEN) as ray:
        training = asyncio.create_task(progress(ray))
        async with operating(stage.box.kubeconfig, stage.folder, ray) as acting:
            async with acting.measuring("until all train", size):
                began = time.monotonic()
                await stage.create(build_experiment(index) for index in range(size))
                await stage.clusters_ready(size)
                taken = await stage.experiments_are("Training", size) - began
            digest = await stage.digest()
            await asyncio.sleep(_SETTLE_SECONDS)
            async with acting.measuring("all train", size):
                await asyncio.sleep(hold)
            if seconds_of_change:
                async with acting.measuring("some change", size):
                    lags = await change(stage, ray, min(size, _MAX_CHANGING), seconds_of_change)
                edits = {f"editP{p}": [float(np.quantile(lags, p / 100))] for p in (50, 99)}
                acting.windows["some change"] |= edits | {"edits": [float(len(lags))]}
        training.cancel()
        return Found(seconds=taken, digest=digest, windows=acting.windows)


async def asleep(size: int, *, hold: float) -> Found:
    """Measure suspended experiments, which have no cluster and do not change."""
    async with (
        staged() as stage,
        StandInRay(token=TOKEN) as ray,
        operating(stage.box.kubeconfig, stage.folder, ray) as acting,
    ):
        await stage.create(build_experiment(index, suspend=True) for index in range(size))
        await stage.experiments_are("Suspended", size)
        await asyncio.sleep(_SETTLE_SECONDS)
        async with acting.measuring("suspended", size):
            await asyncio.sleep(hold)
        return Found(windows=acting.windows)


async def progress(ray: StandInRay) -> None:
    """Let the drivers make progress: their metrics change again and again."""
    for step in range(1, 1_000_000):
        ray.metrics = (
            f"lastmile_progress_ratio {min(0.99, step / 1000)}\n"
            f"lastmile_samples_per_second {100_000 + step}\n"
            f'lastmile_training_metric{{name="loss"}} {1 / step}\n'
        )
        await asyncio.sleep(_PAGE_SECONDS)


async def change(stage: Stage, ray: StandInRay, number: int, seconds: float) -> list[float]:
    """Change experiments continuously; return the seconds that each edit took the operator."""
    deadline, random = time.monotonic() + seconds, Random(_SEED)
    lags: list[float] = []

    async def live(index: int) -> None:
        metadata = build_experiment(index)["metadata"]
        key = (KIND, metadata["namespace"], metadata["name"])
        turn = index
        await asyncio.sleep(random.random() * _PAUSE_SECONDS)
        while time.monotonic() < deadline:
            if random.random() < _FAILED_SHARE:
                document = await stage.kube.get(*key) or {}
                name = document.get("status", {}).get("submission", {}).get("id")
                if name in ray.jobs:
                    ray.end(name, "FAILED", message="a benchmark's", driver_exit_code=1)
            else:
                turn += 1
                began = time.monotonic()
                workers = {"minReplicas": 1 + turn % 3, "maxReplicas": 3}
                await stage.kube.patch(*key, {"spec": {"dataWorkers": workers}})
                generation = (await stage.kube.get(*key) or {})["metadata"]["generation"]
                await taken.wait(key[1:], generation)
                lags.append(time.monotonic() - began)
            await asyncio.sleep(_PAUSE_SECONDS)

    async with stage.following() as taken, asyncio.TaskGroup() as tasks:
        for index in range(number):
            tasks.create_task(live(index))
    return lags


if __name__ == "__main__":
    parser = build_parser("operator", __doc__, rounds=5)
    add = parser.add_argument
    add("--size", type=int, default=100, metavar="N", help="experiments in each round")
    add("--sizes", type=int, nargs="*", default=[500, 1000], metavar="N", help="sizes to run once")
    add("--minutes", type=float, default=10.0, metavar="X", help="duration of the changes")
    add("--hold", type=float, default=60.0, metavar="X", help="seconds to measure while all train")
    sys.exit(run(BENCHMARK, parser, compare))
