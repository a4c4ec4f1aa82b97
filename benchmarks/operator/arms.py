"""Defines the arms: the work of each on a stage, and the measurements meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Self

import aiohttp
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.cells import Values
from benchmarks.harness.errors import BenchmarkError
from benchmarks.operator.acting import LOOPBACK, SILENT, TOKEN, Place
from benchmarks.operator.stage import (
    Document,
    Stage,
    Taken,
    at_once,
    build_children,
    build_experiment,
    staged,
)
from dataset_operator.testing import StandInRay
from pipeline_runtime.config import KIND

SETTLE_SECONDS: Final = 20.0  # a period of passes, for those that the last writes trigger
_STOP_SECONDS: Final = 60.0
_PAGE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 10.0  # of a changing experiment, after the operator has taken a change
_LOOK_SECONDS: Final = 0.5
_READ_BYTES: Final = 1 << 16
_FAILED_SHARE: Final = 0.2  # of changes that make the driver fail; the others are edits
_SEED: Final = 7
# Beside the silent heads: experiments of the other tenant, its edits, and the pause between them.
_EDITED: Final = 2
_EDITS: Final = 10
_EDIT_PAUSE_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of an arm.

    Attributes:
        seconds: until everything was steady.
        digest: of the created clusters.
        windows: measurements of the operator by the name of the period.
        edits: seconds until the status of an experiment reflected an edit.
        most_open: connections to silent heads that were open at the same time.
    """

    seconds: float = 0.0
    digest: str = ""
    windows: dict[str, Values] = field(default_factory=dict)
    edits: list[float] = field(default_factory=list)
    most_open: int = 0


async def bare(size: int) -> Found:
    """Create all clusters and their companion objects, and wait for KubeRay."""
    async with staged() as stage:
        families = [build_children(index) for index in range(size)]

        async def create(family: list[tuple[bool, Document]]) -> None:
            for is_applied, child in family:
                await (stage.kube.apply if is_applied else stage.kube.create)(child)

        began = time.monotonic()
        await at_once([lambda family=family: create(family) for family in families])  # type: ignore[misc]
        seconds = await stage.clusters_ready(size) - began
        return Found(seconds=seconds, digest=await stage.digest())


async def operator(
    size: int, *, hold: float, changing: int, minutes: float, remembers: bool = True
) -> Found:
    """Measure from creation until all experiments train, while all train, and while some change."""
    async with staged() as stage, StandInRay(token=TOKEN) as ray, telling(ray):
        async with operating(stage, ray, remembers=remembers) as acting:
            began = time.monotonic()
            await _create(stage, size)
            await stage.clusters_ready(size)
            seconds = await stage.experiments_are("Training", size) - began
            await acting.end("from nothing", size)
            digest = await stage.digest()
            await asyncio.sleep(SETTLE_SECONDS)
            await acting.window()
            await asyncio.sleep(hold)
            await acting.end("all train", size)
            edits: list[float] = []
            if changing:
                await acting.window()
                edits = await change(stage, ray, min(size, changing), 60.0 * minutes)
                await acting.end("some change", size)
        windows = acting.windows
    return Found(seconds=seconds, digest=digest, windows=windows, edits=edits)


async def asleep(size: int, *, hold: float) -> Found:
    """Measure suspended experiments, which have no cluster and do not change."""
    async with staged() as stage, StandInRay(token=TOKEN) as ray, operating(stage, ray) as acting:
        await _create(stage, size, suspend=True)
        await stage.experiments_are("Suspended", size)
        await asyncio.sleep(SETTLE_SECONDS)
        await acting.window()
        await asyncio.sleep(hold)
        await acting.end("suspended", size)
        return Found(windows=acting.windows)


