"""The Prometheus source against a real Prometheus that scrapes real pages of the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from facts import assert_told
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_server import SCRAPE_SECONDS, Prometheus
from rank_snapshots import build_snapshot

from dataset_operator.api import HEAD, TRAINERS
from dataset_operator.names import Owner
from dataset_operator.observed import Pod
from dataset_operator.ray.runtime_metrics import parse_progress
from dataset_operator.settings import PrometheusSettings
from dataset_operator.sources.base import Reading, Run
from dataset_operator.sources.prometheus import PrometheusSource
from dataset_operator.testing import StandInRay
from pipeline_runtime.feed.base import WorkerUsage
from pipeline_runtime.feed.over_ray.model_pool import PoolReading
from pipeline_runtime.iceberg.pins import Pin
from pipeline_runtime.metrics import Pace, RunCollector
from pipeline_runtime.output.job import Progress
from pipeline_runtime.report import Materialized
from pipeline_runtime.run.inference_metrics import InferenceCollector
from pipeline_runtime.run.reported_inference import ReportedInference
from pipeline_runtime.run.reported_tables import ReportedTables
from pipeline_runtime.run.table_metrics import TableCollector
from pipeline_runtime.run.writing.writing_metrics import WritingCollector
from pipeline_runtime.steps.predict.serving_counts import ServingCounts
from tools.dashboards.experiment import EXPERIMENT
from tools.dashboards.fleet import FLEET

OWNER = Owner(name="clicks", namespace="team", uid="1")
PODS = (
    Pod(name="clicks-head", uid="h", role=HEAD, ready=True, ip="10.0.0.1"),
    Pod(name="clicks-trainer", uid="t", role=TRAINERS, ready=True, ip="10.0.0.2"),
)
BEFORE = datetime.now(UTC) - timedelta(hours=1)
USAGE = WorkerUsage(ready=2, read=12.0, compute=8.0, blocked_output=2.0, idle=1.0, rows=4000)
# As DCGM's exporter 4 writes them in Kubernetes.
DCGM = (
    'DCGM_FI_DEV_GPU_UTIL{{gpu="{0}",UUID="GPU-{0}",device="nvidia{0}",modelName="NVIDIA H200",'
    'Hostname="node-1",container="ray-head",namespace="team",pod="{1}"}} {2}\n'
)
RAY = 'ray_node_gpus_utilization{{GpuDeviceName="NVIDIA H200",GpuIndex="{0}",GpuUuid="{0}"}} {1}\n'


def page_of_driver(rows: int) -> bytes:
    """Return the metrics page of a driver, written by the runtime's own code."""
    longest = {"production": 4.0, "transfer": 0.0, "batching": 0.1, "collate": 0.25}
    snapshot = build_snapshot(
        usage=USAGE,
        seconds=20.0,
        step=32,
        samples=rows,
        attempt_samples=rows,
        device="cuda:0",
        longest=longest,
        loop_seconds=16.5,
    )
    registry, collector = CollectorRegistry(), RunCollector([(0, "read")])
    pace = Pace(progress_ratio=0.5, samples_per_second=1e3, metrics={'an "odd"\n\\one': 0.25})
    collector.update({0: snapshot}, pace)
    registry.register(collector)
    return generate_latest(registry)


def page_of_writer(retries: int) -> bytes:
    """Return the page of a driver that keeps rows, reads a table and writes one."""
    writing = WritingCollector([(0, "read")], planned_rows=1000)
    writing.update(
        Progress(
            phase="Committing", rows=700, files=3, num_bytes=900, commits=2, commit_retries=retries
        )
    )
    pin = Pin(catalog="lake", table="db.rows", table_uuid="u", snapshot_id=str(2**62), schema_id=0)
    kept = Materialized(
        catalog="lake", table="db.cache", state="Miss", partitions=3, complete_partitions=2
    )
    registry = CollectorRegistry()
    registry.register(writing)
    registry.register(TableCollector(ReportedTables(pins=(pin,), materialization=kept)))
    return generate_latest(registry)


async def ask(prometheus: Prometheus, query: str) -> list[float]:
    async with aiohttp.ClientSession() as session:
        url = f"{prometheus.url}/api/v1/query"
        async with session.get(url, params={"query": query}) as response:
            document = await response.json()
    return [float(series["value"][1]) for series in document["data"]["result"]]


async def until(
    prometheus: Prometheus, says: Callable[[Reading], bool], gpus: int = 0, **settings: Any
) -> Reading:
    """Ask until it is so; the time limit of the test ends the wait."""
    known = {"url": prometheus.url, "scrape_seconds": 2 * SCRAPE_SECONDS} | settings
    since = known.pop("since", BEFORE)
    async with aiohttp.ClientSession() as session:
        while True:
            run = Run(
                owner=OWNER,
                jobs=StandInRay(token="t").connect(session)(OWNER, "t"),
                pods=PODS,
                trainers=1,
                gpus_per_trainer=gpus,
                since=since,
            )
            # Anew each time, so that nothing is held from the reading before.
            source = PrometheusSource(settings=PrometheusSettings(**known), session=session)
            reading = await source.read(run)
            if says(reading):
                return reading
            await asyncio.sleep(0.2)


