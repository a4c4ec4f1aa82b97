"""Every query of the dashboards and the alerts, asked of a Prometheus that scraped a real run."""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from observed_pictures import take_pictures
from observed_stage import Observed, observing
from reconcile_stage import NAME

from tools.build_tools import find_prometheus
from tools.chart import BOARDS, BOARDS_FOLDER
from tools.cluster.box import Box
from tools.dashboards.experiment import EXPERIMENT, WRITERS
from tools.go_tools import ToolError

pytestmark = [pytest.mark.usefixtures("played"), pytest.mark.timeout(600)]

RULES = Path(__file__).parents[4] / "deploy" / "prometheus" / "rules.yaml"
SELECTOR = re.compile(r"lastmile_\w+(?:\{[^}]*\})?")
# Grafana's rate interval is four scrapes: a minute where one is made every 15 s, its default. An
# experiment that trains is passed over as seldom, so that a shorter window may hold no pass at all.
VALUES = {"$experiment": NAME, "$__rate_interval": "1m", "$__range": "1h"}
# What was to be seen for a moment alone, and is asked for over the whole run.
PASSED = {
    "lastmile-fleet / Queue time: waiting longest now": "it trains by now",
    'LastmileExperimentStuck / lastmile_experiment_phase{phase=~"Pending|Starting|Stopping"}': (
        "it trains by now"
    ),
}
# What is not to be seen here at all, and why.
ABSENT = {
    "lastmile-fleet / Passes that failed, by error: {{reason}}": "the API server answers",
    "lastmile-experiment / Memory of trainers: rank {{rank}}, GPU": "nobody here has a GPU",
    'LastmileWritingStalled / lastmile_output_phase{phase="Spooling"}': "it trains",
    "lastmile-fleet / Commits tried again, in an hour: {{namespace}}/{{experiment}}": "it trains",
    **{
        f"lastmile-experiment / {panel.title}: {query.legend}": "it trains on Parquet"
        for row in EXPERIMENT.rows
        if row.title.startswith("Tables")
        for panel in row.panels
        for query in panel.queries
    },
    **{
        f"lastmile-experiment / {panel.title}: {query.legend}": "it has no inference workers"
        for row in EXPERIMENT.rows
        if row.title == "Inference workers"
        for panel in row.panels
        for query in panel.queries
    },
    **{
        f"{alert} / lastmile_inference_{name}": "it has no inference workers"
        for alert, name in (
            ("LastmileInferenceSaturated", "busy_seconds_total"),
            ("LastmileInferenceSaturated", "workers"),
            ("LastmileInferenceSaturated", "waiting_requests"),
            ("LastmileInferenceWorkersMissing", "workers"),
        )
    },
    **{
        f"{alert} / lastmile_{prefix}_{name}": "it trains"
        for prefix in WRITERS
        for alert, name in (
            ("LastmileCommitsContended", "commit_retries_total"),
            ("LastmileCommitStalled", 'phase{phase="Committing"}'),
        )
    },
    "LastmileFilesSmall / lastmile_output_bytes": "it trains",
    "LastmileFilesSmall / lastmile_output_files": "it trains",
}
# What a slow machine shows for a moment: three scrapes of the driver that do not answer in time.
SELDOM = {
    "lastmile-fleet / Autoscaler is blind: {{reason}}",
    "LastmileAutoscalerBlind / lastmile_experiment_condition"
    '{type="ScalingActive", reason="MetricsUnknown"}',
}
# Where pictures are to go; those of the docs are made so (docs/operating/observe.md).
PICTURES = Path(os.environ["LASTMILE_PICTURES"]) if "LASTMILE_PICTURES" in os.environ else None
# docs/operating/observe.md, «How many series».
MAX_OPERATOR_SERIES = 30
MAX_DRIVER_SERIES = 27 + 23 + 3 * 3 + 2
SCRAPE_SERIES = 5  # Prometheus' own of each target


@pytest.fixture
def program(skip_unless_ci: Callable[[str], NoReturn]) -> Path:
    try:
        return find_prometheus()
    except ToolError as error:
        skip_unless_ci(str(error))


def list_queries(namespace: str) -> Iterator[tuple[str, str]]:
    """Yield each dashboard query: its panel, and the expression with its variables replaced."""
    for board in BOARDS:
        for about, expr in board.list_queries():
            for variable, value in {**VALUES, "$namespace": namespace}.items():
                expr = expr.replace(variable, value)
            yield f"{board.name} / {about}", expr


def list_selectors() -> Iterator[tuple[str, str]]:
    """Yield the series that the alerts read; no alert fires, since nothing is wrong here."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            for selector in SELECTOR.findall(rule["expr"]):
                yield f"{rule['alert']} / {selector}", selector


async def trains(observed: Observed) -> None:
    """Wait until all that is to be seen was seen: it starts, trains, is saved and scaled."""
    stage = observed.stage
    stage.ray.starts = False
    stage.apply(trainers={"gpusPerReplica": 1}, dataWorkers={"minReplicas": 1, "maxReplicas": 3})
    await observed.until('lastmile_experiment_phase{phase="Starting"}')
    await observed.until("lastmile_experiment_attempts_total == 1")
    stage.only_job()["status"] = "RUNNING"
    await observed.until("lastmile_checkpoints_total > 1")
    await observed.until("lastmile_experiment_decision_timestamp_seconds")
    await observed.until("increase(lastmile_experiment_gpu_idle_seconds_total[1h]) > 0")
    await observed.until("ray_node_mem_used")
    # Not with the first decision: until demand is known, nothing limits the number.
    await observed.until('lastmile_experiment_condition{type="ScalingLimited"} == 1')


async def find_missing(
    observed: Observed, queries: Iterator[tuple[str, str]]
) -> AsyncIterator[tuple[str, str]]:
    """The queries that find no number, and those that find one though they are listed as absent."""
    for about, expr in queries:
        over = "10m:1s" if about in PASSED or about in ABSENT else ""
        found = await observed.query(f"last_over_time(({expr})[{over}])" if over else expr)
        numbers = [series for series in found if math.isfinite(float(series["value"][1]))]
        if about not in SELDOM and bool(numbers) == (about in ABSENT):
            yield about, expr


@pytest.mark.slow
def test_every_query_finds_what_it_asks_for(
    box: Box, namespace: str, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(box.kubeconfig))
    queries = [*list_queries(namespace), *list_selectors()]
    assert {*PASSED, *ABSENT, *SELDOM} <= {about for about, _ in queries}

    async def story() -> None:
        async with observing(box, namespace, tmp_path, program) as observed:
            began = time.monotonic()
            await trains(observed)
            assert [found async for found in find_missing(observed, iter(queries))] == []
            counts = await observed.query(f'count by (job) ({{experiment="{NAME}", job!=""}})')
            series = {count["metric"]["job"]: int(count["value"][1]) for count in counts}
            assert series["operator"] <= MAX_OPERATOR_SERIES
            assert series["driver"] <= MAX_DRIVER_SERIES + SCRAPE_SERIES
            alerts = await observed.query('ALERTS{alertstate="firing"}')
            assert alerts == []
            if os.environ.get("LASTMILE_SKIP_BROWSER") != "1":
                values = {**VALUES, "$namespace": namespace}
                minutes = (time.monotonic() - began) / 60
                await take_pictures(observed, BOARDS_FOLDER, values, minutes, PICTURES or tmp_path)

    asyncio.run(story())