async def silent(size: int) -> Found:
    """Measure one tenant's edits while another's heads accept connections and never answer."""
    async with (
        staged() as stage,
        StandInRay(token=TOKEN) as ray,
        telling(ray),
        NeverAnswering() as heads,
        operating(stage, ray, silent=heads.url) as acting,
    ):
        await _create(stage, _EDITED)
        await stage.experiments_are("Training", _EDITED)
        await _create(stage, size, namespace=SILENT)
        await stage.clusters_ready(size + _EDITED)
        await acting.window()
        edits = []
        async with stage.following() as taken:
            for turn in range(_EDITS):
                edits.append(await _edit(stage, taken, turn % _EDITED, turn))
                await asyncio.sleep(_EDIT_PAUSE_SECONDS)
        await acting.end("silent heads", size)
        return Found(windows=acting.windows, edits=edits, most_open=heads.most)


@dataclass(slots=True)
class NeverAnswering:
    """A server that accepts connections, reads requests and never answers.

    Attributes:
        most: the most connections that were open at the same time.
    """

    url: str = ""
    most: int = 0
    _open: int = 0
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        self.url = f"http://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        self.most = max(self.most, self._open)
        try:
            while await reader.read(_READ_BYTES):
                pass  # until the client gives up
        except ConnectionError:
            pass
        finally:
            self._open -= 1
            writer.close()


async def _create(stage: Stage, size: int, namespace: str = "", **spec: Any) -> None:
    documents = [build_experiment(index, namespace, **spec) for index in range(size)]
    await at_once([lambda document=d: stage.kube.create(document) for d in documents])  # type: ignore[misc]


async def change(stage: Stage, ray: StandInRay, number: int, seconds: float) -> list[float]:
    """Change experiments continuously; return the seconds that each edit took the operator."""
    deadline, random = time.monotonic() + seconds, Random(_SEED)
    lags: list[float] = []

    async def live(index: int) -> None:
        turn = index
        metadata = build_experiment(index)["metadata"]
        key = (KIND, metadata["namespace"], metadata["name"])
        await asyncio.sleep(random.random() * _PAUSE_SECONDS)
        while time.monotonic() < deadline:
            if random.random() < _FAILED_SHARE:
                document = await stage.kube.get(*key)
                name = ((document or {}).get("status") or {}).get("submission", {}).get("id")
                if name in ray.jobs:
                    ray.end(name, "FAILED", message="a benchmark's", driver_exit_code=1)
            else:
                turn += 1
                lags.append(await _edit(stage, taken, index, turn))
            await asyncio.sleep(_PAUSE_SECONDS)

    async with stage.following() as taken, asyncio.TaskGroup() as tasks:
        for index in range(number):
            tasks.create_task(live(index))
    return lags


async def _edit(stage: Stage, taken: Taken, index: int, turn: int) -> float:
    """Edit an experiment; return the seconds until its status reflects the new generation."""
    metadata = build_experiment(index)["metadata"]
    key = (KIND, metadata["namespace"], metadata["name"])
    spec = {"dataWorkers": {"minReplicas": 1 + turn % 3, "maxReplicas": 3}}
    began = time.monotonic()
    await stage.kube.patch(*key, {"spec": spec})
    generation = (await stage.kube.get(*key) or {})["metadata"]["generation"]
    await taken.wait(key[1:], generation)
    return time.monotonic() - began


@contextlib.asynccontextmanager
async def telling(ray: StandInRay) -> AsyncIterator[None]:
    """Let the drivers make progress: every five seconds their metrics change."""

    async def tell() -> None:
        step = 0
        while True:
            step += 1
            ray.metrics = (
                f"lastmile_progress_ratio {min(0.99, step / 1000)}\n"
                f"lastmile_samples_per_second {100_000 + step}\n"
                f'lastmile_training_metric{{name="loss"}} {1 / step}\n'
            )
            await asyncio.sleep(_PAGE_SECONDS)

    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()


# --- the operator's process ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """The metrics of the process at one moment."""

    at: float
    metrics: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def value(self, name: str) -> float:
        return self.metrics.get((name, ()), 0.0)

    def requests(self) -> Iterator[tuple[str, float]]:
        """Yield the number of requests so far for each verb, resource and code."""
        for (name, labels), value in self.metrics.items():
            if name == "lastmile_operator_api_request_seconds_count":
                given = dict(labels)
                yield f"{given['verb']} {given['resource']} {given['code']}", value