def rows_of(reading: Reading) -> float | None:
    trainer = reading.progress.counters.trainer if reading.progress else None
    return trainer.rows if trainer else None


def utilization_of(reading: Reading) -> float | None:
    return reading.progress.gpu_utilization_ratio if reading.progress else None


def test_a_drivers_page_comes_through_as_if_it_had_been_asked(prometheus: Prometheus) -> None:
    page = prometheus.exporter.pages["/driver"] = page_of_driver(4096)
    prometheus.exporter.pages["/another"] = page_of_driver(7)  # of another namespace
    reading = asyncio.run(until(prometheus, lambda reading: reading.progress is not None))
    assert reading.progress == parse_progress(page.decode())
    assert rows_of(reading) == 4096.0
    assert reading.progress is not None
    assert reading.progress.counters.workers is not None
    assert reading.unknown == ""


def test_the_dashboards_find_the_tables_of_a_writer(prometheus: Prometheus) -> None:
    pages = prometheus.exporter.pages
    pages["/driver"] = page_of_writer(4)
    reading = asyncio.run(until(prometheus, lambda reading: reading.progress is not None))
    assert reading.progress == parse_progress(pages["/driver"].decode())
    pages["/driver"] = page_of_writer(40)
    [row] = [row for row in EXPERIMENT.rows if row.title.startswith("Tables")]
    [retries] = [panel for panel in FLEET.panels if panel.title.startswith("Commits tried again")]
    wanted = {
        "Files: files": 3.0,
        "Mean size of a file: mean size": 300.0,
        "Commits: commits": 2.0,
        "Commits: tried again": 40.0,
        "Partitions: needed": 3.0,
        "Partitions: complete": 2.0,
    }

    async def story() -> None:
        while (await ask(prometheus, "lastmile_output_commit_retries_total"))[:1] != [40.0]:
            await asyncio.sleep(0.2)
        for panel in (*row.panels, retries):
            for query in panel.queries:
                expr = query.expr.replace("$namespace", "team").replace("$experiment", "clicks")
                [value] = await ask(prometheus, expr)
                name = f"{panel.title}: {query.legend}"
                assert value == wanted.get(name, value), name
                assert value > 0.0, name

    asyncio.run(story())


def page_of_inference(rows: int) -> bytes:
    """Return the page of a driver with two inference workers, of which one is busy."""
    inference, registry = ReportedInference(), CollectorRegistry()
    counts = ServingCounts(num_rows=rows, busy_seconds=rows / 1000, num_waiting=3)
    known = {"a": counts, "b": ServingCounts()}
    inference.record("large", PoolReading(workers=("a", "b"), counts=known))
    registry.register(InferenceCollector(inference))
    return generate_latest(registry)


def test_the_dashboard_shows_inference_workers_and_their_gpus(prometheus: Prometheus) -> None:
    pages = prometheus.exporter.pages
    labels = 'experiment="clicks",GpuIndex="0"'
    pages["/ray"] = (
        f'ray_node_gpus_utilization{{{labels},pod="clicks-large",role="inference-large"}} 70\n'
        f'ray_node_gpus_utilization{{{labels},pod="clicks-trainer",role="trainers"}} 20\n'
    ).encode()
    [row] = [row for row in EXPERIMENT.rows if row.title == "Inference workers"]
    queries = {f"{p.title}: {q.legend}": q.expr for p in row.panels for q in p.queries}
    [queries["trainers"]] = [
        query.expr
        for panel in EXPERIMENT.panels
        for query in panel.queries
        if panel.title == "GPU utilisation" and query.legend.startswith("{{pod}}")
    ]
    variables = {"$namespace": "team", "$experiment": "clicks", "$__rate_interval": "1m"}
    for variable, value in variables.items():
        queries = {name: expr.replace(variable, value) for name, expr in queries.items()}

    async def story() -> None:
        rows, rate = 0, 0.0
        while rate == 0.0:
            rows += 1000
            pages["/driver"] = page_of_inference(rows)
            await asyncio.sleep(SCRAPE_SECONDS)
            rate = sum(await ask(prometheus, queries["Rows scored per second: {{group}}"]))
        found = {name: await ask(prometheus, expr) for name, expr in queries.items()}
        [busy] = found.pop("Busy inference workers: {{group}}")
        # Time of the busy one of two, at 1,000 rows per second.
        [rate] = found.pop("Rows scored per second: {{group}}")
        assert busy == pytest.approx(rate / 1000 / 2, rel=0.5)
        assert found == {
            "Inference workers: {{group}}": [2.0],
            "Busy inference workers: {{pod}} {{GpuIndex}}": [0.7],
            "Requests that wait: {{group}}": [3.0],
            "trainers": [0.2],
        }

    asyncio.run(story())


