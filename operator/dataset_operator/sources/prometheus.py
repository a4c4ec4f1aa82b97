"""Reads metrics from a Prometheus, for platforms with DCGM or where pods cannot be reached.

Each pass sends two queries at once: for the driver's metrics as last scraped, and for the
utilisation of the trainers' GPUs. Queries select the experiment's namespace and pods by name.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import aiohttp

from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.errors import MetricsUnreachable
from dataset_operator.observed import Pod, Progress
from dataset_operator.ray.runtime_metrics import NAMES, parse_progress
from dataset_operator.ray.scaling_signals import PREFIX
from dataset_operator.scheduling.places import outside
from dataset_operator.settings import PrometheusSettings
from dataset_operator.sources.answers import (
    Series,
    build_page,
    explain_refusal,
    parse_answer,
    parse_gpus,
)
from dataset_operator.sources.base import (
    STALE_SCRAPES,
    PerNamespace,
    Reading,
    Run,
    build_reading,
    finish,
    result_of,
)
from dataset_operator.sources.gpus import GpuBook, GpuUse

_PATH = "/api/v1/query"
# A page of 50 lines over three scrapes has 30 KB; the series of 1,000 GPUs have 500 KB.
MAX_ANSWER_BYTES = 1 << 20
_MAX_TOKEN_CHARS = 1 << 14
_MAX_QUOTED_CHARS = 300
_CHUNK_BYTES = 1 << 16
# Simultaneous queries of all experiments, and of those in one namespace.
MAX_QUERIES = 8
MAX_QUERIES_EACH = 4
# Requests time out by themselves; cancel only those that do not within this time.
_GRACE_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class PrometheusSource:
    """See `MetricsSource`; one for the whole process.

    Attributes:
        now: seconds of a clock that only goes forward.
    """

    settings: PrometheusSettings
    session: aiohttp.ClientSession
    now: Callable[[], float] = time.monotonic
    # Prometheus itself drops stale values, so the book keeps them only until the next pass.
    _book: GpuBook = field(default_factory=lambda: GpuBook(stale_seconds=PERIOD_SECONDS))
    _of_all: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_QUERIES), init=False
    )
    _of_each: PerNamespace = field(
        default_factory=lambda: PerNamespace(MAX_QUERIES_EACH), init=False
    )

    async def read(self, run: Run) -> Reading:
        """See MetricsSource."""
        async with outside():
            driver = asyncio.create_task(self._ask_driver(run))
            gpus = asyncio.create_task(self._ask_gpus(run))
            await finish([driver, gpus], self.settings.timeout_seconds + _GRACE_SECONDS)
        progress, failure = result_of(driver)
        use, gpu_failure = self._take_gpus(run, gpus)
        return build_reading(progress, _say("the driver", failure), use, _say("GPUs", gpu_failure))

    async def _ask_driver(self, run: Run) -> Progress | None:
        if run.head is None:
            raise MetricsUnreachable("there is no head pod")
        series = await self._ask(
            run.owner.namespace, build_driver_query(run, run.head, self.settings)
        )
        page = build_page(series, run.since.timestamp())
        if not page:
            window = STALE_SCRAPES * self.settings.scrape_seconds
            raise MetricsUnreachable(
                f"it has scraped no {PREFIX}* of pod {run.head.name} in this attempt and the last "
                f"{window} s: see metrics.prometheus.namespaceLabel, podLabel and scrapeSeconds"
            )
        return parse_progress(page)

    async def _ask_gpus(self, run: Run) -> dict[str, float]:
        if not run.num_gpus or not run.trainer_pods:
            return {}
        series = await self._ask(run.owner.namespace, build_gpu_query(run, self.settings))
        return parse_gpus(series, 100.0 if self.settings.gpu_unit == "Ratio" else 1.0)

    def _take_gpus(
        self, run: Run, task: asyncio.Task[dict[str, float]]
    ) -> tuple[GpuUse | None, str]:
        if not run.num_gpus:
            return None, ""
        percents, failure = result_of(task)
        now = self.now()
        if percents is not None:
            self._book.take_in(run.owner, percents, now)
        use, why = self._book.judge(run.owner, run.num_gpus, now)
        return use, failure or f"{why}: see metrics.prometheus.gpuQuery" if why else ""

    async def _ask(self, namespace: str, query: str) -> list[Series]:
        """Send a query and return its series. Raises MetricsUnreachable."""
        url = self.settings.url + _PATH
        timeout = aiohttp.ClientTimeout(total=self.settings.timeout_seconds)
        try:
            async with (
                self._of_each.of(namespace),
                self._of_all,
                self.session.post(
                    url,
                    data={"query": query, "timeout": f"{self.settings.timeout_seconds}s"},
                    headers=self._authorise(),
                    ssl=self._trust(),
                    timeout=timeout,
                    allow_redirects=False,
                ) as response,
            ):
                content = await _read(response)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            said = str(error) or type(error).__name__
            raise MetricsUnreachable(f"{url}: {said[:_MAX_QUOTED_CHARS]}") from error
        if response.status != 200:
            said = explain_refusal(content) or content.decode(errors="replace").strip()
            said = f"HTTP {response.status}: {said[:_MAX_QUOTED_CHARS]}"
            raise MetricsUnreachable(f"{url}: {said}")
        return parse_answer(content)

    def _authorise(self) -> dict[str, str]:
        if self.settings.token_file is None:
            return {}
        with Path(self.settings.token_file).open(errors="replace") as file:
            token = file.read(_MAX_TOKEN_CHARS).strip()
        if not token.isascii() or not token.isprintable():
            raise MetricsUnreachable(f"{self.settings.token_file}: must contain a token")
        return {"Authorization": f"Bearer {token}"}

    def _trust(self) -> ssl.SSLContext | bool:
        """Load the certificate authority for each query anew, since clusters rotate it."""
        if self.settings.ca_file is None:
            return True
        return ssl.create_default_context(cafile=self.settings.ca_file)


def build_driver_query(run: Run, head: Pod, settings: PrometheusSettings) -> str:
    """Build the query for the driver's metrics in the last three scrapes."""
    names = "|".join((*NAMES, f"{PREFIX}.+"))
    window = STALE_SCRAPES * settings.scrape_seconds
    return (
        f'{{__name__=~"{names}",{settings.namespace_label}="{run.owner.namespace}",'
        f'{settings.pod_label}="{head.name}"}}[{window}s]'
    )


def build_gpu_query(run: Run, settings: PrometheusSettings) -> str:
    """Build the query for the trainers' GPUs in the last three scrapes."""
    pods = "|".join(pod.name.replace(".", r"\\.") for pod in run.trainer_pods)
    selector = Template(settings.gpu_query).safe_substitute(
        namespace=run.owner.namespace, pods=pods
    )
    return f"{selector.strip()}[{STALE_SCRAPES * settings.scrape_seconds}s]"


async def _read(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            raise MetricsUnreachable(f"the answer is larger than {MAX_ANSWER_BYTES} B")
    return bytes(content)


def _say(what: str, failure: str) -> str:
    return f"Prometheus on {what}: {failure}" if failure else ""