@dataclass(slots=True, kw_only=True)
class Acting:
    """A running operator; `window` begins a measurement, `end` records it under a name."""

    url: str
    notes: Path
    log: Path
    process: subprocess.Popen[bytes]
    windows: dict[str, Values] = field(default_factory=dict)
    _began: _Mark | None = None

    async def _look(self) -> _Mark:
        if self.process.poll() is not None:
            raise BenchmarkError(f"the operator ended: {self.log.read_text()[-2000:]}")
        async with aiohttp.ClientSession() as session, session.get(self.url) as answer:
            text = await answer.text()
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        return _Mark(at=time.time(), metrics=samples)

    async def window(self) -> None:
        """Begin a window."""
        self._began = await self._look()

    async def end(self, name: str, size: int) -> None:
        """End the window, and record it under a name."""
        before, after = self._began, await self._look()
        assert before is not None
        seconds = after.at - before.at
        known = dict(before.requests())
        requests = {what: n - known.get(what, 0.0) for what, n in after.requests()}
        num_requests = sum(requests.values())
        cpu = after.value("process_cpu_seconds_total") - before.value("process_cpu_seconds_total")
        self.windows[name] = {
            "cores": [cpu / seconds],
            "rssMiB": [after.value("process_resident_memory_bytes") / 2**20],
            "requestsPerSecond": [num_requests / seconds],
            "requestsPerExperiment": [num_requests / size],
            "writes": [sum(n for what, n in requests.items() if not what.startswith(_READS))],
            **self._summarize(before.at, after.at, size),
        }

    def _summarize(self, since: float, until: float, size: int) -> Values:
        """Summarize the passes that ended in a period: their share of those due, and their
        times."""
        lines = self.notes.read_text().splitlines()
        # The last line may be incomplete: the rest is still in the writer's buffer.
        rows = [row for line in lines if (row := _parse(line)) and since <= row[0] <= until]
        if not rows:
            return {}
        total, api, ray = (np.array([row[place] for row in rows]) for place in (2, 3, 4))
        times = (total, total - api, np.maximum(0.0, total - api - ray))
        quantiles = {
            f"{name}P{percent}": [1000 * float(np.quantile(each, percent / 100))]
            for name, each in zip(PASS_TIMES, times, strict=True)
            for percent in (50, 99)
        }
        return quantiles | {"duePasses": [len(rows) * LOOK_SECONDS / (until - since) / size]}


# Milliseconds of a pass: as a whole, without waits for the API server, and without those for Ray.
PASS_TIMES: Final = ("pass", "passWithoutApi", "passWithoutWaits")
LOOK_SECONDS: Final = 15.0  # between passes over an experiment that trains
_READS: Final = ("get ", "list ")


def _parse(line: str) -> list[Any] | None:
    with contextlib.suppress(ValueError):
        row: list[Any] = json.loads(line)
        return row
    return None


@contextlib.asynccontextmanager
async def operating(
    stage: Stage, ray: StandInRay, *, remembers: bool = True, silent: str = ""
) -> AsyncIterator[Acting]:
    """Run an operator, and shut it down in order."""
    folder = stage.folder
    port, log = folder / "port", folder / "operator.log"
    place = Place(
        kubeconfig=str(stage.box.kubeconfig),
        ports=ray.urls,
        notes=str(folder / "passes.jsonl"),
        port=str(port),
        remembers=remembers,
        silent=silent,
    )
    with log.open("wb") as stream:
        process = subprocess.Popen(place.command(), stdout=stream, stderr=stream)
    try:
        await _until(lambda: port.exists() and bool(port.read_text()), process, log)
        acting = Acting(
            url=f"http://{LOOPBACK}:{port.read_text()}/metrics",
            notes=Path(place.notes),
            log=log,
            process=process,
        )
        await acting.window()
        yield acting
        process.terminate()
        await asyncio.to_thread(process.wait, _STOP_SECONDS)
    finally:
        process.kill()
        process.wait()


async def _until(holds: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    while not holds():
        if process.poll() is not None:
            raise BenchmarkError(f"the operator ended: {log.read_text()[-2000:]}")
        await asyncio.sleep(_LOOK_SECONDS)