def test_counters_go_on_and_begin_anew_as_they_are(prometheus: Prometheus) -> None:
    for rows in (4096, 8192, 17):
        prometheus.exporter.pages["/driver"] = page_of_driver(rows)
        asyncio.run(until(prometheus, lambda reading: rows_of(reading) == float(rows)))  # noqa: B023


def test_a_series_that_is_gone_from_the_page_is_unknown_at_once(prometheus: Prometheus) -> None:
    page = prometheus.exporter.pages["/driver"] = page_of_driver(4096)
    asyncio.run(until(prometheus, lambda reading: rows_of(reading) == 4096.0))
    lines = page.splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(b"lastmile_run_steps_total")]
    prometheus.exporter.pages["/driver"] = b"".join(kept)
    reading = asyncio.run(until(prometheus, lambda reading: rows_of(reading) is None))
    assert reading.progress is not None  # by when the older sample would still be young enough
    assert reading.progress.ratio == 0.5
    assert "lastmile_run_*" in reading.unknown


def test_a_driver_that_is_scraped_no_more_is_unknown_after_three_scrapes(
    prometheus: Prometheus,
) -> None:
    prometheus.exporter.pages["/driver"] = page_of_driver(4096)
    asyncio.run(until(prometheus, lambda reading: rows_of(reading) == 4096.0))
    del prometheus.exporter.pages["/driver"]
    reading = asyncio.run(until(prometheus, lambda reading: reading.progress is None))
    assert_told(reading.unknown, "… lastmile_run_* … clicks-head … 6 s")


def test_what_was_scraped_before_the_attempt_is_not_its_own(prometheus: Prometheus) -> None:
    prometheus.exporter.pages["/driver"] = page_of_driver(4096)
    asyncio.run(until(prometheus, lambda reading: rows_of(reading) == 4096.0))
    later = datetime.now(UTC) + timedelta(hours=1)
    reading = asyncio.run(until(prometheus, lambda reading: True, since=later))
    assert reading.progress is None


def test_a_driver_that_two_targets_tell_of_is_told_by_one(prometheus: Prometheus) -> None:
    pages = prometheus.exporter.pages
    pages["/driver"] = pages["/again"] = page_of_driver(4096)
    asyncio.run(until(prometheus, lambda reading: rows_of(reading) == 4096.0))
    del pages["/driver"]
    pages["/again"] = page_of_driver(8192)
    reading = asyncio.run(until(prometheus, lambda reading: rows_of(reading) == 8192.0))
    assert reading.progress == parse_progress(pages["/again"].decode())


def test_dcgms_gpus_are_those_of_the_trainers_pods(prometheus: Prometheus) -> None:
    told = [(0, "clicks-trainer", 90), (1, "clicks-trainer", 50), (2, "another", 3)]
    page = "".join(DCGM.format(*each) for each in told)
    prometheus.exporter.pages["/dcgm"] = page.encode()
    reading = asyncio.run(
        until(prometheus, lambda reading: utilization_of(reading) is not None, gpus=2)
    )
    assert reading.progress is not None
    assert utilization_of(reading) == 0.7
    assert reading.progress.slowest_gpu_ratio == 0.5
    more = asyncio.run(until(prometheus, lambda reading: True, gpus=4))
    assert utilization_of(more) is None
    assert_told(more.unknown, "… 4 GPUs … 2 … metrics.prometheus.gpuQuery")


def test_without_dcgm_rays_own_word_on_gpus_will_do(prometheus: Prometheus) -> None:
    prometheus.exporter.pages["/ray"] = RAY.format(0, 40).encode()
    query = 'ray_node_gpus_utilization{namespace="$namespace",pod=~"$pods"}'
    asyncio.run(
        until(prometheus, lambda reading: utilization_of(reading) == 0.4, gpus=1, gpu_query=query)
    )
    prometheus.exporter.pages["/ray"] = RAY.format(0, 0).encode()
    reading = asyncio.run(
        until(prometheus, lambda reading: "but 0" in reading.unknown, gpus=1, gpu_query=query)
    )
    assert utilization_of(reading) is None


def test_a_query_that_prometheus_refuses_is_told_in_its_words(prometheus: Prometheus) -> None:
    prometheus.exporter.pages["/driver"] = page_of_driver(4096)
    ratio = '100 * DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod=~"$pods"}'
    reading = asyncio.run(
        until(prometheus, lambda reading: rows_of(reading) == 4096.0, gpus=1, gpu_query=ratio)
    )
    assert "HTTP 400: " in reading.unknown
    assert "parse error" in reading.unknown
